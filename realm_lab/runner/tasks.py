"""From a plan to the work that is left: chains of stages, what runs share done once, in an order that works."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realm_lab.params.parameters import Params
from realm_lab.runner.plan import PlannedRun, StudyPlan
from realm_lab.runner.state import StageStates
from realm_lab.tracking.run_dir import KEY_LENGTH

Node = tuple[str, str]  # stage, key


@dataclass(frozen=True)
class Task:
    """Consecutive stages that one job does. Named after its last stage, so that it keeps its name while it advances."""

    name: str
    stages: tuple[str, ...]
    system: str
    seed: int
    params: Params
    keys: dict[str, str]
    after: tuple[str, ...]
    cells: tuple[str, ...]

    @property
    def title(self) -> str:
        """What people see: for whom, and what is done."""
        whose = self.cells[0] if len(self.cells) == 1 else f"{len(self.cells)} cells"
        return f"{whose} seed {self.seed}: {', '.join(stage.replace('_', '-') for stage in self.stages)}"

    def job(self, root: Path) -> dict[str, Any]:
        """The line for `python -m realm_lab.runner.worker`."""
        return {
            "stages": list(self.stages),
            "system": self.system,
            "seed": self.seed,
            "params": self.params.model_dump(mode="json"),
            "root": str(root),
            "for_study": True,
        }


def tasks_of(
    plan: StudyPlan, root: Path, *, retry_failed: bool = False, states: StageStates | None = None
) -> list[Task]:
    """What is not complete yet, each task after those it needs.

    A stage that failed, and what comes after it, is left out unless `retry_failed`. One that runs already is in: who
    submits looks at its state and at the jobs.
    """
    states = states or StageStates(root)
    return chains([(run, _to_do(run, states, retry_failed)) for run in plan.runs])


def chains(work: Iterable[tuple[PlannedRun, list[str]]]) -> list[Task]:
    """Tasks of runs with their stages to do, in order: shared beginnings first, then seed by seed."""
    owners: dict[Node, list[PlannedRun]] = {}
    above: dict[Node, Node | None] = {}
    below: dict[Node, list[Node]] = {}
    for run, stages in work:
        before: Node | None = None
        for stage in stages:
            node = (stage, run.plan.key(stage))
            owners.setdefault(node, []).append(run)
            above[node] = before
            if before is not None and node not in below.setdefault(before, []):
                below[before].append(node)
            before = node
    found = []
    for first in owners:
        over = above[first]
        if over is not None and len(below[over]) == 1:
            continue  # in the task of the stage before
        chain = [first]
        while len(next_ones := below.get(chain[-1], [])) == 1:
            chain.append(next_ones[0])
        found.append(_task(chain, owners[first], over))
    depth: dict[str, int] = {}
    for task in found:  # a stage stands before those that need it
        depth[task.name] = max((depth[name] + 1 for name in task.after), default=0)
    shared = {name for task in found for name in task.after}
    return sorted(found, key=lambda task: (task.name not in shared, depth[task.name], task.seed))


def _task(chain: list[Node], runs: list[PlannedRun], over: Node | None) -> Task:
    run = runs[0]
    return Task(
        name=_name(chain[-1]),
        stages=tuple(stage for stage, _ in chain),
        system=run.plan.system,
        seed=run.seed,
        params=run.params,
        keys=dict(chain),
        after=() if over is None else (_name(over),),
        cells=tuple(dict.fromkeys(run.cell for run in runs)),
    )


def _to_do(run: PlannedRun, states: StageStates, retry_failed: bool) -> list[str]:
    """The run's stages that are not complete, up to one that failed."""
    state = states.run(run.plan)
    if state.state == "COMPLETE":
        return []
    stages: list[str] = []
    for name, stage in state.stages.items():
        if stage.state == "FAILED" and not retry_failed:
            break
        if stage.state != "COMPLETE":
            stages.append(name)
    return stages


def _name(node: Node) -> str:
    return f"{node[0]}-{node[1][:KEY_LENGTH]}"
