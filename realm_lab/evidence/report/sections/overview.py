"""The question of a study and its answer in sentences (templates/verdict.j2).

Nothing reads this text back. The same findings as fields are in summary.json.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from realm_lab.evidence.report.comparison import CellResult, Gap, MetricResult
from realm_lab.evidence.report.rendering import render, words
from realm_lab.evidence.report.report_data import Report
from realm_lab.evidence.report.section import ReportSection
from realm_lab.evidence.report.tables import coverage
from realm_lab.evidence.statistics.family import Finding, Kind
from realm_lab.evidence.statistics.wording import bound, number, percent, signed

KNOWLEDGE = "corpus.files.knowledge"  # the files of the passages that a system searches
FEW = {2: "two", 3: "three", 4: "four", 5: "five"}  # numbers of seeds that are too few for a finding


class Verdict(NamedTuple):
    """`lead`: one sentence that answers the question; `rest`: further sentences; `missing`: the declared metrics that
    no run measured."""

    lead: str
    rest: str = ""
    missing: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


class Member(NamedTuple):
    """A cell, a point or an interaction, in words."""

    title: str
    value: str
    amount: float  # the number that `value` shows


class Side(NamedTuple):
    """Findings of one kind; those with too few seeds also agree in direction and number of seeds."""

    kind: Kind
    direction: Kind | None  # that all seeds agree on
    members: list[Member]  # the strongest first
    seeds: int  # the most seeds of a finding
    bound: str  # the largest difference that does not matter, with its unit

    @property
    def range(self) -> tuple[str, str]:
        """The lowest and the highest value."""
        ordered = sorted(self.members, key=lambda member: member.amount)
        return ordered[0].value, ordered[-1].value


class Overview(ReportSection):
    """The question, the answer by the first metric, and differences in other metrics."""

    name = "overview"
    group = ""
    template = """# {{ report.record.question or report.data.title }}

{% for confound in report.data.confounds %}
> **Attention, this voids the comparison.** {{ confound }}

{% endfor %}
**{{ section.verdict.lead }}**{% for text in section.verdict[1:] if text %} {{ text }}{% endfor %}
"""

    @functools.cached_property
    def verdict(self) -> Verdict:
        """The answer in words."""
        results = self.report.compared
        absent = [f"{one.metric.title} ({'; '.join(one.reasons)})" for one in results[1:] if not one.is_measured]
        return _verdict(self.report)._replace(missing=f"Not measured: {', '.join(absent)}." if absent else "")

    def data(self) -> dict[str, Any]:
        record, verdict = self.report.record, self.verdict
        found = {"study": record.name, "question": record.question, "lead": verdict.lead, "verdict": str(verdict)}
        more = {"missing": verdict.missing} if verdict.missing else {}
        return found | {"coverage": coverage(self.report.results)} | more


def _verdict(report: Report) -> Verdict:
    study, results = report.record, report.compared
    first = results[0] if results else None
    if first is None or not first.baseline.values:
        base = first.baseline if first else None
        found = {"gap": base.gap, "why": base.reason} if base else {"gap": Gap.NO_DATA, "why": ""}
        if is_absent := first is not None and not first.is_measured:
            found = {"gap": Gap.NOT_MEASURED, "why": "; ".join(first.reasons)}
        return _sentences(answered=False, unmeasured=is_absent, metric=first.metric.title if first else "", **found)
    digits, base_cell = first.metric.digits, study.cell(study.baseline)
    effects = report.effects
    others = [cell for cell in first.cells if cell is not first.baseline]
    compared = [
        (cell.finding, Member(cell.cell.title, _value(cell, first), cell.mean))
        for cell in others
        if cell.finding and cell.mean is not None
    ]
    sides = _sides(compared)
    points = [(e.axis, e.finding, Member(e.point, signed(e.finding.size, digits), e.finding.size)) for e in effects]
    changes = []
    for one in (one for one in report.interactions if one.metric == first.metric):
        where = f"{one.first} at {words([*study.axes][1])} {one.second}"
        value = f"{signed(one.here, digits)} instead of {signed(one.at_base, digits)}"
        changes.append((one.finding, Member(where, value, one.here)))
    judged = [(effect.finding, effect.point) for effect in effects] or [(one, member.title) for one, member in compared]
    return _sentences(
        answered=True,
        metric=first.metric.title,
        better={"up": Kind.HIGHER, "down": Kind.LOWER}.get(first.metric.better),
        are_systems=all(cell.cell.system != base_cell.system for cell in others),
        baseline=base_cell.title,
        mean=number(first.baseline.mean, digits),
        sides=sides,
        few=[FEW[seeds] for seeds in sorted({side.seeds for side in sides if side.kind is Kind.TOO_FEW_SEEDS} - {1})],
        cells=len(others),
        gaps=[{"title": cell.cell.title, "gap": cell.gap, "why": cell.reason} for cell in others if cell.gap],
        other_files=[cell.cell.title for cell in others if cell.finding and KNOWLEDGE in cell.cell.changes],
        skewed=[
            {"title": title, "value": percent(finding.false_alarms)}
            for finding, title in judged
            if finding.is_significant and finding.is_skewed
        ],
        axes=[
            {"name": words(axis), "sides": _sides([(found, point) for one, found, point in points if one == axis])}
            for axis in study.axes
            if effects
        ],
        interactions=_sides(changes),
        elsewhere=[] if effects else _elsewhere(results),
    )


def _value(cell: CellResult, result: MetricResult) -> str:
    """Return the mean of a cell, and the baseline's mean over the shared seeds if its mean over all seeds differs."""
    digits = result.metric.digits
    shown, base = number(cell.mean, digits), number(result.baseline.mean, digits)
    theirs = number(cell.finding.comparison.means[1], digits) if cell.finding else base
    return shown if theirs == base else f"{shown} against {theirs} over the same seeds"


def _sentences(**values: Any) -> Verdict:
    """Render templates/verdict.j2, which has one sentence on each line."""
    lines = [" ".join(line.split()) for line in render("verdict.j2", **values).splitlines()]
    lead, *rest = [line[0].upper() + line[1:] for line in lines if line]
    return Verdict(lead, " ".join(rest))


def _sides(found: Sequence[tuple[Finding, Member]]) -> list[Side]:
    """Return findings by kind, in the order of Kind."""
    groups: dict[tuple[int, str, int], list[tuple[Finding, Member]]] = {}
    order = [*Kind]
    for finding, member in sorted(found, key=lambda one: -abs(one[0].size)):
        way, seeds = "", 0
        if finding.kind in (Kind.TOO_FEW_SEEDS, Kind.ONE_PAIR):
            way, seeds = finding.direction or "~", -finding.seeds
        groups.setdefault((order.index(finding.kind), way, seeds), []).append((finding, member))
    sides = []
    for (_, same_way, _), members in sorted(groups.items()):
        first, seeds = members[0][0], max(finding.seeds for finding, _ in members)
        direction = first.direction if same_way else None
        sides.append(Side(first.kind, direction, [member for _, member in members], seeds, bound(first)))
    return sides


def _elsewhere(results: list[MetricResult]) -> list[dict[str, Any]]:
    """Return further measures that differ, for cells that do not differ from the baseline in the first metric."""
    alike = {cell.cell.name for cell in results[0].cells if cell.finding and not cell.finding.is_significant}
    found = []
    for result in (result for result in results[1:] if not result.is_cost):
        cells = [(cell.cell, cell.finding) for cell in result.cells if cell.cell.name in alike and cell.finding]
        for way in (Kind.LOWER, Kind.HIGHER):
            members = [
                {"title": cell.title, "value": signed(finding.size, result.metric.digits)}
                for cell, finding in cells
                if finding.kind is way and not finding.is_exploratory
            ]
            if members:
                found.append({"metric": result.metric.title, "way": way, "members": members})
    return found
