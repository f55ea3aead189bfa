"""A search over the tiny parameters, and a launcher that trains nothing: its runs' curves are computed."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.identity import code_roots, kept_corpus_folder, open_stage, plan_run
from realm_lab.lab import sweep as verb
from realm_lab.lab.tasks import Task
from realm_lab.records.code_record import CodeStates
from realm_lab.records.files import read_json, write_json
from realm_lab.records.state import UNFINISHED, Cause, Reason, StageState
from tests import tiny

SPACE = """
question: Which?
seeds: [0]
space:
  pretrain.retriever.learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}
  pretrain.refresh.interval_steps: {low: 1, high: 9}
trials: 6
"""
STEPS = (0, 4, 8, 12)  # evaluations of the tiny pre-training


def score(params: Params, seed: int) -> float:
    """Return the value of a run: the best interval is 7, and seeds differ."""
    return 1.0 - 0.1 * abs(params.pretrain.refresh.interval_steps - 7) + 0.01 * seed


class Killed(BaseException):
    """Acts like SIGKILL: nothing is tidied up."""


class FakeLauncher:
    """Every poll takes each running task to its next evaluation; after `lives` polls the owner is killed."""

    name = "fake"
    detached, at_once = False, None

    def __init__(
        self,
        root: Path,
        *,
        lives: int = 10**6,
        fails: Callable[[Params], bool] = lambda params: False,
        scores: Callable[[Params, int], float] = score,
    ):
        self.root, self.lives, self._fails, self._scores = root, lives, fails, scores
        self.tasks: dict[str, Task] = {}
        self.states: dict[str, StageState] = {}
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.most_pretraining = 0

    def check(self, tasks: Sequence[Task]) -> None:
        """Accept everything."""

    def free(self, tasks: Sequence[Task]) -> tuple[list[Task], list[str]]:
        return list(tasks), []

    def submit(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            assert task.name not in self.states or self.states[task.name].state in ("FAILED", "CANCELLED")
            self.tasks[task.name], self.states[task.name] = task, StageState("PENDING")
            self.submitted.append(task.name)

    def poll(self) -> dict[str, StageState]:
        self.lives -= 1
        if self.lives < 0:
            raise Killed
        running = [name for name, state in self.states.items() if state.state in UNFINISHED]
        self.most_pretraining = max(self.most_pretraining, sum(name.startswith("pretrain") for name in running))
        for name in running:
            before = [self.states[other].state for other in self.tasks[name].after if other in self.states]
            if all(state == "COMPLETE" for state in before):
                self.states[name] = self._advance(self.tasks[name])
            elif "FAILED" in before:
                self.states[name] = StageState("FAILED", reason=Reason(Cause.NEEDED, "the one before", "FAILED"))
        return dict(self.states)

    def cancel(self, names: Collection[str]) -> None:
        for name in names:
            if self.states[name].state in UNFINISHED:
                self.states[name] = StageState("PREEMPTED")
                self.cancelled.append(name)

    def close(self) -> None:
        """Do nothing: a killed owner stops nothing, and another owner has nothing left to stop."""

    def _advance(self, task: Task) -> StageState:
        for stage in task.stages:
            plan = plan_run(task.run.params, task.run.system, task.run.seed)
            folders, roots = plan.folders(self.root / "runs"), code_roots(task.run.params, task.run.system)
            if not (folders[stage] / "code.json").exists():
                CodeStates(self.root / "runs").write(stage, folders, roots[stage])
            if stage == "prepare":
                write_json(kept_corpus_folder(self.root, plan) / "manifest.json", {})
                continue
            run = open_stage(self.root / "runs", plan, stage)
            if run.status().state == "PENDING" or run.status().state == "FAILED":
                run.start(STEPS[-1])
            if stage == "pretrain":
                if self._fails(task.run.params):
                    run.fail("RuntimeError: no luck")
                    return StageState("FAILED", reason=Reason(Cause.ERROR, detail="RuntimeError: no luck"))
                step = STEPS[len(run.metrics.rows())]
                value = self._scores(task.run.params, task.run.seed) * step / STEPS[-1]
                run.metrics.log(step, {"retrieval_utility": value, "cloze_exact_match": 0.5})
                if step < STEPS[-1]:
                    return StageState("RUNNING")
            run.finish({})
        return StageState("COMPLETE")


def write_search(root: Path, text: str = SPACE, name: str = "search-mine") -> Path:
    (root / "experiments").mkdir(parents=True, exist_ok=True)
    path = root / "experiments" / f"{name}.yaml"
    path.write_text(text.lstrip("\n"), encoding="utf-8")
    return path


class Searched(NamedTuple):
    """The exit code of a search, None if it was killed, and its trials, as trials.json has them."""

    code: int | None
    trials: list[dict[str, Any]]


def search(
    root: Path, text: str = SPACE, launcher: FakeLauncher | None = None, trials: int = 6, **options: Any
) -> Searched:
    """Run a search to its end, or until its owner is killed."""
    path, code = write_search(root, text.replace("trials: 6", f"trials: {trials}")), None
    sweep = verb.Sweep(path, root, params_path=tiny.PARAMETERS, **options)
    fake: Any = launcher or FakeLauncher(root)
    sweep.by = fake
    with suppress(Killed), patch.object(verb, "POLL_SECONDS", 0.0):
        code = sweep.run()
    written = root / "runs" / "studies" / path.stem / "trials.json"
    return Searched(code, read_json(written)["trials"] if written.exists() else [])
