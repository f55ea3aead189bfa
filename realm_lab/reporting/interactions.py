"""Whether one axis of a study changes what the other does: differences of differences, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence

from realm_lab.metrics import Metric
from realm_lab.reporting.comparison import MetricResult, points_of
from realm_lab.reporting.family import judge
from realm_lab.reporting.rendering import interval, number, signed
from realm_lab.reporting.statistics import Comparison, compare
from realm_lab.reporting.tables import Rows
from realm_lab.reporting.verdict import words
from realm_lab.tracking.study_record import StudyRecord


def interaction_rows(study: StudyRecord, results: Sequence[MetricResult]) -> Rows:
    """A row for each measure of quality and each pair of points beside the baseline's; empty without two axes. All rows
    are one family of tests, apart from that of the cells."""
    base = points_of(study, study.cell(study.baseline)) if len(study.axes) == 2 else None
    if base is None:
        return []
    first, second = study.axes
    found: dict[tuple[str, str, str], tuple[Metric, Comparison]] = {}
    for result in (result for result in results if not result.is_cost):
        at = {tuple(p.values()): cell.values for cell in result.cells if (p := points_of(study, cell.cell))}
        for one in (point for point in study.axes[first] if point != base[first]):
            for other in (point for point in study.axes[second] if point != base[second]):
                corners = [at.get((a, b), {}) for a in (one, base[first]) for b in (other, base[second])]
                seeds = sorted(set.intersection(*map(set, corners)))
                here = {seed: corners[0][seed] - corners[2][seed] for seed in seeds}
                at_base = {seed: corners[1][seed] - corners[3][seed] for seed in seeds}
                if compared := compare(here, at_base):
                    found[result.metric.name, one, other] = result.metric, compared
    rows = []
    for (_, one, other), judged in judge(found, study.delta).items():
        digits, compared = judged.metric.digits, judged.comparison
        rows.append(
            {
                "metric": judged.metric.title,
                words(first): one,
                words(second): other,
                "n": str(len(compared.seeds)),
                "difference of differences": signed(compared.mean, digits),
                "95 %": interval(compared.interval, digits),
                "corrected p (smallest)": f"{number(judged.corrected_p)} ({number(compared.smallest_p)})",
                "finding": f"{judged.finding} ({judged.detail})" if judged.detail else judged.finding,
            }
        )
    return rows
