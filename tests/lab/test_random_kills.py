"""Killed with -9 at random instants, one process after the other, a study ends as an undisturbed one.

`REALM_LAB_KILLS=50 pytest tests/lab/test_random_kills.py` kills as often as that; the default is once each.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from realm_lab.lab.tracking.mirror import mirror
from realm_lab.records.run import StageRun
from realm_lab.records.state import UNFINISHED
from tests import tiny
from tests.lab.test_sweep import LONG, make_project, outcomes, stages, start, sweep_here
from tests.lab.tracking import shown
from tests.limits import HANG_SECONDS
from tests.slurm_cluster.cluster import Cluster
from tests.slurm_cluster.project import Project, assert_as_uninterrupted, uninterrupted, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.drill]
ROLES = ("sweep", "worker", "builder", "mirror")
KILLS = int(os.environ.get("REALM_LAB_KILLS", len(ROLES)))
JOBS = max(1, KILLS // 5)  # more kills, of jobs of SLURM
CHANCE = 0.015  # of a kill, at each look at a process that is there
POLL_SECONDS = 0.02
STUDY = LONG.replace("set:", "set:\n  launch.builder: process\n  pretrain.refresh.delay_steps: 2")
OF_JOBS = {
    "question": "Does a job survive?",
    "baseline": "realm",
    "seeds": [0],
    "set": {"pretrain.masking": "slow_masks:slowly", "pretrain.steps": 16, "launch.checkpoint_interval_seconds": 1},
    "cells": {"realm": {"title": "REALM"}},
    "launcher": {"slurm": {"timeout_min": 60}},
}


Kill = Callable[[], object]


def killed_by_chance(victim: Callable[[], Kill | None], is_over: Callable[[], bool], chance: random.Random) -> bool:
    """Kill the victim at some instant after it exists; False if everything ended before."""
    deadline = time.monotonic() + HANG_SECONDS
    while not is_over():
        assert time.monotonic() < deadline
        kill = victim()
        if kill is not None and chance.random() < CHANCE:
            with suppress(psutil.NoSuchProcess):
                kill()
                return True
        time.sleep(POLL_SECONDS)
    return False


def kill_of(role: str, root: Path, sweep: int, mirrors: int) -> Kill | None:
    """Return how to kill the process of a role, if it exists; `sweep` and `mirrors` are process numbers."""
    with suppress(psutil.NoSuchProcess):
        if role == "sweep":
            return psutil.Process(sweep).kill
        if role == "mirror" and (root / "runs" / ".mirror.lock").exists():  # it works, or is about to make the database
            return psutil.Process(mirrors).kill
        folders = list((root / "runs" / "stages").glob("*/status.json"))
        states = [StageRun(path.parent, path.parent.name.rpartition("-")[0]).status() for path in folders]
        for worker in (psutil.Process(status.pid) for status in states if status.state == "RUNNING"):
            if role == "worker":
                return worker.kill
            if role == "builder":
                found = [one for one in worker.children() if "realm_lab.engine.training.builder" in one.cmdline()]
                return found[0].kill if found else None
    return None


def go_on(root: Path, role: str | None, mirrors: int, chance: random.Random) -> tuple[int, bool, str]:
    """Run a sweep, and kill one of its processes or the mirror: return exit code, whether it was killed, and the
    output of the sweep."""
    process = start(root, "--retry-failed")
    killed = False
    if role:
        victim = partial(kill_of, role, root, process.pid, mirrors)
        killed = killed_by_chance(victim, lambda: process.poll() is not None, chance)
    _, said = process.communicate(timeout=HANG_SECONDS)
    return process.returncode, killed, said


def follow(root: Path) -> subprocess.Popen[bytes]:
    """Start a mirror, which goes on from sweep to sweep until all runs have ended."""
    (root / "runs").mkdir(exist_ok=True)  # the mirror needs it
    command = [sys.executable, "-m", "realm_lab", "mirror", "--root", str(root), "--follow"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_whatever_is_killed_the_study_ends_as_if_nothing_was(tmp_path: Path) -> None:
    chance, killed = random.Random(0), dict.fromkeys(ROLES, 0)
    undisturbed = make_project(tmp_path / "undisturbed", STUDY)
    assert sweep_here(undisturbed) == 0
    number = 0
    while sum(killed.values()) < KILLS:
        root = make_project(tmp_path / f"study-{number}", STUDY)
        number, code, shows = number + 1, 1, follow(root)
        while code:
            if shows.poll() is not None:
                shows = follow(root)
            role = min(ROLES, key=lambda name: killed[name]) if sum(killed.values()) < KILLS else None
            code, was_killed, said = go_on(root, role, shows.pid, chance)
            assert code == 0 or was_killed, said
            killed[role or "sweep"] += was_killed
        shows.terminate()
        shows.wait(HANG_SECONDS)
        assert outcomes(root) == outcomes(undisturbed)
        for run in stages(root).values():
            tiny.by_name(tiny.metrics(run))  # no point is listed twice
        mirror(root / "runs")
        mirror(root / "runs", again := f"sqlite:///{root / 'again.db'}")
        assert shown.everything(root / "runs") == shown.everything(root / "runs", again)
    print(f"killed: {killed}, {number} studies")


@pytest.mark.slurm
def test_whatever_job_is_killed_the_study_ends_as_if_none_was(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, killed, number = random.Random(0), 0, 0

    def kill_of_job() -> Kill | None:
        running = cluster.ask("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%A").split()
        return partial(cluster.ask, "scancel", "--signal=KILL", running[0]) if running else None

    while killed < JOBS:
        project = Project(tmp_path / f"project-{number}", OF_JOBS)
        monkeypatch.chdir(project.root)
        number += 1
        while project.sweep(retry_failed=True):
            if killed < JOBS:
                killed += killed_by_chance(kill_of_job, partial(has_ended, project), chance)
                if killed == JOBS:
                    project.quick()
            wait_until(partial(has_ended, project), "all jobs have ended")
        assert_as_uninterrupted(project, uninterrupted(tmp_path / f"inline-{number}", OF_JOBS))
    print(f"killed: {killed} jobs, {number} studies")


def has_ended(project: Project) -> bool:
    return not {state.state for state in project.launcher().poll().values()} & set(UNFINISHED)
