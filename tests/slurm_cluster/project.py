"""A project whose studies run on a Cluster, and waiting for its jobs.

The jobs mask sentences with a scheme that sleeps inside SLURM only, as long as there is a file `slow` next to it: they
last long enough to be stopped (all but the first six steps of a job take eight seconds each), cost no processor time,
and are quick again once nothing is to be stopped any more.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from realm_lab.lab.launchers import Launcher, launcher_of
from realm_lab.lab.plan import plan_study
from realm_lab.lab.study import StudyPlan
from realm_lab.lab.sweep import Sweep
from realm_lab.lab.tasks import Task, tasks_of
from realm_lab.lab.worker import run_stage
from realm_lab.records.run import Run, StageRun
from realm_lab.records.state import StageStates
from tests import tiny
from tests.limits import HANG_SECONDS
from tests.slurm_cluster.cluster import Cluster

REPOSITORY = Path(__file__).resolve().parents[2]
POLL_SECONDS = 1.0
SLOW_MASKS = """
import itertools
import os
import time
from pathlib import Path

import numpy as np

sentences = itertools.count()  # four a step


def slowly(request, generator):
    if "SLURM_JOB_ID" in os.environ and Path(__file__).with_name("slow").exists():
        time.sleep(0.2 if next(sentences) < 24 else 2.0)
    return np.arange(*request.spans[int(generator.integers(len(request.spans)))])
"""


def write_slow_masks(root: Path) -> None:
    """Write the slow masking scheme for the jobs in this folder."""
    (root / "slow_masks.py").write_text(SLOW_MASKS)
    (root / "slow").touch()


@contextmanager
def joined(cluster: Cluster) -> Iterator[Cluster]:
    """Start SLURM, and point the environment of this process to it. If it does not start, the tests are skipped with
    the reason."""
    try:
        cluster.__enter__()
    except RuntimeError as error:
        pytest.skip(f"SLURM does not start here: {error}")
    before = dict(os.environ)
    os.environ |= {"SLURM_CONF": cluster.environment["SLURM_CONF"]}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), before.get("PYTHONPATH", "")])
    try:
        yield cluster
    finally:
        cluster.__exit__(None, None, None)
        os.environ.clear()
        os.environ.update(before)


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + HANG_SECONDS
    while not is_true():
        assert time.monotonic() < deadline, f"not within {HANG_SECONDS:.0f} s: {what}"
        time.sleep(POLL_SECONDS)


class Project:
    """A folder with parameters and a study."""

    def __init__(self, root: Path, study: dict[str, Any]):
        self.root, self.study = root, root / "study.yaml"
        root.mkdir()
        shutil.copy(tiny.PARAMETERS, root / "params.yaml")
        YAML().dump(study, self.study)  # in the order of its cells
        write_slow_masks(root)

    def plan(self) -> StudyPlan:
        """Return the plan of the study."""
        return plan_study(self.study, self.root)

    def sweep(self, **options: Any) -> list[Task]:
        """Submit what is missing; returns the submitted tasks."""
        retry = options.get("retry_failed", False)
        tasks = tasks_of(self.plan().runs, StageStates(self.root / "runs"), retry_failed=retry)
        assert Sweep(self.study, self.root, launcher="slurm", **options).run() == 0
        return tasks

    def launcher(self) -> Launcher:
        """A new launcher each time, as from a new command. The plan, which stays the same, is made once."""
        return launcher_of(self._planned.name, self.root, self._planned.launcher, "slurm")

    @cached_property
    def _planned(self) -> StudyPlan:
        return self.plan()

    def quick(self) -> None:
        """From now on jobs do not sleep."""
        (self.root / "slow").unlink()

    def stage(self, run: Run, stage: str) -> StageRun:
        """The folder of a stage."""
        return StageRun(self.root / "runs" / "stages" / f"{stage}-{run.key(stage)[:12]}", stage)


def uninterrupted(place: Path, study: dict[str, Any]) -> Project:
    """A project with this study, done in this process; nothing stops it."""
    inline = Project(place, study)
    for run in inline.plan().runs:
        for stage in ("prepare", *run.stages):
            run_stage(stage, run.system, run.params, run.seed, inline.root)
    return inline


def assert_as_uninterrupted(project: Project, inline: Project) -> None:
    """Nothing is left to do; metrics and weights are to the bit those of runs that nothing stopped."""
    assert tasks_of(project.plan().runs, StageStates(project.root / "runs")) == []
    for run in inline.plan().runs:
        for stage in run.stages:
            one, other = project.stage(run, stage), inline.stage(run, stage)
            tiny.by_name(tiny.metrics(one))  # nothing is logged twice
            assert tiny.outcome(one) == tiny.outcome(other), (run.cell, stage)
        assert project.stage(run, "evaluate").status().state == "COMPLETE"
