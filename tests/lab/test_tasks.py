"""Tasks: every stage that is left is in exactly one; shared stages are done once, and before stages that need them."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_lab.lab.launchers import Launcher, LauncherSettings
from realm_lab.lab.study import StudyPlan
from realm_lab.lab.sweep import Sweep
from realm_lab.lab.tasks import Task, chains, tasks_of
from realm_lab.records.files import digest
from realm_lab.records.lease import exclusive
from realm_lab.records.run import Run
from realm_lab.records.state import Cause, Reason, StageState, StageStates
from tests import tiny
from tests.lab.conftest import leave

STUDY = """
baseline: realm
cells:
  realm:
  reset: {set: {finetune.initial_reader: warm_start}}
  warm: {system: warm_start}
  token: {set: {pretrain.masking: random_token}}
"""
PREPARE_WARM = ("prepare", "warm_start")
TUNE = ("finetune", "evaluate")


def left(plan: StudyPlan, root: Path, **options: Any) -> list[Task]:
    return tasks_of(plan.runs, StageStates(root / "runs"), **options)


class Queue(Launcher):
    """A queue that only records what is submitted."""

    name = "queue"
    detached = True

    def __init__(self, root: Path) -> None:
        super().__init__(LauncherSettings(), root, "study")
        self.submitted: list[list[str]] = []

    def submit(self, tasks: Sequence[Task]) -> None:
        with exclusive(self._root / "runs" / "submit.lock", wait=False) as lock:
            self.submitted.append([task.name for task in tasks])
        self.is_locked = lock is None

    def poll(self) -> dict[str, StageState]:
        return {}


def test_a_preempted_task_is_submitted_again_and_a_cancelled_one_is_not(
    planned: Callable[..., StudyPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(tmp_path)
    sweep = Sweep(tmp_path / "study.yaml", tmp_path, follow=True)
    sweep.study, sweep.by = planned(STUDY), queue
    tasks = sweep.begin()
    pretrain = tasks[2]
    below = [task.name for task in tasks if pretrain.name in task.after]
    other = next(task.name for task in tasks if task.name not in (pretrain.name, *below) and task.after)
    states = {task.name: StageState("QUEUED") for task in tasks}
    assert (sweep.look_again(states), len(queue.submitted)) == ([], 1)
    states[other] = StageState("CANCELLED")  # by somebody
    states[pretrain.name] = StageState("PREEMPTED")
    assert [task.name for task in sweep.look_again(states)] == [pretrain.name]
    states[pretrain.name] = StageState("RUNNING")
    states |= dict.fromkeys(below, StageState("CANCELLED", reason=Reason(Cause.NEEDED, "pretrain", "PREEMPTED")))
    assert [task.name for task in sweep.look_again(states)] == below
    states |= dict.fromkeys([other, *below], StageState("PREEMPTED"))  # as SLURM has forgotten who cancelled it
    states[pretrain.name] = StageState("CANCELLED")
    assert sweep.look_again(states) == []  # since nobody does what these need

    monkeypatch.setattr("realm_lab.lab.sweep.MOST_SUBMISSIONS", 3)
    states[pretrain.name] = StageState("COMPLETE")
    assert [[task.name for task in sweep.look_again(states)] for _ in range(3)] == [below, below, []]
    assert queue.submitted[1:] == [[pretrain.name], below, below, below]

    monkeypatch.setattr("realm_lab.lab.sweep.MOST_SUBMISSIONS", 9)
    monkeypatch.setattr(queue, "free", lambda tasks: ([], ["as a job of another study"]))
    assert sweep.look_again(states) == []
    assert not {*below} & sweep._tasks.keys(), "they are waited for as tasks of others"


def test_to_follow_takes_over_what_jobs_of_other_studies_leave(
    planned: Callable[..., StudyPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realm_lab.lab.sweep.FOLLOW_SECONDS", 0.0)
    queue, sweep = Queue(tmp_path), Sweep(tmp_path / "study.yaml", tmp_path, follow=True)
    sweep.study, sweep.by = planned(STUDY), queue
    todo = left(sweep.study, tmp_path)
    answers = iter([(todo[2:], ["two"]), ([], ["two"]), (todo[:1], ["one"]), ([], ["one"]), ([], [])])
    monkeypatch.setattr(queue, "free", lambda tasks: next(answers))
    assert not sweep._is_left_to_a_queue(sweep.begin())
    assert queue.submitted == [[task.name for task in todo[2:]], [todo[0].name]]
    assert queue.is_locked, "no other sweep submits the same tasks meanwhile"
    assert next(answers, None) is None


def test_what_is_complete_is_left_out_and_names_stay(planned: Callable[..., StudyPlan], tmp_path: Path) -> None:
    plan = planned(STUDY)
    token = plan.of("token")[0]
    name = next(task.name for task in left(plan, tmp_path) if task.cells == ("token",) and task.run.seed == 0)
    for stage in ("prepare", "warm_start", "pretrain"):
        leave(tmp_path, token, stage, "COMPLETE")
    todo = [task for task in left(plan, tmp_path) if task.run.seed == 0]
    assert not any(task.after for task in todo if task.cells in (("token",), ("warm",), ("realm", "reset")))
    assert [(task.name, task.stages) for task in todo if task.cells == ("token",)] == [(name, TUNE)]
    for run in plan.runs:
        for stage in run.stages:
            leave(tmp_path, run, stage, "COMPLETE")
    assert left(plan, tmp_path) == []


def test_a_failure_is_done_again_only_when_asked_for(planned: Callable[..., StudyPlan], tmp_path: Path) -> None:
    plan = planned(STUDY)
    leave(tmp_path, plan.of("realm")[0], "pretrain", "FAILED", error="out of memory")
    assert not any(
        {"realm", "reset"} & set(task.cells) and "pretrain" in task.stages
        for task in left(plan, tmp_path)
        if task.run.seed == 0
    )
    assert len(left(plan, tmp_path, retry_failed=True)) == 12


def test_a_study_can_stop_at_a_stage(planned: Callable[..., StudyPlan], tmp_path: Path) -> None:
    plan = planned("baseline: realm\ncells:\n  realm:\n  warm: {system: warm_start}\n")
    runs, states = plan.of("realm"), StageStates(tmp_path / "runs")
    assert [task.stages for task in tasks_of(runs, states, until="pretrain")] == [(*PREPARE_WARM, "pretrain")] * 2
    assert {task.stages for task in tasks_of(plan.runs, states, until="prepare")} == {("prepare",)}
    alone = tasks_of(runs[:1], states, until="pretrain", each_stage_alone=True)
    assert [task.stages for task in alone] == [("prepare",), ("warm_start",), ("pretrain",)]
    assert [task.after for task in alone] == [(), (alone[0].name,), (alone[1].name,)]


PARAMS = tiny.params()
NAMES = ("prepare", "warm_start", "pretrain", "finetune", "evaluate")


def made_run(choices: tuple[int, ...]) -> Run:
    """A run with a choice for each stage; a stage's key depends on its choice and those before. 9: no pre-training."""
    names = [name for name, choice in zip(NAMES, choices, strict=True) if choice != 9]
    path = [str(choice) for choice in choices if choice != 9]
    keys = {name: digest([name, *path[: place + 1]]) for place, name in enumerate(names)}
    corpus = keys.pop("prepare")
    system = "warm_start" if 9 in choices else "realm"
    return Run("-".join(path), choices[0], "", "", None, system, PARAMS, corpus, keys)


CHOICES = st.tuples(
    st.integers(0, 1), st.integers(0, 1), st.sampled_from([0, 1, 9]), st.integers(0, 1), st.integers(0, 1)
)


@given(st.sets(CHOICES, max_size=12), st.data())
def test_tasks_cover_what_is_left_exactly_once_in_an_order_that_works(
    choices: set[tuple[int, ...]], data: st.DataObject
) -> None:
    runs = [made_run(choice) for choice in sorted(choices)]
    everything = {(stage, run.key(stage)): run for run in runs for stage in ("prepare", *run.stages)}
    complete = data.draw(st.sets(st.sampled_from(sorted(everything)))) if everything else set()
    work = []
    for run in runs:
        left = ["prepare", *run.stages]
        while left and (left[0], run.key(left[0])) in complete:
            del left[0]
        work.append((run, left))
    wanted = {(stage, run.key(stage)) for run, left in work for stage in left}

    tasks = chains(work)

    found = [node for task in tasks for node in task.keys.items()]
    assert len(found) == len(set(found))
    assert set(found) == wanted
    where = {node: task.name for task in tasks for node in task.keys.items()}
    order = [task.name for task in tasks]
    assert len(set(order)) == len(order)
    after: dict[str, set[str]] = {name: set() for name in order}
    ends: dict[str, int] = dict.fromkeys(order, 0)
    for run, left in work:
        names = [where[stage, run.key(stage)] for stage in left]
        for one, two in itertools.pairwise(names):
            assert order.index(one) <= order.index(two)
            after[two] |= {one} - {two}
        for name in names[-1:]:
            ends[name] += 1
    assert {task.name: set(task.after) for task in tasks} == after
    followers = [name for needed in after.values() for name in needed]
    assert all(followers.count(name) > 1 for name in set(followers) if not ends[name]), "two tasks that could be one"
