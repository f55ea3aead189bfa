"""On a real SLURM: studies that submit more than once, because they are tuned, or stop by themselves."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from realm_lab.evidence.ledger import verify
from realm_lab.lab.results import Results
from realm_lab.lab.sweep import Sweep
from realm_lab.lab.wanted import wanted
from realm_lab.records.run import StageRun, read_run
from realm_lab.records.state import UNFINISHED, StageState
from realm_lab.records.study import StudyRecord, read_study_record, study_folder
from tests import tiny
from tests.limits import HANG_SECONDS
from tests.slurm_cluster.cluster import Cluster
from tests.slurm_cluster.project import Project, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SHORT = {"warm_start.reader.steps": 2, "warm_start.embedder.steps": 2, "finetune.steps": 2}
ROUNDS = {
    "question": "Which seeds does a tuned study take?",
    "baseline": "warm_start",
    "seeds": {"until": "decided", "at_least": 2, "at_most": 6},
    "tune": {"trials": 2, "seeds": [10], "space": {"finetune.steps": {"choices": [12, 6]}}},
    "set": {"warm_start.reader.steps": 2, "warm_start.embedder.steps": 2},
    "cells": {
        "warm_start": {"system": "warm_start"},
        "longer": {"system": "warm_start", "set": {"warm_start.embedder.steps": 6}},
    },
    "metrics": ["recall_at_5"],
    "delta": {"recall_at_5": 0.6},
}


SPOT = {
    "question": "Does it go on after a preemption?",
    "baseline": "realm",
    "seeds": [0],
    "set": SHORT | {"pretrain.masking": "slow_masks:slowly", "pretrain.steps": 16, "evaluate.interval_steps": 50},
    "cells": {"realm": {}, "reset": {"set": {"finetune.initial_reader": "warm_start"}}},  # which share pre-training
    "metrics": ["exact_match"],
    "launcher": {"slurm": {"partition": "spot", "requeue": False, "signal_delay_s": 50}},
}
URGENT = ("--partition=urgent", "--nodes=2", "--ntasks-per-node=2", "--exclusive", "--output=/dev/null")
Submitted = Callable[[dict[str, Any]], Project]


def jobs(project: Project) -> dict[str, StageState]:
    """The states of the jobs that the study, or its trials, have now."""
    return project.launcher().poll()


@pytest.fixture
def submitted(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submitted:
    """A project with a study whose first jobs are submitted, in the working folder."""

    def make(study: dict[str, Any]) -> Project:
        project = Project(tmp_path / "project", study)
        monkeypatch.chdir(project.root)
        submit(project)
        return project

    return make


def submit(project: Project, **options: Any) -> None:
    assert Sweep(project.study, project.root, launcher="slurm", **options).run() == 0


def wait_for_jobs(project: Project) -> None:
    wait_until(lambda: not {job.state for job in jobs(project).values()} & {*UNFINISHED}, "the jobs have ended")


def record(project: Project, name: str = "study") -> StudyRecord:
    return read_study_record(study_folder(project.root / "runs", name) / "study.json")


def outcomes(project: Project) -> dict[tuple[str, int, int | None], Any]:
    """Cell, seed and trial -> the stages of its run with everything that equal runs share to the bit."""
    runs, found, study = project.root / "runs", {}, record(project)
    for run in (*study.trials, *study.runs):
        stages = read_run(runs / run.name / "run.json").folders(runs)
        finished = {name: tiny.outcome(StageRun(path, name)) for name, path in stages.items() if name != "prepare"}
        found[run.cell, run.seed, run.trial] = finished
    return found


def inline(folder: Path, study: dict[str, Any]) -> Project:
    project = Project(folder, study)
    assert Sweep(project.study, project.root, launcher="inline").run() == 0
    return project


def test_to_follow_submits_again_what_the_scheduler_cancels_for_others(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path / "project", SPOT)
    monkeypatch.chdir(project.root)
    follow = [sys.executable, "-m", "realm_lab", "sweep", "study.yaml", "--launcher", "slurm", "--follow"]
    with subprocess.Popen(follow, stderr=subprocess.PIPE, text=True) as sweeping:
        run = project.plan().runs[0]
        pretrain = project.stage(run, "pretrain")
        wait_until(lambda: pretrain.status().step >= 2, "it trains")
        cluster.ask("sbatch", *URGENT, "--wrap", "true")
        wait_until(lambda: pretrain.status().attempt == 2, "it goes on")
        project.quick()
        _, said = sweeping.communicate(timeout=HANG_SECONDS)
    assert sweeping.returncode == 0, said
    assert "submitted again: " in said
    assert outcomes(project) == outcomes(inline(tmp_path / "inline", SPOT))
    assert_honest(project)


def assert_honest(project: Project) -> None:
    """Check that the ledger has no fault."""
    assert verify(project.root)[1] == []


def test_a_tuned_study_goes_on_from_round_to_round(submitted: Submitted, cluster: Cluster, tmp_path: Path) -> None:
    project = submitted(ROUNDS)
    cluster.ask("scancel", next(job.job for job in jobs(project).values() if job.state in UNFINISHED))
    expected = inline(tmp_path / "inline", ROUNDS)  # meanwhile
    wait_for_jobs(project)
    assert {run.trial for run in wanted(project.plan(), Results(project.root))} == {0, 1}
    submit(project)  # the trials of the cancelled job again
    wait_for_jobs(project)
    submit(project)  # the first seeds, with the choice
    wait_for_jobs(project)
    assert [run.seed for run in record(project).runs] == [0, 1] * 2
    submit(project, follow=True)  # the others, one after another
    assert record(project).seeds == record(expected).seeds
    assert len(record(project).seeds) > 2
    assert record(project).tuning == record(expected).tuning
    assert outcomes(project) == outcomes(expected)
    assert_honest(project)
