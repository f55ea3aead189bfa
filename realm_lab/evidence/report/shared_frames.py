"""The frames of `realm_lab.results` and `realm_lab.predictions`, with the parameters that cells change as columns."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from realm_lab.evidence.report.frames import StudyFrames, frame
from realm_lab.records.files import read_json_lines
from realm_lab.records.parameters import flat
from realm_lab.records.study import StudyRecord
from realm_lab.records.yaml_file import parse_yaml

if TYPE_CHECKING:
    import pandas as pd

KEYS = ["cell", "seed"]


def changed(record: StudyRecord, study: StudyFrames | None = None) -> pd.DataFrame:
    """Return a row for each cell: its name, its system, the points of the axes, and every parameter that a cell
    changes.

    A value that a cell does not change comes from its runs; without runs (`study` is None) only axes have such values.
    """
    names = list(dict.fromkeys(name for cell in record.cells for name in cell.changes))
    known = {run.cell: flat(run.params) for run in (study.runs if study else ())}
    rows = []
    for cell in record.cells:
        points: dict[str, Any] = dict(cell.points)
        points |= {
            axis: copy.deepcopy(parse_yaml(point, axis)) for axis, point in points.items() if axis in names
        }  # without the path and line of parsed values
        values = known.get(cell.name, {}) | cell.changes
        row: dict[str, Any] = {"cell": cell.name, "system": cell.system} | points
        rows.append(row | {name: values.get(name, points.get(name)) for name in names})
    return frame(rows)


def with_changes(results: pd.DataFrame, changes: pd.DataFrame) -> pd.DataFrame:
    """Return the results with the columns of `changed` after the columns that identify a run."""
    joined = results.merge(changes, on="cell", how="left", validate="many_to_one")
    columns = list(results.columns)
    first = columns[: columns.index("status") + 1]
    ordered = [*first, *changes.columns.drop("cell"), *results.columns.drop(first)]
    return joined[ordered].copy()  # in one block: pandas warns if columns are added to a frame of many blocks


def all_predictions(study: StudyFrames) -> pd.DataFrame:
    """A row for each test question of each complete run, as in predictions.jsonl."""
    rows = [
        {"cell": run.cell, "seed": run.seed} | row
        for run in study.runs
        if run.is_complete and (path := run.folder([*run.stages][-1]).path / "eval" / "predictions.jsonl").exists()
        for row in read_json_lines(path)
    ]
    return frame(rows, columns=None if rows else KEYS)
