"""The tuning of a study in its report: budgets, choices, and the expected best value by trials."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from realm_lab.evidence.report.figures import COLOURS, DASHES, Sketch, canvas, label_ends, wrapped
from realm_lab.evidence.report.rendering import seeds_text
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.statistics.tuning import expected_best
from realm_lab.evidence.statistics.wording import NOTHING, number
from realm_lab.records.metrics import CURVES, Metric, metric
from realm_lab.records.parameters import show
from realm_lab.records.study import StudyRecord

SAMPLERS = {"tpe": "TPE", "random": "random", "latin": "a Latin hypercube", "grid": "a grid"}
OPERATIONS = "training_teraflop"
EDGE = "†"


@dataclass(frozen=True)
class TunedCell:
    """One tuned cell. `expected`: the expected best value after 1, 2, ... trials; a failed trial counts as the metric's
    lower bound, or without a bound as the lowest value of a trial."""

    cell: str
    title: str
    trials: int
    failed: int
    as_it_is: float | None  # value of the first trial, whose parameters are the cell's
    best: float
    chosen: dict[str, Any]
    at_edge: list[str]
    expected: list[float]
    teraflop: float | None  # of one run, mean over the trials


def tuning_metric(record: StudyRecord) -> Metric:
    """The metric that decides which trial is chosen."""
    name = record.tuning["metric"]
    return CURVES.get(name) or metric(name)


def tuning_figure(cells: Sequence[TunedCell], title: str, seeds: int) -> Any:
    """Curves of the expected best value over trials, and over operations if these are known for all cells."""
    has_work = all(cell.teraflop for cell in cells)
    figure = canvas(3.4)
    places = figure.subplots(1, 1 + has_work, squeeze=False)[0]
    for order, cell in enumerate(cells):
        trials = range(1, cell.trials + 1)
        how: dict[str, Any] = {"color": COLOURS[order % len(COLOURS)], "linewidth": 1.8, "marker": ".", "markersize": 5}
        how |= {"linestyle": DASHES[order // len(COLOURS) % len(DASHES)]}
        places[0].plot(trials, cell.expected, **how)
        if cell.teraflop and has_work:
            places[1].plot([n * seeds * cell.teraflop for n in trials], cell.expected, **how)
    places[0].set(xlabel="trials", ylabel=wrapped(f"expected best {title}", 30), title="By trials")
    places[0].xaxis.get_major_locator().set_params(integer=True)
    if has_work:
        places[1].set(xlabel="operations of training, 10¹²", title="By operations")
    label_ends(figure, places[0], {cell.title: (cell.trials, cell.expected[-1]) for cell in cells})
    return figure


class Tuning(ReportSection):
    """Budgets, choices and the expected best value."""

    name = "tuning"
    heading = "Tuning"
    note = """\
*As it is*: the first trial, with the variant's parameters as they are. *Best of n*: the expected best of n \
trials, the mean over all orders of the trials (Dodge et al. 2019, section 3.1; without replacement, after Tang \
et al. 2020). A failed trial counts as the lowest value. Values are means over the development seeds, and higher \
than those of new seeds, because the best was chosen by them. *Chosen*: each value of its space; † is at an edge \
of it.
"""

    @functools.cached_property
    def cells(self) -> list[TunedCell]:
        """The tuned cells of the study, in its order; empty if it was not tuned."""
        record, found = self.report.record, []
        for cell in record.cells if record.tuning else ():
            one = record.tuning["cells"][cell.name]
            trials = one["trials"]
            means = [statistics.fmean(trial["by_seed"]) if trial["state"] == "complete" else None for trial in trials]
            known = [mean for mean in means if mean is not None]
            low = tuning_metric(record).low
            worst = min(known) if low is None else low
            work = [trial[OPERATIONS] for trial in trials if trial[OPERATIONS] is not None]
            found.append(
                TunedCell(
                    cell.name,
                    cell.title,
                    len(trials),
                    means.count(None),
                    means[0],
                    max(known),
                    trials[one["chosen"]]["values"],
                    one["at_edge"],
                    expected_best([worst if mean is None else mean for mean in means]),
                    statistics.fmean(work) if work else None,
                )
            )
        return found

    def data(self) -> dict[str, Any]:
        """Return budget, sentence and cells; the values of the trials by seed are in `design`."""
        if not self.cells:
            return {}
        kept = {name: self.report.record.tuning[name] for name in ("trials", "seeds", "metric", "sampler")}
        return {"tuning": kept | {"sentence": self.sentence, "cells": {one.cell: asdict(one) for one in self.cells}}}

    @functools.cached_property
    def sentence(self) -> str:
        """Return the budget, and the number of choices at an edge of their space."""
        if not self.cells:
            return ""
        tuning, cells = self.report.record.tuning, self.cells
        text = (
            f"Tuned: {tuning['trials']} trials for each variant by {tuning_metric(self.report.record).title} on "
            f"{seeds_text(tuning['seeds'])} ({SAMPLERS[tuning['sampler']]}; of equal trials the first). "
        )
        edges, chosen = sum(len(cell.at_edge) for cell in cells), sum(len(cell.chosen) for cell in cells)
        if not edges:
            return f"{text}No choice is at an edge of its space."
        return f"{text}At an edge of its space, so that a better value may lie outside: {edges} of {chosen} choices."

    @functools.cached_property
    def rows(self) -> Rows:
        cells, rows = self.cells, []
        digits = tuning_metric(self.report.record).digits if cells else 0
        for cell in cells:
            shown = dict.fromkeys([1, 2, (cell.trials + 1) // 2, cell.trials])
            row = {"variant": cell.title, "trials": f"{cell.trials}" + f", {cell.failed} failed" * bool(cell.failed)}
            row["as it is"] = number(cell.as_it_is, digits)
            row |= {f"best of {n}": number(cell.expected[n - 1], digits) for n in shown}
            row["operations of a run, 10¹²"] = number(cell.teraflop, 2)
            choices = []
            for name, value in cell.chosen.items():
                space = self.report.record.tuning["cells"][cell.cell]["space"][name]
                mark, is_list = EDGE * (name in cell.at_edge), "choices" in space
                tried = "/".join(map(show, space["choices"])) if is_list else f"{space['low']:g} to {space['high']:g}"
                choices.append(f"{name} = {show(value)}{mark} of {tried}")
            row["chosen"] = "; ".join(choices) or NOTHING
            rows.append(row)
        return rows

    def figures(self) -> list[Sketch]:
        cells = self.cells
        if not cells:
            return []
        title = tuning_metric(self.report.record).title
        by_work = " and by the operations of these trials' training" if all(cell.teraflop for cell in cells) else ""
        caption = (
            f"Expected best {title} by the number of trials{by_work}: the mean over all orders of the trials, on the "
            "development seeds that the choice depends on."
        )
        alt = f"Expected best {title} of {len(cells)} variants over the number of trials"
        seeds = len(self.report.record.tuning["seeds"])
        return [Sketch("tuning", caption, alt, lambda: tuning_figure(cells, title, seeds))]
