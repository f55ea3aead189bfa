"""Changes during pre-training in a report: quality against their step, and how tightly they are paired."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from realm_lab.evidence.report.rendering import words
from realm_lab.evidence.report.section import ReportSection
from realm_lab.evidence.statistics.wording import number
from realm_lab.records.metrics import metric
from realm_lab.records.parameters import CHANGES, show
from realm_lab.records.study import StudyCell, StudyRecord

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 3  # pairs, for a spread


def families(record: StudyRecord) -> dict[str, dict[int, StudyCell]]:
    """Return change -> the cells with it, by its step of pre-training; 0 is a run with it from the start. Only changes
    that a cell makes at a later step."""
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


def lines_of(record: StudyRecord) -> dict[str, dict[str, str]]:
    """Return, by a title for each point of the second axis, the cells with their points of the first; in a study of
    changes during pre-training, by change, the cells with its step."""
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
    """Return, for each change during pre-training, the standard deviation over the seeds of the paired difference in
    the first metric, by its step, and a sentence about them; empty if there is none."""
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
    """The pairing of runs, by the step at which they change."""

    name = "step_changes"

    @functools.cached_property
    def found(self) -> dict[str, Any]:
        """Spread and sentence; empty if no cell changes during pre-training."""
        return changes_json(self.report.record, self.report.results)

    def data(self) -> dict[str, Any]:
        return {"step_changes": self.found} if self.found else {}

    @functools.cached_property
    def sentence(self) -> str:
        return str(self.found.get("sentence", ""))
