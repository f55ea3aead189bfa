"""A study before its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from realm_lab.engine.params.load import placed
from realm_lab.lab.launchers import LauncherSettings
from realm_lab.lab.rules.seeds import SeedCounts
from realm_lab.lab.rules.space import Dimension, Tuning
from realm_lab.lab.study import Search
from realm_lab.records.plugins import Plugin
from realm_lab.records.run import Run
from realm_lab.records.study import StudyCell, StudyRecord
from realm_lab.records.yaml_file import reach

Make = Callable[[Mapping[str, Any]], tuple[Run, ...]]
"""Values of a space -> the run of a trial for each seed. UserError: no valid combination."""


@dataclass(frozen=True)
class CellSpace:
    """The space of a cell. `start`: the cell's values of its parameters, the first trial. `written`: the space in the
    file."""

    cell: str
    space: Mapping[str, Dimension]
    start: Mapping[str, Any]
    make: Make
    written: Any

    def key(self, values: Mapping[str, Any]) -> str:
        """Return the key of the last stage of a trial: trials with the same one are one trial."""
        return [*self.make(values)[0].keys().values()][-1]

    def errors(self, *keys: str) -> AbstractContextManager[None]:
        """Attach the file and line of the space, or of a parameter in it, to errors that are raised inside."""
        return placed(reach(self.written, *keys), prefix=f"variant '{self.cell}': " if self.cell else "")


@dataclass(frozen=True)
class StudyPlan:
    """A study before its results: `design` is its record without runs, and `runs` has one of every cell at each seed
    that it may take, with the parameters as they are, or as tuning chose them. `wanted` (wanted.py) picks from these.
    """

    design: StudyRecord
    runs: tuple[Run, ...]
    launcher: LauncherSettings = field(default_factory=LauncherSettings)
    rule: Plugin[SeedCounts] | None = None  # for its seeds; None: all
    tuning: Tuning | None = None  # trials come before its own runs
    spaces: tuple[CellSpace, ...] = ()  # of the cells that are tuned or searched
    search: Search | None = None  # its runs are the trials of one cell
    choose: Callable[[Mapping[str, Any]], StudyPlan] | None = None  # cell -> chosen values -> the study with these

    @property
    def name(self) -> str:
        return self.design.name

    @property
    def cells(self) -> tuple[StudyCell, ...]:
        """Its cells, the baseline first; none of a search."""
        return self.design.cells

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds that it may take."""
        return self.design.seeds

    @property
    def baseline(self) -> StudyCell:
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
        seeds = tuple(seed for seed in self.seeds if not self.rule or not taken or seed in taken)
        cells = tuple(replace(cell, overrides={}) for cell in self.cells)
        return replace(
            self.design, cells=cells, seeds=seeds, runs=tuple(runs), trials=tuple(trials), tuning=dict(tuning or {})
        )
