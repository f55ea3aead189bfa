"""A study at each cell's best value of its tuned parameter: the grid, what is chosen, and whether the answer changes.

The choice is by a curve of pre-training on dev entities, never by a result, and only from equal budgets: every value of
a cell with every seed of the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd

from realm_lab.params.load import show
from realm_lab.reporting.document import NOTHING, Block, Table, Text, number
from realm_lab.reporting.statistics import order_agreement
from realm_lab.reporting.study_comparison import MetricResult, Scores, as_json, compare_study, verdict
from realm_lab.reporting.table import Collection, summarise
from realm_lab.tracking.study_record import StudyCell, StudyRecord, StudyRun, StudyTuning

CURVES = {
    "cloze_exact_match": "cloze exact match",
    "cloze_log_likelihood": "log p(y|x) of held-out sentences",
    "recall_at_1": "zero-shot recall@1",
    "recall_at_5": "zero-shot recall@5",
    "recall_at_20": "zero-shot recall@20",
    "retrieval_utility": "retrieval utility",
    "retrieval_utility_top1": "utility of the top passage",
    "retrieval_utility_best": "utility of the best candidate",
}


class GridRow(NamedTuple):
    """One cell that pre-trains. `found`: for each value of the grid, seed -> the curve's end."""

    cell: StudyCell
    found: list[dict[int, float]]
    missing: list[str]  # "VALUE, seed N"
    chosen: int | None  # the place of the best value; None as long as something is missing


class Tuned(NamedTuple):
    """A study at its cells' best values. `results` is empty as long as the baseline has none.

    `equal` has the same metrics and seeds, all else equal.
    """

    study: StudyRecord  # whose runs are those at the best values, under the cells' own names
    tuning: StudyTuning
    grid: list[GridRow]
    results: list[MetricResult]
    equal: list[MetricResult]


def tune(
    study: StudyRecord,
    tuning: StudyTuning,
    collection: Collection,
    rows: pd.DataFrame,
    points: pd.DataFrame,
    scores: Scores,
) -> Tuned:
    """Choose each cell's value and compare the cells there.

    Args:
        study: with its cells as they are.
        tuning: its grid.
        collection: all runs, those of the grid by their own names.
        rows: the results of these (`study_rows`).
        points: their curves (`curves_table`).
        scores: for each question.
    """
    grid = [_grid_row(cell, tuning, collection, points) for cell in study.cells if cell.system != "warm_start"]
    chosen = {row.cell.name: tuning.values[row.chosen] for row in grid if row.chosen is not None}
    names = {cell.name: cell.name for cell in study.cells if cell.system == "warm_start"}
    names |= {cell: tuning.name_at(cell, value) for cell, value in chosen.items()}
    view = _view(study, tuning, names)
    if study.baseline not in names:
        return Tuned(view, tuning, grid, [], [])
    cells = {name: cell for cell, name in names.items()}
    runs = [
        replace(run, label=cells[run.label])
        for run in collection.runs
        if run.label in cells and run.record.seed in tuning.seeds
    ]
    tuned_rows = rows[rows["label"].isin(cells) & rows["seed"].isin(tuning.seeds)]
    tuned_rows = tuned_rows.assign(label=tuned_rows["label"].map(cells))
    of_seeds = rows[rows["seed"].isin(tuning.seeds)]
    found = compare_study(view, replace(collection, runs=runs, seeds=list(tuning.seeds)), tuned_rows, scores)
    return Tuned(view, tuning, grid, found, compare_study(view, collection, of_seeds, None))


def best(found: list[dict[int, float]], own: int) -> int:
    """The place of the value with the highest mean; of equal ones the cells' own, then the first."""
    means = [sum(values.values()) / len(values) for values in found]
    return max(range(len(means)), key=lambda place: (means[place], place == own, -place))


def tuned_verdict(tuned: Tuned) -> str:
    """The study's answer at the best values, and whether it is the same as all else equal; "" without a grid's end."""
    if not tuned.results or not tuned.results[0].cells[0].values:
        return ""
    where = f"At each cell's best {_short(tuned.tuning)}"
    own = show(tuned.tuning.own)
    if all(row.chosen is not None for row in tuned.grid) and {*chosen_values(tuned).values()} == {own}:
        others = " or ".join(show(value) for value in tuned.tuning.values if value != tuned.tuning.own)
        return (
            f"{where} the answer is the same: no cell does better on dev entities at {others} than at {own} "
            f"({_seeds(tuned.tuning)})."
        )
    answer = verdict(tuned.study, tuned.results).removeprefix(f"{tuned.study.question} ")
    return f"{where} (chosen on dev entities; {_seeds(tuned.tuning)}): {answer[0].lower()}{answer[1:]}"


def tuned_blocks(tuned: Tuned, tables: list[Block]) -> list[Block]:
    """The grid, then `tables` of the comparison at the best values, then what changes."""
    tuning = tuned.tuning
    values = " and ".join(show(value) for value in tuning.values)
    left = [cell.title for cell in tuned.study.cells if cell.system == "warm_start"]
    what = CURVES.get(tuning.by, tuning.by)
    text = (
        f"Every cell that pre-trains was run at {tuning.parameter} = {values} with {_seeds(tuning)}: the same budget "
        f"for every cell. Its best value is that with the highest mean {what} at the end of pre-training, measured on "
        f"dev entities alone; of equal ones it is {show(tuning.own)}, which all cells have above. Cells that differ in "
        "fine-tuning alone share their pre-training, and so their value."
    )
    if left:
        text += f" Not pre-trained, so the same at every value: {', '.join(left)}."
    blocks: list[Block] = [Text(text)]
    for row in tuned.grid:
        if row.missing:
            blocks.append(
                Text(
                    f"Incomplete grid, so no value is chosen for {row.cell.title}: no end of pre-training at "
                    f"{'; '.join(row.missing)}.",
                    missing=True,
                )
            )
    blocks.append(_grid_table(tuned, what))
    if not tuned.results:
        base = tuned.study.cell(tuned.study.baseline).title
        return [*blocks, Text(f"No comparison yet: the baseline, {base}, has no best value.", missing=True)]
    return [*blocks, *tables, *(Text(line) for line in what_changes(tuned))]


def what_changes(tuned: Tuned) -> list[str]:
    """On the first metric: which findings differ from those all else equal on the same seeds, and the order."""
    if not tuned.results:
        return []
    at_best, equal = tuned.results[0], tuned.equal[0]
    changed = [
        f"{one.cell.title}: {two.finding} (Δ {_delta(two)}) all else equal, {one.finding} (Δ {_delta(one)}) at its best"
        for one, two in zip(at_best.cells[1:], equal.cells[1:], strict=True)
        if one.finding != two.finding
    ]
    said = f"By {at_best.name}, on the same seeds: "
    said += f"the findings that change: {'; '.join(changed)}." if changed else "no finding changes."
    orders = [_order(result) for result in (equal, at_best)]
    if orders[0] == orders[1]:
        return [said, f"The order of the cells is the same: {' > '.join(orders[0])}."]
    means = {cell.cell.name: sum(cell.values.values()) / len(cell.values) for cell in equal.cells if cell.values}
    found = order_agreement({cell.cell.name: cell.values for cell in at_best.cells}, means)
    tau = f" (Kendall's tau {number(found.tau, 2)})" if found else ""
    return [
        said,
        f"The order of the cells changes{tau}: all else equal {' > '.join(orders[0])}; "
        f"each at its best {' > '.join(orders[1])}.",
    ]


def tuned_json(tuned: Tuned) -> dict[str, Any]:
    """For summary.json: the grid with what was chosen, and the comparisons there."""
    tuning = tuned.tuning
    grid = {
        row.cell.name: {
            "values": [
                {"value": value, "n": len(found), "mean": sum(found.values()) / len(found) if found else None}
                for value, found in zip(tuning.values, row.found, strict=True)
            ],
            "chosen": None if row.chosen is None else tuning.values[row.chosen],
            "missing": row.missing,
        }
        for row in tuned.grid
    }
    return {
        "parameter": tuning.parameter,
        "by": tuning.by,
        "seeds": list(tuning.seeds),
        "own_value": tuning.own,
        "grid": grid,
        "verdict": tuned_verdict(tuned),
        "changes": what_changes(tuned),
        "comparisons": as_json(tuned.results),
        "comparisons_all_else_equal": as_json(tuned.equal),
    }


def chosen_values(tuned: Tuned) -> dict[str, str]:
    """cell -> its best value, for those that have one."""
    values = tuned.tuning.values
    return {row.cell.name: show(values[row.chosen]) for row in tuned.grid if row.chosen is not None}


def _grid_row(cell: StudyCell, tuning: StudyTuning, collection: Collection, points: pd.DataFrame) -> GridRow:
    ends = points[(points["metric"] == tuning.by) & (points["stage"] == "pretrain")]
    found, missing = [], []
    for value in tuning.values:
        name = tuning.name_at(cell.name, value)
        done = {
            run.record.seed
            for run in collection.of(name)
            if (status := run.statuses.get("pretrain")) and status.state == "COMPLETE"
        }
        last: Mapping[Any, float] = ends[ends["label"] == name].groupby("seed")["value"].last().to_dict()
        values = {seed: float(last[seed]) for seed in tuning.seeds if seed in last and seed in done}
        found.append(values)
        missing += [f"{show(value)}, seed {seed}" for seed in tuning.seeds if seed not in values]
    if missing or not tuning.seeds:
        return GridRow(cell, found, missing or ["any seed"], None)
    return GridRow(cell, found, [], best(found, tuning.values.index(tuning.own)))


def _view(study: StudyRecord, tuning: StudyTuning, names: Mapping[str, str]) -> StudyRecord:
    """The study with the runs of `names`, cell -> what its runs at its best value are called."""
    cells = {name: cell for cell, name in names.items()}
    runs = tuple(
        StudyRun(cells[run.cell], run.seed, run.run_key, run.run)
        for run in study.everything().runs
        if run.cell in cells and run.seed in tuning.seeds
    )
    return replace(study, seeds=tuning.seeds, runs=runs, tuning=None)


def _grid_table(tuned: Tuned, what: str) -> Table:
    rows = []
    for row in tuned.grid:
        shown = {"cell": row.cell.title}
        for place, (value, found) in enumerate(zip(tuned.tuning.values, row.found, strict=True)):
            summary = summarise(found.values())
            text = NOTHING
            if summary:
                spread = f" ± {number(summary.sd)}" if summary.sd is not None else ""
                unequal = "" if summary.n == len(tuned.tuning.seeds) else f" ({summary.n} seeds)"
                text = f"{number(summary.mean)}{spread}{unequal}"
            shown[show(value)] = f"{text} ✓" if place == row.chosen else text
        shown["best"] = NOTHING if row.chosen is None else show(tuned.tuning.values[row.chosen])
        rows.append(shown)
    note = f"Mean ± standard deviation over {_seeds(tuned.tuning)}; ✓ marks the value that is chosen."
    caption = f"The grid: {what} on dev entities at the end of pre-training, by {tuned.tuning.parameter}."
    return Table(caption, pd.DataFrame(rows), notes=(note,))


def _order(result: MetricResult) -> list[str]:
    """Titles, the highest mean first; in the order of the study where they are equal."""
    known = [cell for cell in result.cells if cell.values]
    known.sort(key=lambda cell: -sum(cell.values.values()) / len(cell.values))
    return [cell.cell.title for cell in known]


def _delta(result: Any) -> str:
    return NOTHING if result.comparison is None else f"{result.comparison.mean:+.3f}".replace("-", "−")


def _short(tuning: StudyTuning) -> str:
    return tuning.parameter.rsplit(".", 1)[-1].replace("_", " ")


def _seeds(tuning: StudyTuning) -> str:
    return f"seed{'s' if len(tuning.seeds) > 1 else ''} {', '.join(map(str, tuning.seeds))}"
