"""Quality against the step of a change during pre-training, and the spread of paired differences by this step."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

from realm_lab.evidence.report.figures import Panel, Sketch, bands_figure
from realm_lab.evidence.report.frames import frame
from realm_lab.evidence.report.rendering import words
from realm_lab.evidence.report.section import ReportSection
from realm_lab.evidence.statistics.intervals import t_interval
from realm_lab.evidence.statistics.wording import number
from realm_lab.records.metrics import metric
from realm_lab.records.parameters import CHANGES, show
from realm_lab.records.study import StudyCell, StudyRecord

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 3  # pairs, for a spread; steps, for a curve


def families(record: StudyRecord) -> dict[str, dict[int, StudyCell]]:
    """Return change -> {step of pre-training: the cell that makes the change there}; step 0: from the start. A change
    that no cell makes later than the start is left out."""
    found: dict[str, dict[int, StudyCell]] = {}
    late = set()
    for cell in record.cells:
        steps = {int(step): change for step, change in (cell.changes.get(CHANGES) or {}).items()}
        if cell.name == record.baseline or len(steps) > 1:
            continue
        own = {name: value for name, value in cell.changes.items() if name != CHANGES}
        (step, change), *_ = steps.items() or [(0, {})]
        own |= {f"pretrain.{name}": value for name, value in change.items()}
        system = [] if cell.system == record.cell(record.baseline).system else [cell.system]
        names = [f"{name.removeprefix('pretrain.').replace('_', ' ')} = {show(own[name])}" for name in sorted(own)]
        title = ", ".join([*system, *names])
        found.setdefault(title, {})[step] = cell
        late |= {title} if step else set()
    return {title: dict(sorted(cells.items())) for title, cells in found.items() if title in late}


def step_figure(record: StudyRecord, results: pd.DataFrame) -> Any:
    """Each metric over the step of the change, 0 for a change from the start: means over the seeds, with Student's 95 %
    intervals from three seeds on; the level line is the baseline."""
    changes = {title: {step: cell.name for step, cell in one.items()} for title, one in families(record).items()}
    steps = [step for cells in changes.values() for step in cells]
    base, rows = record.cell(record.baseline), []
    level = {base.title: dict.fromkeys((min(steps), max(steps)), base.name)} if steps else {}
    lines = level | changes
    shown = [metric(name) for name in record.metrics if name in results]
    for (title, cells), one in itertools.product(lines.items(), shown):
        for step, cell in cells.items():
            values = results.loc[results["cell"] == cell, one.name].dropna()
            if len(values):
                mean = float(values.mean())
                low, high = t_interval(values.tolist()) if len(values) >= FEWEST else (mean, mean)
                low = low if one.low is None else max(low, one.low)
                high = high if one.high is None else min(high, one.high)
                rows.append((title, one.name, step, len(values), mean, low, high))
    if not rows:
        return None
    panels = [Panel(one.name, one.title, one.unit) for one in shown]
    table = frame(rows, ["cell", "metric", "step", "seeds", "mean", "low", "high"])
    return bands_figure(
        table, panels, [(title, title) for title in lines], columns=3, step="pre-training step of the change"
    )


def lines_of(record: StudyRecord) -> dict[str, dict[str, str]]:
    """Return the lines of a figure, title -> {cell: its name}. With two axes, a line is a point of the second axis, and
    a cell is named by its point of the first. Otherwise a line is a change during pre-training, and a cell is named by
    the step of the change."""
    if len(record.axes) != 2:
        return {
            title: {cell.name: f"step {step}" if step else "start" for step, cell in cells.items()}
            for title, cells in families(record).items()
        }
    first, second = record.axes
    found: dict[str, dict[str, str]] = {}
    for cell in record.cells:
        if points := cell.points:
            found.setdefault(f"{words(second)} {points[second]}", {})[cell.name] = points[first]
    return found


def changes_json(record: StudyRecord, results: pd.DataFrame) -> dict[str, Any]:
    """Return `spread`, change -> step -> the standard deviation over the seeds of the paired difference in the first
    metric, and a `sentence` about these numbers; empty if no cell changes during pre-training."""
    if not record.metrics or record.metrics[0] not in results:
        return {}
    name, spread = record.metrics[0], dict[str, dict[int, float]]()
    values = results.pivot_table(index="seed", columns="cell", values=name)
    for title, cells in families(record).items():
        for step, cell in cells.items():
            if {record.baseline, cell.name} <= {*values.columns}:
                differences = (values[cell.name] - values[record.baseline]).dropna()
                if len(differences) >= FEWEST:
                    spread.setdefault(title, {})[step] = float(differences.std())
    parts = []
    for title, steps in spread.items():
        ends = (f"{number(value)} {f'from step {step}' if step else 'from the start'}" for step, value in steps.items())
        parts.append(f"{title} {', '.join(ends)}")
    engines = ", ".join(str(one) for one in sorted(results["engine_version"].dropna().unique()))
    sentence = (
        f"Standard deviation over the seeds of the paired difference in {metric(name).title}, by the step of "
        "pre-training at which a run changed (pairs share all steps before it; engine version "
        f"{engines}): {'; '.join(parts)}."
    )
    return {"spread": spread, "sentence": sentence} if spread else {}


class StepChanges(ReportSection):
    """The first figure of a study of changes, and the spread of paired differences by the step of a change."""

    name = "step_changes"
    group = ""

    @functools.cached_property
    def found(self) -> dict[str, Any]:
        """Spread and sentence; empty if no cell changes during pre-training."""
        return changes_json(self.report.record, self.report.results)

    def data(self) -> dict[str, Any]:
        return {"step_changes": self.found} if self.found else {}

    @functools.cached_property
    def sentence(self) -> str:
        return str(self.found.get("sentence", ""))

    def figures(self) -> list[Sketch]:
        report = self.report
        if max(map(len, families(report.record).values()), default=0) < FEWEST or not report.compared:
            return []
        first, base = report.compared[0].metric.title, report.record.cell(report.record.baseline).title
        title = f"{first} over the pre-training step of the change"
        caption = (
            f"{title}. Lines are means over the seeds, bands Student's 95 % intervals, from three seeds on. The level "
            f"line is {base}."
        )
        make = functools.partial(step_figure, report.record, report.results)
        return [Sketch.of("step_of_change", caption, title, make)]
