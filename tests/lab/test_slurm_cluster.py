"""On a real SLURM: studies that are stopped in every way that a cluster knows, and end as if nothing had happened."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from realm_lab.engine.systems.identity import kept_corpus_folder, plan_run
from realm_lab.lab.launchers import LauncherSettings, launcher_of
from realm_lab.records.state import UNFINISHED, StageState
from tests import tiny
from tests.slurm_cluster.cluster import Cluster
from tests.slurm_cluster.project import REPOSITORY, Project, assert_as_uninterrupted, uninterrupted, wait_until

pytestmark = pytest.mark.slurm
URGENT = ("--partition=urgent", "--nodes=2", "--ntasks-per-node=2", "--exclusive", "--output=/dev/null")

STUDY = {
    "question": "Does a study survive its cluster?",
    "baseline": "killed",
    "seeds": [0],
    "set": {"pretrain.masking": "slow_masks:slowly", "pretrain.steps": 30, "evaluate.interval_steps": 50},
    "cells": {
        "out_of_time": {"title": "at its time limit", "set": {"pretrain.candidates": 3}},
        "killed": {"title": "killed with -9"},
        "cancelled": {"title": "cancelled", "set": {"pretrain.candidates": 5}},
        "preempted": {"title": "preempted", "set": {"pretrain.candidates": 4}},
    },
    "metrics": ["exact_match"],
    "launcher": {"slurm": {"timeout_min": 60, "signal_delay_s": 50, "array_parallelism": 2}},
}


@pytest.mark.slow
def test_a_study_is_stopped_in_every_way_and_ends_like_one_that_was_not(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path / "project", STUDY)
    monkeypatch.chdir(project.root)
    runs = {run.cell: run for run in project.plan().runs}
    pretrain = {cell: project.stage(run, "pretrain") for cell, run in runs.items()}
    shared, *parts = project.sweep()
    task = {part.cells[0]: part.name for part in parts}
    assert (shared.stages, set(task)) == (("prepare", "warm_start"), set(runs))
    most, is_hurried, jobs = 0, False, dict[str, str]()

    def states() -> dict[str, StageState]:
        nonlocal most, is_hurried
        running = cluster.ask("squeue", "--noheader", "--array", "--states=RUNNING", "--name=realm_lab-study")
        most = max(most, len(running.splitlines()))  # not those that are ending, whose node is free already
        if is_hurried and pretrain["out_of_time"].status().state == "PREEMPTED":  # it has time again before it goes on
            with suppress(RuntimeError):  # it is being queued again
                cluster.ask("scontrol", "update", f"JobId={jobs['out_of_time']}", "TimeLimit=60")
                is_hurried = False
        return project.launcher().poll()

    def reached(cell: str, step: int, attempt: int = 1) -> bool:
        states()
        status = pretrain[cell].status()
        return status.attempt >= attempt and status.step >= step

    wait_until(lambda: states()[task["killed"]].state == "QUEUED", "the others wait for the shared beginning")
    jobs |= {cell: states()[name].job for cell, name in task.items()}

    # One reaches its time limit, however long it has run; SLURM looks every thirty seconds. Meanwhile one dies with -9,
    # and one is cancelled: neither comes back by itself.
    wait_until(lambda: reached("out_of_time", 2) and reached("killed", 2), "two jobs train")
    cluster.ask("scontrol", "update", f"JobId={jobs['out_of_time']}", "EndTime=now+90seconds")
    is_hurried = True
    os.kill(pretrain["killed"].status().pid, signal.SIGKILL)
    wait_until(lambda: states()[task["killed"]].state == "FAILED", "SLURM sees the kill")
    wait_until(lambda: reached("cancelled", 2), "the next one trains")
    project.launcher().cancel([task["cancelled"]])
    wait_until(lambda: states()[task["cancelled"]].state == "CANCELLED", "the job is cancelled")
    assert pretrain["cancelled"].status().state == "PREEMPTED"
    wait_until(lambda: reached("out_of_time", 3, attempt=2), "the job that was out of time goes on")
    assert not is_hurried

    # That job and the last one are preempted by a job of a partition with a higher priority.
    wait_until(lambda: reached("preempted", 2), "the last one trains")
    cluster.ask("sbatch", *URGENT, "--wrap", "true")
    wait_until(lambda: reached("preempted", 0, attempt=2), "the preempted job goes on")
    project.quick()
    inline = uninterrupted(tmp_path / "inline", STUDY)  # meanwhile

    def is_over() -> bool:
        return not {state.state for state in states().values()} & set(UNFINISHED)

    wait_until(is_over, "all jobs have ended")
    ended = {cell: states()[name].state for cell, name in task.items()}
    assert ended == {"killed": "FAILED", "cancelled": "CANCELLED", "preempted": "COMPLETE", "out_of_time": "COMPLETE"}
    assert {cell: states()[name].job for cell, name in task.items()} == jobs  # the same jobs, queued again
    assert {part.cells for part in project.sweep()} == {("killed",), ("cancelled",)}
    wait_until(is_over, "the jobs of the second sweep have ended")
    assert {state.state for state in states().values()} == {"COMPLETE"}
    assert most == 2  # array_parallelism
    assert_each_went_on({cell: run.status().attempt for cell, run in pretrain.items()})
    assert_as_uninterrupted(project, inline)


def assert_each_went_on(attempts: dict[str, int]) -> None:
    """Stopped runs needed a second sweep; requeued ones resumed by themselves."""
    assert attempts["killed"] == attempts["cancelled"] == 2
    assert attempts["preempted"] >= 2
    assert attempts["out_of_time"] >= 3


SUBMIT = """
import json, sys
from pathlib import Path
from realm_lab.engine.params.parameters import Params
from realm_lab.records.run import Run
from realm_lab.lab.slurm import SlurmLauncher
from realm_lab.lab.launchers import LauncherSettings, SlurmOptions
from realm_lab.lab.tasks import Task
given = json.loads(sys.stdin.read())
run = Run("realm", 0, "", "", system="realm", params=Params(**given["params"]))
task = Task("prepare", ("prepare",), run, given["keys"], (), ("realm",))
launcher = SlurmLauncher(LauncherSettings(slurm=SlurmOptions(additional={"hold": True})), Path(given["root"]), "frozen")
launcher.submit([task])
"""


@pytest.mark.slow
def test_a_job_that_waits_does_not_see_what_is_edited(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    shutil.copytree(REPOSITORY / "realm_lab", source / "realm_lab", ignore=shutil.ignore_patterns("__pycache__"))
    params = tiny.params()
    plan = plan_run(params, "realm", 0)
    root = tmp_path / "project"
    given = {"params": params.model_dump(mode="json"), "keys": {"prepare": plan.corpus_key}, "root": str(root)}
    # Submitted from the folder that holds the code: `python -m` would look there first.
    subprocess.run(
        [sys.executable, "-c", SUBMIT],
        input=json.dumps(given),
        text=True,
        check=True,
        cwd=source,
        env=os.environ | {"PYTHONPATH": str(source)},
    )
    launcher = launcher_of("frozen", root, LauncherSettings(), "slurm")
    held = launcher.poll()["prepare"]
    assert (held.state, held.error) == ("QUEUED", "SLURM: JobHeldUser")
    for edited in ("__init__.py", "lab/worker.py"):
        (source / "realm_lab" / edited).write_text("raise SystemExit('edited')\n")
    cluster.ask("scontrol", "release", held.job)
    wait_until(lambda: launcher.poll()["prepare"].state not in UNFINISHED, "the job has ended")
    assert launcher.poll()["prepare"].state == "COMPLETE", launcher.poll()
    assert (kept_corpus_folder(root, plan) / "manifest.json").exists()
    [code] = (root / "runs/studies/frozen/code").iterdir()
    assert re.fullmatch(r"[0-9a-f]{12}", code.name)
