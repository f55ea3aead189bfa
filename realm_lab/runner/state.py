"""How far planned runs and their stages are, read from the run folders; nothing is made or changed there."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from realm_lab.core.records import read_record
from realm_lab.systems.identity import Plan, kept_corpus_folder
from realm_lab.tracking.run_dir import KEY_LENGTH, STATUS, Status
from realm_lab.tracking.run_lease import writer_of

# LOST: it says that it runs, and its process is gone or has been silent for too long.
Condition = Literal["PENDING", "RUNNING", "PREEMPTED", "LOST", "FAILED", "COMPLETE"]
# Of the states of a run's stages, the first of these that is there is the run's.
WORST_FIRST: tuple[Condition, ...] = ("FAILED", "RUNNING", "LOST", "PREEMPTED")


class Planned(Protocol):
    """Anything with the plan of a run."""

    @property
    def plan(self) -> Plan:
        """Its stages and keys."""


class StageState(NamedTuple):
    """One stage of a run: its condition, and what its status.json says (PENDING when there is none)."""

    state: Condition
    status: Status


class RunState(NamedTuple):
    """A run: the condition of the whole and each of its stages, in order, the corpus first."""

    state: Condition
    stages: dict[str, StageState]

    @property
    def stage(self) -> str | None:
        """The stage that the condition is about: the one that runs or failed, else the first not complete."""
        for name, stage in self.stages.items():
            if stage.state == self.state != "COMPLETE":
                return name
        return next((name for name, stage in self.stages.items() if stage.state != "COMPLETE"), None)

    @property
    def error(self) -> str | None:
        """`<stage>: <last line>` of a failed or lost run."""
        for name, (state, status) in self.stages.items():
            if state == self.state == "FAILED":
                return f"{name}: {status.error or 'unknown error'}"
            if state == self.state == "LOST":
                return f"{name}: lost (process {status.pid} on {status.host} is gone or silent)"
        return None

    @property
    def wall_seconds(self) -> float:
        """Time spent on all its stages so far; a stage shared with another run counts in both."""
        return sum(stage.status.wall_seconds for stage in self.stages.values())


class StageStates:
    """The stages under a project, each status.json read once: take a new one to look again."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._known: dict[tuple[str, str], StageState] = {}

    def stage(self, plan: Plan, stage: str) -> StageState:
        """How one stage of a run is. The corpus is complete where studies keep it."""
        place = (stage, plan.key(stage))
        if place not in self._known:
            self._known[place] = self._read(plan, stage)
        return self._known[place]

    def run(self, plan: Plan) -> RunState:
        """How a run is. A finished run needs its corpus no more."""
        stages = {name: self.stage(plan, name) for name in ("prepare", *plan.stages)}
        present = {stages[name].state for name in plan.stages}
        if present == {"COMPLETE"}:
            return RunState("COMPLETE", stages)
        present.add(stages["prepare"].state)
        return RunState(next((state for state in WORST_FIRST if state in present), "PENDING"), stages)

    def _read(self, plan: Plan, stage: str) -> StageState:
        folder = self.root / "runs" / "stages" / f"{stage}-{plan.key(stage)[:KEY_LENGTH]}"
        status = _status(folder / "status.json")
        if stage == "prepare":
            if (kept_corpus_folder(self.root, plan) / "manifest.json").exists():
                return StageState("COMPLETE", status)
        elif status.state == "COMPLETE" and (folder / "results.json").exists():
            return StageState("COMPLETE", status)
        if status.state == "COMPLETE":  # what it made is gone
            return StageState("PENDING", status)
        if status.state == "RUNNING" and _is_gone(folder, status):
            return StageState("LOST", status)
        return StageState(status.state, status)


def run_state(run: Planned, root: Path) -> RunState:
    """How one planned run is, and each of its stages."""
    return StageStates(root).run(run.plan)


def run_states(runs: Iterable[Planned], root: Path) -> list[RunState]:
    """How planned runs are; a stage that several share is read once."""
    states = StageStates(root)
    return [states.run(run.plan) for run in runs]


def _is_gone(folder: Path, status: Status) -> bool:
    return status.is_lost if status.host == socket.gethostname() else writer_of(folder) is None


def _status(path: Path) -> Status:
    return read_record(path, STATUS) if path.exists() else Status()
