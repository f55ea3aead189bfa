"""Turn planned runs into tasks: unfinished stages, shared ones once, in topological order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realm_lab.engine.systems.registry import system_of
from realm_lab.records.run import KEY_LENGTH, Run, StageRun, Status, stage_folder
from realm_lab.records.state import StageStates

Node = tuple[str, str]  # stage, key


@dataclass(frozen=True)
class Task:
    """Consecutive stages that one job does. A task is named after its last stage, so that the name stays while it
    advances. `run` is a run that has all these stages, `cells` has the cells of all runs with the first one, `after`
    names the tasks that must be complete before."""

    name: str
    stages: tuple[str, ...]
    run: Run
    keys: dict[str, str]
    after: tuple[str, ...]
    cells: tuple[str, ...]

    @property
    def title(self) -> str:
        return self.at(*self.stages)

    def at(self, *stages: str) -> str:
        """Describe these stages of the task."""
        what = ", ".join(stages).replace("_", "-")
        if len(self.cells) == 1:
            return f"{self.cells[0]} seed {self.run.seed}: {what}"
        return f"{what}, seed {self.run.seed} (shared by {len(self.cells)} variants)"

    @property
    def ranks(self) -> int:
        """Number of processes of the task: several only if one of its stages can divide batches among them."""
        shared = {stage.name for stage in system_of(self.run.system).stages if stage.uses_ranks}
        ranks: int = self.run.params.launch.ranks
        return ranks if shared & {*self.stages} else 1

    def runs(self, root: Path) -> list[StageRun]:
        """Return the folders of its stages, which need not exist yet."""
        return [StageRun(stage_folder(Path(root) / "runs", stage, self.keys[stage]), stage) for stage in self.stages]

    def is_done(self, root: Path) -> bool:
        states = StageStates(Path(root) / "runs")
        return all(states.stage(stage, key).state == "COMPLETE" for stage, key in self.keys.items())

    def failures(self, root: Path) -> list[Status]:
        """Return the status of each stage that has failed."""
        return [status for run in self.runs(root) if (status := run.status()).state == "FAILED"]

    def job(self, root: Path) -> dict[str, Any]:
        """The job for `python -m realm_lab.lab.worker`, as plain data."""
        return {
            "stages": list(self.stages),
            "system": self.run.system,
            "seed": self.run.seed,
            "params": self.run.params.model_dump(mode="json"),
            "root": str(root),
        }


def nodes_of(run: Run) -> set[Node]:
    """Return the stages of a run, its corpus included, as nodes."""
    return {("prepare", run.corpus_key), *run.keys().items()}


def tasks_of(
    runs: Iterable[Run],
    states: StageStates,
    *,
    retry_failed: bool = False,
    until: str = "",
    each_stage_alone: bool = False,
) -> list[Task]:
    """Return unfinished work up to the stage `until` ("": each run's last), each task after those that it needs. A
    failed stage, and the stages after it, are left out unless `retry_failed`. A running stage is included: the launcher
    waits for it. `each_stage_alone`: one task per stage, since later runs may share any of them."""
    work = []
    for run in runs:
        if until != "prepare" and states.look(run, until).state == "COMPLETE":
            continue
        stages: list[str] = []
        for stage in ("prepare", *run.keys(until)):
            state = states.stage(stage, run.key(stage)).state
            if state == "FAILED" and not retry_failed:
                break
            if state != "COMPLETE":
                stages.append(stage)
        work.append((run, stages))
    return chains(work, each_stage_alone)


def stages_left(runs: Iterable[Run], states: StageStates) -> Iterator[tuple[Node, Run]]:
    """Yield (stage, run) for each unfinished stage of each run, for estimates of time; a shared stage once per run."""
    for run in runs:
        for stage in ("prepare", *run.keys()):
            if states.stage(stage, run.key(stage)).state != "COMPLETE":
                yield (stage, run.key(stage)), run


def chains(work: Iterable[tuple[Run, list[str]]], each_stage_alone: bool = False) -> list[Task]:
    """Return the tasks for runs and their unfinished stages: first tasks that others need, then seed by seed."""
    owners: dict[Node, list[Run]] = {}
    above: dict[Node, Node | None] = {}
    below: dict[Node, list[Node]] = {}
    for run, stages in work:
        before: Node | None = None
        for stage in stages:
            node = (stage, run.key(stage))
            owners.setdefault(node, []).append(run)
            above[node] = before
            if before is not None and node not in below.setdefault(before, []):
                below[before].append(node)
            before = node
    found = []
    for first in owners:
        over = above[first]
        if over is not None and len(below[over]) == 1 and not each_stage_alone:
            continue  # this stage is in the task of the stage before
        chain = [first]
        while len(next_ones := below.get(chain[-1], [])) == 1 and not each_stage_alone:
            chain.append(next_ones[0])
        found.append(
            Task(
                name=_name(chain[-1]),
                stages=tuple(stage for stage, _ in chain),
                run=owners[chain[-1]][0],
                keys=dict(chain),
                after=() if over is None else (_name(over),),
                cells=tuple(dict.fromkeys(run.label for run in owners[first])),
            )
        )
    depth: dict[str, int] = {}
    for task in found:  # a stage comes before those that need it
        depth[task.name] = max((depth[name] + 1 for name in task.after), default=0)
    shared = {name for task in found for name in task.after}
    return sorted(found, key=lambda task: (task.name not in shared, depth[task.name], task.run.seed))


def _name(node: Node) -> str:
    return f"{node[0]}-{node[1][:KEY_LENGTH]}"
