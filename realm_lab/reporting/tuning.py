"""A study at each cell's best value of its tuned parameter: the grid, what is chosen, and whether the answer changes.

The choice is by a measure of development data, never of test data, and only from equal budgets: every value of a cell
with every seed of the grid.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from realm_lab.metrics import CURVES, curve, metric
from realm_lab.params.load import show
from realm_lab.reporting.comparison import MetricResult, Scores, as_json, compare_cells
from realm_lab.reporting.frames import StudyFrames, summarise
from realm_lab.reporting.rendering import NOTHING, mean_sd
from realm_lab.reporting.tables import tuned_rows
from realm_lab.reporting.verdict import sentences, verdict, words
from realm_lab.tracking.study_record import StudyCell, StudyRecord, StudyTuning


class GridRow(NamedTuple):
    """One cell that pre-trains. `found`: for each value of the grid, seed -> the measure that chooses."""

    cell: StudyCell
    found: list[dict[int, float]]
    missing: list[str]  # "VALUE, seed N"
    chosen: int | None  # the place of the best value; None as long as something is missing


class Tuned(NamedTuple):
    """A study at its cells' best values.

    `results` is empty as long as the baseline has no best value; `equal` has the same metrics on the same seeds, with
    every cell at its own value.
    """

    study: StudyRecord
    tuning: StudyTuning
    grid: list[GridRow]
    results: list[MetricResult]
    equal: list[MetricResult]

    @property
    def chosen(self) -> dict[str, str]:
        """cell -> its best value, for those that have one."""
        return {row.cell.name: show(self.tuning.values[row.chosen]) for row in self.grid if row.chosen is not None}


def tune(study: StudyFrames) -> Tuned | None:
    """Choose each cell's value and compare the cells there; None for a study without a grid."""
    record, tuning = study.record, study.record.tuning
    if tuning is None:
        return None
    of_grid = {cell.of for cell in tuning.cells}
    grid = [_grid_row(study, cell, tuning) for cell in record.cells if cell.name in of_grid]
    # what the runs of a cell at its best value are called -> the cell; one without pre-training has one value only
    cells = {cell.name: cell.name for cell in record.cells if cell.name not in of_grid}
    for row in grid:
        if row.chosen is not None:
            cells[tuning.name_at(row.cell.name, tuning.values[row.chosen])] = row.cell.name
    if record.baseline not in cells.values():
        return Tuned(record, tuning, grid, [], [])
    equal = study.results[study.results["seed"].isin(tuning.seeds)]
    at_best = equal.assign(cell=equal["cell"].map(cells)).dropna(subset=["cell"])
    scores = Scores([replace(run, cell=cells[run.cell]) for run in study.runs if run.cell in cells])
    found = compare_cells(record, at_best, record.metrics, scores)
    return Tuned(record, tuning, grid, found, compare_cells(record, equal, record.metrics))


def best(found: list[dict[int, float]], own: int) -> int:
    """The place of the value with the highest mean; of equal ones the cells' own, then the first."""
    means = [sum(values.values()) / len(values) for values in found]
    return max(range(len(means)), key=lambda place: (means[place], place == own, -place))


def tuned_verdict(tuned: Tuned) -> str:
    """The study's answer at the best values, and whether it is the same as all else equal; "" without a grid's end."""
    if not tuned.results or not tuned.results[0].baseline.values:
        return ""
    tuning, own = tuned.tuning, show(tuned.tuning.own)
    is_complete = all(row.chosen is not None for row in tuned.grid)
    answer = verdict(tuned.study, tuned.results)
    found = sentences(
        "tuned_verdict.j2",
        parameter=words(tuning.parameter),
        seeds=seeds_text(tuning.seeds),
        is_same=is_complete and {*tuned.chosen.values()} == {own},
        own=own,
        others=" or ".join(show(value) for value in tuning.values if value != tuning.own),
        answer=str(answer)[0].lower() + str(answer)[1:],
    )
    return str(found)


def tuned_content(tuned: Tuned) -> dict[str, Any]:
    """What the template of a study says of the grid."""
    tuning, own, short = tuned.tuning, show(tuned.tuning.own), words(tuned.tuning.parameter)
    of_grid = {row.cell.name for row in tuned.grid}
    return {
        "tuning": tuning,
        "short": short,
        "values": " and ".join(show(value) for value in tuning.values),
        "own": own,
        "by": f"{curve(tuning.by).title} at the end of pre-training" if is_curve(tuning) else metric(tuning.by).title,
        "is_curve": is_curve(tuning),
        "seeds": seeds_text(tuning.seeds),
        "untuned": [cell.title for cell in tuned.study.cells if cell.name not in of_grid],
        "missing": [(row.cell.title, "; ".join(row.missing)) for row in tuned.grid if row.missing],
        "grid": [_shown(row, tuning) for row in tuned.grid],
        "results": [
            (at_best.metric.title, tuned_rows(at_best, equal, tuned.chosen, short, own))
            for at_best, equal in zip(tuned.results, tuned.equal, strict=True)
        ],
    }


def tuned_json(tuned: Tuned) -> dict[str, Any]:
    """For summary.json: the grid with what was chosen, and the comparisons there."""
    tuning = tuned.tuning
    grid = {
        row.cell.name: {
            "means": [summary.mean if (summary := summarise(found.values())) else None for found in row.found],
            "chosen": None if row.chosen is None else tuning.values[row.chosen],
            "missing": row.missing,
        }
        for row in tuned.grid
    }
    return {
        "parameter": tuning.parameter,
        "values": list(tuning.values),
        "by": tuning.by,
        "seeds": list(tuning.seeds),
        "grid": grid,
        "comparisons": as_json(tuned.results),
    }


def seeds_text(seeds: tuple[int, ...]) -> str:
    """ "seeds 0, 1"."""
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"


def _grid_row(study: StudyFrames, cell: StudyCell, tuning: StudyTuning) -> GridRow:
    found, missing = [], []
    for value in tuning.values:
        measured = _measured(study, tuning.name_at(cell.name, value), tuning)
        values = {seed: number for seed, number in measured.items() if seed in tuning.seeds}
        found.append(values)
        missing += [f"{show(value)}, seed {seed}" for seed in tuning.seeds if seed not in values]
    if missing or not tuning.seeds:
        return GridRow(cell, found, missing or ["any seed"], None)
    own = tuning.values.index(tuning.own)
    return GridRow(cell, found, [], best(found, own))


def is_curve(tuning: StudyTuning) -> bool:
    """Whether the measure that chooses is a curve of pre-training, and not a result."""
    return tuning.by in CURVES


def _measured(study: StudyFrames, cell: str, tuning: StudyTuning) -> dict[int, float]:
    """What chooses, seed -> value, of the runs of a cell that have it: the end of a curve, or a result."""
    if not is_curve(tuning):
        return {run.seed: run.values[tuning.by] for run in study.of(cell) if tuning.by in run.values}
    done = {run.seed for run in study.of(cell) if run.has_finished("pretrain")}
    ends = study.curves[(study.curves["metric"] == tuning.by) & (study.curves["cell"] == cell)]
    last = ends.groupby("seed")["value"].last()
    return {int(seed): float(end) for seed, end in last.items() if seed in done}


def _shown(row: GridRow, tuning: StudyTuning) -> dict[str, str]:
    shown = {"cell": row.cell.title}
    for place, (value, found) in enumerate(zip(tuning.values, row.found, strict=True)):
        shown[show(value)] = mean_sd(summarise(found.values())) + " ✓" * (place == row.chosen)
    return shown | {"best": NOTHING if row.chosen is None else show(tuning.values[row.chosen])}
