"""What a report of a study is made of: its runs, curves and comparisons, read once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from realm_lab.errors import UserError
from realm_lab.reporting.study_comparison import MetricResult, Scores, compare_study, study_rows
from realm_lab.reporting.table import Collection, collect, collect_design, curves_table, results_table
from realm_lab.reporting.tuning import Tuned, tune
from realm_lab.tracking.study_record import StudyRecord, read_study_record, study_folder


class StudyContents:
    """Everything that is read of a study, once."""

    def __init__(self, runs: Path, name: str):
        path = study_folder(runs, name) / "study.json"
        if not path.exists():
            known = ", ".join(sorted(p.parent.name for p in (Path(runs) / "studies").glob("*/study.json")))
            raise UserError(
                f"{path}: no such study has been swept; run `realm-lab sweep experiments/{name}.yaml`"
                + (f" (there are: {known})" if known else "")
            )
        self.study: StudyRecord = read_study_record(path)
        self.collection: Collection = collect(Path(runs), name)
        self.points = curves_table(self.collection)
        self.rows = study_rows(self.collection, results_table(self.collection), self.points)
        scores = Scores()
        self.results: list[MetricResult] = compare_study(self.study, self.collection, self.rows, scores)
        self.grid: Collection | None = None  # the runs at other values of the tuned parameter
        self.tuned: Tuned | None = None
        if self.study.tuning is not None:
            self._tune(scores)

    def _tune(self, scores: Scores) -> None:
        tuning, study = self.study.tuning, self.study.everything()
        assert tuning is not None
        own = {cell.name for cell in self.study.cells}
        cells = tuple(cell for cell in study.cells if cell.name not in own)
        design = replace(study, cells=cells, runs=tuning.runs, seeds=tuning.seeds)
        self.grid = collect_design(self.collection.runs_folder, design, [])
        points = curves_table(self.grid, ("pretrain",))
        rows = study_rows(self.grid, results_table(self.grid), points)
        everything = replace(self.collection, runs=[*self.collection.runs, *self.grid.runs])
        self.tuned = tune(
            self.study,
            tuning,
            everything,
            pd.concat([frame for frame in (self.rows, rows) if len(frame)] or [self.rows], ignore_index=True),
            pd.concat([frame for frame in (self.points, points) if len(frame)] or [self.points], ignore_index=True),
            scores,
        )

    @property
    def cells(self) -> list[tuple[str, str]]:
        """(name, title), the baseline first."""
        ordered = sorted(self.study.cells, key=lambda cell: cell.name != self.study.baseline)
        return [(cell.name, cell.title) for cell in ordered]

    @property
    def pretrained(self) -> list[tuple[str, str]]:
        """The cells with a pre-training of their own; one that another cell has already is left out."""
        seen: set[tuple[str, ...]] = set()
        found = []
        for name, title in self.cells:
            stages = tuple(run.record.stages.get("pretrain", "") for run in self.collection.of(name))
            if any(stages) and stages not in seen:
                seen.add(stages)
                found.append((name, title))
        return found
