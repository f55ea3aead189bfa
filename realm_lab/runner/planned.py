"""A study before its results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from realm_lab.records.plugins import Chosen
from realm_lab.records.study import StudyCell, StudyRecord, StudyRun
from realm_lab.runner.launchers import LauncherSettings
from realm_lab.runner.rules.seeds import SeedCounts
from realm_lab.runner.rules.space import Dimension, Tuning
from realm_lab.runner.search_file import Search
from realm_lab.runner.study import Cell
from realm_lab.systems.identity import Run

Make = Callable[[Mapping[str, Any]], tuple[Run, ...]]
"""Values of a space -> the run of a trial for each seed. UserError: no valid combination."""


@dataclass(frozen=True)
class CellSpace:
    """The space of a cell. `own`: the cell's values of its parameters, the first trial. `place`: the source of its
    names."""

    cell: str
    space: Mapping[str, Dimension]
    own: Mapping[str, Any]
    make: Make
    place: Any


@dataclass(frozen=True)
class StudyPlan:
    """A study before its results: its cells, the baseline first, and a run of every cell at each seed that it may take,
    with the parameters as they are, or as tuning chose them. `wanted` (wanted.py) picks from them. `common`: changes of
    the preset by params.yaml and --set for every cell. `described`: further fields of its record (StudyRecord)."""

    name: str
    question: str
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    runs: tuple[Run, ...]
    described: dict[str, Any]
    common: dict[str, Any] = field(default_factory=dict)
    launcher: LauncherSettings = field(default_factory=LauncherSettings)
    source: str = ""  # its file, relative to the project
    on_finish: str = ""
    rule: Chosen[SeedCounts] | None = None  # for its seeds; None: all
    tuning: Tuning | None = None  # trials come before its own runs
    spaces: tuple[CellSpace, ...] = ()  # of the cells that are tuned or searched
    search: Search | None = None  # its runs are the trials of one cell
    choose: Callable[[Mapping[str, Any]], StudyPlan] | None = None  # cell -> chosen values -> the study with these

    @property
    def baseline(self) -> Cell:
        """The cell that all others are compared with."""
        return self.cells[0]

    def of(self, cell: str) -> list[Run]:
        return [run for run in self.runs if run.cell == cell]

    def record(
        self, runs: Iterable[Run], trials: Iterable[Run] = (), tuning: Mapping[str, Any] | None = None
    ) -> StudyRecord:
        """Return its study.json with these runs; nothing is written."""
        runs = [*runs]
        taken = {run.seed for run in runs}
        return StudyRecord(
            name=self.name,
            question=self.question,
            baseline=self.baseline.name,
            cells=tuple(
                StudyCell(
                    c.name,
                    c.title,
                    c.system,
                    json.loads(json.dumps(c.changes)),
                    c.paper,
                    {**c.points} if "axes" in self.described else {},
                )
                for c in self.cells
            ),
            seeds=tuple(seed for seed in self.seeds if not self.rule or not taken or seed in taken),
            runs=_recorded(runs),
            trials=_recorded(trials),
            tuning=dict(tuning or {}),
            source=self.source,
            common=json.loads(json.dumps(self.common)),
            **self.described,
        )


def _recorded(runs: Iterable[Run]) -> tuple[StudyRun, ...]:
    return tuple(StudyRun(run.cell, run.seed, run.run_key, run.name, run.trial) for run in runs)
