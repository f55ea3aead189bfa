"""The metrics of a study: table and figure of the first metric, of other metrics, and details of all metrics."""

from __future__ import annotations

import functools
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from realm_lab.evidence.report.comparison import MetricResult, as_json
from realm_lab.evidence.report.figures import Sketch
from realm_lab.evidence.report.figures_differences import FEWEST_FOR_MEAN, differences_figure
from realm_lab.evidence.report.frames import column
from realm_lab.evidence.report.rendering import seeds_text
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.statistics.intervals import Summary, summarise
from realm_lab.evidence.statistics.wording import (
    NOTHING,
    details,
    difference,
    false_alarms,
    in_short,
    interval,
    mean_sd,
    number,
    p_value,
    signed,
    without_empty,
)
from realm_lab.records.metrics import metric
from realm_lab.records.parameters import show

if TYPE_CHECKING:
    import pandas as pd

    from realm_lab.evidence.report.report_data import Report

REFERENCE = "bm25"  # group of results: BM25 on the same passages, which each run measures
MOST_PANELS = 3  # of the figure of other metrics


class FirstMetric(ReportSection):
    """The differences from the baseline in the first metric, drawn and in numbers, and the runs that they come from."""

    name = "first_metric"
    group = ""
    template = """{% for result in report.compared[:1] %}
**{{ metric(result) }}**

{{ table(rows) }}

{% else %}
No numbers yet: no run of the baseline has results.

{% endfor %}
{{ section.state }}
"""

    @functools.cached_property
    def rows(self) -> Rows:
        return [row for one in self.report.compared[:1] for row in result_rows(one, self.report.results)]

    def figures(self) -> list[Sketch]:
        return differences(self.report, _compared(self.report)[:1], "deltas")

    @property
    def state(self) -> str:
        """The seeds, the numbers of complete runs and of flags, the preset, and parameters set in all cells."""
        report, record, states = self.report, self.report.record, self.report.results["status"]
        seeds, flags = seeds_text(record.seeds), len(report.flags)
        parts = [report.data["title"]] if record.question else []
        parts += [seeds, f"{(states == 'COMPLETE').sum()} of {len(states)} runs complete"]
        counts = Counter(run["cell"] for run in report.data["runs"] for _ in run.get("flags", ()))
        cells = "; ".join(f"{counts[cell.name]} in {cell.title}" for cell in record.cells if cell.name in counts)
        parts += [f"{flags} flag{'s' * (flags != 1)} ({cells})"] if flags else []
        parts += [f"preset {', '.join(report.data['presets'])}"] if report.data["presets"] else []
        common = ", ".join(f"{name} = {show(value)}" for name, value in record.common.items())
        return " · ".join(parts + ([f"in every variant, over the preset: {common}"] if common else []))

    def data(self) -> dict[str, Any]:
        """Return all findings, the false alarms of their family, and the cells without a finding."""
        report = self.report
        gaps = {
            one.metric.name: {
                cell.cell.name: {"gap": cell.gap, "reason": cell.reason} for cell in one.cells if cell.gap
            }
            for one in report.compared
        }
        return {
            "comparisons": as_json(report.compared),
            "calibration": report.calibration and report.calibration.as_json(),
            "gaps": {name: cells for name, cells in gaps.items() if cells},
        }


class OtherMetrics(ReportSection):
    """The differences from the baseline in the other metrics, drawn and in numbers."""

    name = "other_metrics"
    template = """{% for result, table_rows in section.results %}
**{{ metric(result) }}**

{{ table(table_rows) }}

{% endfor %}
"""

    @property
    def heading(self) -> str:
        return f"Other metrics ({'; '.join(one.metric.title for one, _ in self.results)})"

    @functools.cached_property
    def results(self) -> list[tuple[MetricResult, Rows]]:
        """Each metric with its table."""
        return [(one, result_rows(one, self.report.results)) for one in self.report.compared[1:]]

    def figures(self) -> list[Sketch]:
        return differences(self.report, _compared(self.report)[1 : 1 + MOST_PANELS], "other_metrics")


class Details(ReportSection):
    """Ranges, power, intervals over questions and published numbers of each metric."""

    name = "details"
    heading = "Ranges, power and published numbers"
    group = "How certain"
    template = OtherMetrics.template

    @functools.cached_property
    def results(self) -> list[tuple[MetricResult, Rows]]:
        return [(one, detail_rows(one, self.report.results)) for one in self.report.compared]


class Reading(ReportSection):
    """The terms of the tables of metrics, and the false alarms of the study."""

    name = "reading"
    heading = "How to read these tables"
    group = "How certain"
    template = """{% if report.compared %}
- *finding*: *lower* and *higher* are significant (p ≤ .05). *Not significant* and *inconclusive* do not mean equal. \
With fewer than six seeds no difference can be significant.
{% if section.delta %}
- *equivalent*: two one-sided t-tests at 5 %, corrected among themselves by Holm's method, rule out a difference as \
large as the study declares to matter ({{ section.delta }}). *Inconclusive*: such a difference is neither \
established nor ruled out.
{% endif %}
- *difference*: mean over the seeds of the paired difference from the baseline. Its 95 % interval is Student's, \
which is correct for normally distributed differences and too narrow if a seed fails now and then. It needs three \
seeds. Intervals are not corrected for other comparisons: one can exclude zero although p is above .05, and p \
decides.
- *p*: exact sign-flip test over the seeds, corrected for all comparisons of the study (step-down max-T). *Smallest \
p*: the smallest that this many seeds can give. In a table marked *exploratory*, p is corrected for the variants of \
that metric only.
- *skewed*: the differences are so skewed that this test gives more than 7.5 % false alarms, not 5 %, even without \
other tests. Collapsed runs cause this.
- *minimum detectable difference*: the smallest true difference that this many seeds with this spread detect in 80 % \
of studies. *Seeds needed*: the number of seeds that detect a difference as large as the observed one in 80 % of \
studies.
- *interquartile mean*: the same difference without a quarter of the seeds at each end. *P(higher)*: the share of \
seeds in which the value is higher than the baseline's, equal ones by half.
- *95 %, questions*: bootstrap over articles of questions. It is about other questions for these trained models, not \
about other seeds.
{% if section.has_new_seeds %}
- *95 %, seeds and questions*: the same difference for other seeds and other questions together, by a crossed \
analysis of variance. The finding does not depend on it.
{% endif %}
{% for source in report.compared[0].cells | map(attribute="paper") | select | map(attribute="source") | unique %}
- *paper*: {{ source }}. Another data set: compare directions, not numbers.
{% endfor %}
{% for source in report.compared[0].cells | map(attribute="paper") | select
| map(attribute="later_source") | unique | select %}
- *later papers*: {{ source }}.
{% endfor %}

{{ section.false_alarms }}
{% endif %}
"""

    @property
    def delta(self) -> str:
        return ", ".join(f"{metric(name).title}: {largest:g}" for name, largest in self.report.record.delta.items())

    @property
    def false_alarms(self) -> str:
        """The false alarms of the study's family; "" if it has too few seeds."""
        return false_alarms(self.report.calibration) if self.report.calibration else ""

    @property
    def has_new_seeds(self) -> bool:
        """True if an interval is about other seeds and other questions."""
        cells = (cell for one in self.report.compared for cell in one.cells)
        return any(cell.finding and cell.finding.seeds_and_questions for cell in cells)


def _compared(report: Report) -> list[MetricResult]:
    """The metrics with a difference from the baseline."""
    return [one for one in report.compared if any(cell.finding for cell in one.cells)]


def differences(report: Report, shown: list[MetricResult], name: str) -> list[Sketch]:
    """Return the figure of the differences from the baseline in some metrics; figure `deltas` has the values too."""
    if not shown:
        return []
    findings = [cell.finding for result in shown for cell in result.cells if cell.finding]
    record, has_values = report.record, name == "deltas"
    base, titles = record.cell(record.baseline).title, ", ".join(result.metric.title for result in shown)
    text = "On the left the value of each seed, and their mean. On the right paired" if has_values else "Paired"
    text += f" differences from {base}. Ticks: {seeds_text(record.seeds)}"
    if max(finding.seeds for finding in findings) >= FEWEST_FOR_MEAN:
        text += "; dot and line: their mean with Student's 95 % interval"
        text += ", which is not corrected for other comparisons: it can exclude zero although p is above .05"
    cells = len({cell.cell.name for result in shown for cell in result.cells if cell.finding})
    alt = f"Differences of {cells} variant{'s' * (cells != 1)} from {base} in {titles}, with a mark for each seed"
    return [Sketch(name, f"{text}.", alt, partial(differences_figure, shown, has_values=has_values))]


def result_rows(result: MetricResult, results: pd.DataFrame) -> Rows:
    """Return the table of a metric: a row for each cell, the baseline first, and for BM25 if it was measured. Mean, n
    and collapsed runs are over the seeds of the difference, or over all seeds if the row has no difference. If no run
    collapsed, the column `collapsed` is left out."""
    digits, rows = result.metric.digits, []
    has_interval = " [95 % interval]" * any(cell.finding and cell.finding.interval for cell in result.cells)
    for cell in result.cells:
        finding, collapsed = cell.finding, column(results, cell.cell.name, "collapsed")
        seeds = finding.comparison.seeds if finding else [*cell.values]
        found = summarise(cell.values[seed] for seed in seeds)
        row = {"variant": cell.cell.title, "mean ± sd": mean_sd(found, digits, fewest=2)}
        row |= {"n": str(len(seeds)), "collapsed": str(sum(collapsed.get(seed, 0) > 0 for seed in seeds))}
        row[f"difference{has_interval}"] = difference(finding) if finding else NOTHING
        row["p"] = p_value(finding.corrected_p) if finding else NOTHING
        row["finding"] = in_short(finding) if finding else cell.gap or ""
        if not result.is_measured:
            row["finding"] = f"{cell.gap}: {cell.reason or result.reasons[0]}"
        if cell is result.baseline:
            row["finding"] = f"baseline, {row['finding']}" if cell.gap else "baseline"
        rows.append(row)
    if found := summarise(reference_values(results, result.metric.name).values()):
        row = {"variant": "BM25, the same passages", "mean ± sd": mean_sd(found, digits, fewest=2), "n": str(found.n)}
        rows.append(row | {"finding": "reference"})
    unused = set() if "collapsed" in results and results["collapsed"].any() else {"collapsed"}
    return [{key: value for key, value in row.items() if key not in unused} for row in rows]


def detail_rows(result: MetricResult, results: pd.DataFrame) -> Rows:
    """Return the details of a metric for each cell: range, power, intervals over questions, and published numbers."""
    rows = []
    for cell in result.cells:
        digits, finding, name = result.metric.digits, cell.finding, result.metric.name
        row = {"variant": cell.cell.title, "range": _range(summarise(cell.values.values()), digits)}
        row["smallest p"] = p_value(finding and finding.comparison.smallest_p)
        row |= details(finding, digits, "seeds")
        row["95 %, questions"] = interval(finding and finding.per_example, digits)
        row["95 %, seeds and questions"] = interval(finding and finding.seeds_and_questions, digits)
        row["paper"] = row["paper Δ"] = row["later papers"] = NOTHING
        if cell.paper and name in cell.paper.values:
            row["paper"] = number(cell.paper.values[name])
            row["paper Δ"] = signed(cell.paper.values[name] - cell.paper.baseline[name])
        if cell.paper and name in cell.paper.later:
            row["later papers"] = number(cell.paper.later[name])
        rows.append(row)
    if found := summarise(reference_values(results, result.metric.name).values()):
        row = {"variant": "BM25, the same passages", "range": _range(found, result.metric.digits)}
        rows.append(dict.fromkeys(rows[0], NOTHING) | row)
    return without_empty(rows)


def reference_values(results: pd.DataFrame, metric: str) -> dict[int, float]:
    """seed -> value of BM25; every run of a seed measures the same, so each seed counts once."""
    name = f"{REFERENCE}.{metric}"
    return dict(results.dropna(subset=[name]).groupby("seed")[name].first()) if name in results else {}


def _range(found: Summary | None, digits: int) -> str:
    return f"{number(found.min, digits)} to {number(found.max, digits)}" if found else NOTHING
