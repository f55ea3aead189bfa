"""The cost of runs, and quality against it."""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any

from realm_lab.evidence.report.figures import Sketch, plane_figure
from realm_lab.evidence.report.frames import StudyFrames, column
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.report.sections.step_changes import lines_of
from realm_lab.evidence.report.sections.tuning import OPERATIONS
from realm_lab.evidence.report.tables import coverage, mean_of
from realm_lab.evidence.statistics.wording import NOTHING, number
from realm_lab.records.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd

    from realm_lab.evidence.report.report_data import Report

FEWEST = 4  # cells in a figure of cost; for fewer the table is enough
COSTS = (  # value of a run, its title, its scale, its digits
    ("device_hours", "device hours", 1.0, 3),
    ("training_teraflop", "10¹² operations", 1.0, 2),
    ("peak_memory_gibibytes", "memory, GiB", 1.0, 2),
    ("parameters", "10⁶ parameters", 1e6, 2),
)
OF_PRETRAINING = (  # curve whose end is shown, its title, its scale, its digits
    ("refresh_operations", "10¹² of refreshing", 1e12, 2),
    ("refresh_share_of_time", "refresh share of time", 1.0, 3),
)


class Cost(ReportSection):
    """Time, memory and operations, and quality against them."""

    name = "cost"
    heading = "Cost"
    note = """\
Minutes are means over the runs. A shared stage ran once and is counted in each run. Device hours are the time \
multiplied by the processes that shared a stage. Operations: matrix products and attention in training, the warm \
start included, summed over the logged steps. Memory: the peak of any process of a stage. Parameters: the weights \
that retrieve and answer. The time and operations of refreshing are part of pre-training.
"""

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each cell: mean minutes of a complete run by stage, the means of COSTS and of OF_PRETRAINING."""
        cost, results = self.report.data["cost"], self.report.results
        minutes = [cost[name]["minutes"] for name, _ in self.report.cells]
        stages = dict.fromkeys(stage for stages in sorted(minutes, key=len, reverse=True) for stage in stages)
        rows = []
        for name, title in self.report.cells:
            row = {"variant": title, "runs": str(coverage(results, name)["complete"])}
            for stage in stages:
                row[stage.replace("_", " ")] = number(cost[name]["minutes"].get(stage), 1)
            row["all"] = mean_of(column(results, name, "wall_seconds"), 60.0, 1)
            for value, heading, scale, digits in COSTS:
                row[heading] = mean_of(column(results, name, value), scale, digits)
            for metric, heading, scale, digits in OF_PRETRAINING:
                row[heading] = number(cost[name][metric] / scale, digits) if metric in cost[name] else NOTHING
            rows.append(row)
        unknown = {heading for _, heading, *_ in COSTS if all(row[heading] == NOTHING for row in rows)}  # in older runs
        return [{heading: value for heading, value in row.items() if heading not in unknown} for row in rows]

    @staticmethod
    def of_runs(study: StudyFrames) -> dict[str, Any]:
        """Return the mean minutes of a complete run by stage for each cell, and the cost of refreshing."""
        ends = study.curves.groupby(["cell", "metric", "seed"])["value"].last()
        found: dict[str, Any] = {}
        for name, _ in study.cells:
            known = [metric for metric, *_ in OF_PRETRAINING if (name, metric) in ends]
            found[name] = {"minutes": study.minutes(name)} | {one: float(ends[name, one].mean()) for one in known}
        return {"cost": found}

    def figures(self) -> list[Sketch]:
        """Return the first measure of quality against time, against operations if the study names them, and against the
        age of the index."""
        results = self.report.results
        quality = next((one.metric for one in self.report.compared if not one.is_cost and one.is_measured), None)
        if quality is None:
            return []
        minutes, age = results["wall_seconds"] / 60, results["index_staleness_steps"]
        found = [_trade_off(self.report, "cost", quality, minutes, "wall-clock time, minutes", fewest=FEWEST)]
        if OPERATIONS in self.report.record.metrics and OPERATIONS in results:
            found.append(
                _trade_off(self.report, "operations", quality, results[OPERATIONS], "operations of training, 10¹²")
            )
        if age.round(1).nunique() > 2:
            text = "mean age of the index over pre-training, steps"
            found.append(_trade_off(self.report, "staleness", quality, age, text, is_log=True))
        return [sketch for sketch in found if sketch]


def _trade_off(
    report: Report, name: str, quality: Metric, price: pd.Series, title: str, *, is_log: bool = False, fewest: int = 2
) -> Sketch | None:
    """Sketch a measure of quality against `price`, a cost of each run; None for fewer than `fewest` cells."""
    spots = report.results[["cell"]].assign(x=price, y=report.results[quality.name])
    if spots.dropna()["cell"].nunique() < fewest:
        return None
    caption = f"{quality.title} against {title}; light dots are runs, heavy ones the means of variants."
    alt = f"{quality.title} of each variant against its {title}"
    lines = lines_of(report.record)
    draw_it = partial(plane_figure, spots, report.cells, (title, quality.title), is_log=is_log, lines=lines)
    return Sketch.of(name, caption, alt, partial(draw_it, metric=quality), 1)
