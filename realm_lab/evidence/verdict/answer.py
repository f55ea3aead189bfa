"""Verdicts on a table of runs of any program: each cell compared with a baseline, the decision, and Markdown.

The tests are the same as in realm_lab's reports. All metrics times all cells except the control are one family.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.errors import UserError, suggestion
from realm_lab.evidence.statistics.calibration import Calibration, calibrate
from realm_lab.evidence.statistics.family import Finding, Kind, judge
from realm_lab.evidence.statistics.intervals import summarise
from realm_lab.evidence.statistics.paired import Comparison, compare
from realm_lab.evidence.statistics.wording import (
    NOTHING,
    details,
    false_alarms,
    in_short,
    interval,
    mean_sd,
    number,
    p_text,
    signed,
    without_empty,
)
from realm_lab.evidence.verdict.runs import (
    LeftOut,
    check_parts,
    clusters_of,
    raise_unread,
    runs_of,
    steps_of,
    values_of,
)
from realm_lab.evidence.verdict.status import check_states, is_finished, unused_states
from realm_lab.evidence.verdict.tables import rows_of
from realm_lab.records.metrics import METRICS, Better, Metric

PAIRS_SHOWN = 10
TESTS = (
    "Differences are paired by {pair}. {clusters}p: exact sign-flip test, corrected over {tests} (step-down max-T); in "
    "brackets the smallest p that this many pairs can give. Intervals: Student's t, not corrected; p decides. Minimum "
    "detectable difference: with 80 % power. Skewed: this test alone gives more than 7.5 % false alarms."
)
CLUSTERS = (
    "Those of one {} change sign together, and n counts these groups. This holds for these very runs: other training "
    "seeds may give another result. "
)
CONTROL = (
    "Control: {}, tested by itself. If it differs from the baseline or has too few pairs, no variant is called "
    "different or equivalent."
)


class Gap(StrEnum):
    """The reason why a cell is not compared."""

    NO_VALUE = "no run has a value"
    CANNOT_BE_PAIRED = "cannot be paired"


class Decision(StrEnum):
    """The answer to "are the variants worse than the baseline?"."""

    NOT_WORSE = "not worse"  # significantly better, or equivalent
    WORSE = "worse"
    UNDECIDED = "undecided"


class CellAnswer(NamedTuple):
    """A cell in one metric. The baseline has neither finding nor gap."""

    cell: str
    values: dict[Any, float]  # by pair
    missing: tuple[Any, ...]  # pairs whose run has no finite value, did not finish, or is absent
    unpaired: tuple[Any, ...]  # pairs that the baseline lacks
    stopped: dict[Any, float]  # pair -> last step of a run that ended before the last step of all runs
    finding: Finding | None = None
    gap: Gap | None = None

    @property
    def decision(self) -> Decision:
        """NOT_WORSE or WORSE as the finding shows, else UNDECIDED. Missing runs or early stops rule out NOT_WORSE."""
        found = self.finding
        if not found or not (found.is_significant or found.kind is Kind.EQUIVALENT):
            return Decision.UNDECIDED
        better = {"up": Kind.HIGHER, "down": Kind.LOWER}.get(found.metric.better)
        if found.equivalent_within is not None or found.kind is better:
            return Decision.UNDECIDED if self.missing or self.stopped else Decision.NOT_WORSE
        return Decision.WORSE if better else Decision.UNDECIDED

    def as_json(self) -> dict[str, Any]:
        """Return the cell's fields for verdict.json, and those of its finding if it has one."""
        found = summarise(self.values.values())
        plain: dict[str, Any] = {"n": len(self.values), "mean": found and found.mean}
        plain |= {"missing": [*self.missing], "unpaired": [*self.unpaired], "gap": self.gap}
        plain |= {"stopped": {str(pair): step for pair, step in self.stopped.items()}}
        return plain | (self.finding.as_json() if self.finding else {})


class MetricAnswer(NamedTuple):
    """A metric over all cells, the baseline first."""

    metric: Metric
    cells: list[CellAnswer]
    last_step: float | None  # the largest of all runs


@dataclass(frozen=True)
class Answer:
    """The verdict on a table of runs."""

    cell: str  # the column that names the variant
    pair: str  # the column that pairs the runs
    metrics: tuple[MetricAnswer, ...]
    left_out: tuple[LeftOut, ...]
    other_status: dict[str, list[str]]  # columns that seem to be states, with words for runs that did not finish
    cluster: str = ""  # the column of the groups whose pairs change sign together
    control: str = ""  # the cell that is a second arm of the baseline's code

    @property
    def baseline(self) -> CellAnswer:
        """The baseline in the first metric."""
        return self.metrics[0].cells[0]

    @property
    def decision(self) -> Decision:
        """WORSE if any cell is WORSE in any metric; NOT_WORSE if every cell is NOT_WORSE in every metric. The control
        does not count."""
        found = {cell.decision for one in self.metrics for cell in one.cells[1:] if cell.cell != self.control}
        if Decision.WORSE in found:
            return Decision.WORSE
        return Decision.NOT_WORSE if found == {Decision.NOT_WORSE} else Decision.UNDECIDED

    def as_json(self) -> dict[str, Any]:
        """Return all fields for verdict.json; `metrics`: metric -> cell -> its finding or gap."""
        found = {one.metric.name: {cell.cell: cell.as_json() for cell in one.cells} for one in self.metrics}
        names: dict[str, Any] = {"cell": self.cell, "pair": self.pair, "baseline": self.baseline.cell}
        names |= {"cluster": self.cluster, "control": self.control, "decision": self.decision}
        names |= {"left_out": [one._asdict() for one in self.left_out], "other_status": self.other_status}
        return names | {"calibration": self.calibration and self.calibration.as_json(), "metrics": found}

    @property
    def calibration(self) -> Calibration | None:
        """False alarms of the family; None if it has too few pairs for any."""
        return calibrate([found.comparison.by_seed for found in self._family])

    @property
    def _family(self) -> list[Finding]:
        """The findings that are corrected together, without the control."""
        cells = [cell for one in self.metrics for cell in one.cells if cell.cell != self.control]
        return [cell.finding for cell in cells if cell.finding]

    def comment(self) -> str:
        """The decision and the Markdown, for a comment on a pull request."""
        lines = [f"**{str(self.decision).capitalize()}.**"]
        if unknown := [one.metric.name for one in self.metrics if not one.metric.better]:
            lines.append(f"Add =up or =down to --metric, the better direction: {plain(_listed(unknown))}.")
        return " ".join(lines) + "\n\n" + self.markdown()

    def markdown(self, *, is_brief: bool = False) -> str:
        """A section for each metric (sentence, table, notes), then notes on all. `is_brief`: tables without details."""
        lines: list[str] = []
        for one in self.metrics:
            base, *others = one.cells
            alike: dict[str, list[str]] = {}  # finding -> its cells
            for cell in others:
                alike.setdefault(in_short(cell.finding) if cell.finding else str(cell.gap), []).append(plain(cell.cell))
            findings = "; ".join(f"{finding}: {', '.join(cells)}" for finding, cells in alike.items())
            mean = summarise(base.values.values())
            shown = number(mean and mean.mean, one.metric.digits)
            lines += [f"## {plain(one.metric.name)}", ""]
            lines += [f"Compared with {plain(base.cell)} ({shown}): {findings}.", ""]
            rows = self.rows(one, is_brief=is_brief)
            lines += ["| " + " | ".join(map(plain, rows[0])) + " |", "|" + "---|" * len(rows[0])]
            lines += ["| " + " | ".join(map(plain, row.values())) + " |" for row in rows]
            lines += ["", *(f"- {plain(note)}" for note in self._notes(one)), ""]
        if notes := self._notes_of_table():
            lines += [*(f"- {plain(note)}" for note in notes), ""]
        tests = len(self._family)
        shown = f"{tests} test{'s' * (tests != 1)}"
        groups = CLUSTERS.format(plain(self.cluster)) if self.cluster else ""
        lines.append(TESTS.format(pair=plain(self.pair), clusters=groups, tests=shown))
        if self.control:
            lines.append(CONTROL.format(plain(self.control)))
        if self.calibration:
            lines.append(false_alarms(self.calibration))
        return "\n".join(lines) + "\n"

    def rows(self, one: MetricAnswer, *, is_brief: bool = False) -> list[dict[str, str]]:
        """The table of a metric, as text; without columns that have no value."""
        digits, rows = one.metric.digits, []
        for place, cell in enumerate(one.cells):
            found = cell.finding
            row = {"variant": cell.cell, "n": str(found.seeds if found else len(cell.values))}
            row["mean ± sd"] = mean_sd(summarise(cell.values.values()), digits)
            row["difference"] = signed(found and found.size, digits)
            row["95 % interval"] = interval(found and found.interval, digits)
            row["p (smallest)"] = p_text(found) if found else NOTHING
            row["finding"] = in_short(found) if found else str(cell.gap or "") if place else "baseline"
            rows.append(row if is_brief else row | details(found, digits, "pairs"))
        return without_empty(rows)

    def _notes_of_table(self) -> list[str]:
        """The runs and columns that are not used."""
        by_reason: dict[str, list[str]] = {}
        for run, why in self.left_out:
            by_reason.setdefault(why, []).append(run)
        notes = [f"Left out: {_listed(runs)} ({why})." for why, runs in by_reason.items()]
        for name, words in self.other_status.items():
            notes.append(f"Column '{name}' has {_listed(words)}: these runs count, as --state {name} is not given.")
        return notes

    def _notes(self, one: MetricAnswer) -> list[str]:
        """Return notes on runs that the tests of a metric leave out, and on runs that ended early."""
        notes = []
        for cell in one.cells:
            if cell.missing:
                notes.append(
                    f"{cell.cell}: no value for {self.pair} {_listed(cell.missing)}; a failed run can bias the result."
                )
            if cell.stopped:
                steps = [f"{pair} (step {step:g})" for pair, step in cell.stopped.items()]
                notes.append(
                    f"{cell.cell}: ended before step {one.last_step:g} of other runs: {self.pair} {_listed(steps)}; a "
                    "run that was stopped can bias the result."
                )
            if cell.gap is Gap.CANNOT_BE_PAIRED:
                notes.append(
                    f"{cell.cell} cannot be paired: it shares no {self.pair} with the baseline. Run both with the same."
                )
            elif cell.unpaired:
                notes.append(f"{cell.cell}: left out, as the baseline lacks it: {self.pair} {_listed(cell.unpaired)}.")
        return notes


def verdict(
    frame: Any,
    *,
    metric: str | Sequence[str] | Mapping[str, Better],
    baseline: object,
    cell: str = "cell",
    pair: str = "seed",
    delta: Mapping[str, float] | float | None = None,
    cluster: str = "",
    control: object = "",
    state: str = "",
) -> Answer:
    """Compare each variant of a table of runs with the baseline, paired by seed or fold; docs/verdict.md explains it.

    frame: a table with a row for each run (a pandas or polars frame, a list of dicts, columns by name), or the path of
    a file or folder that `realm-lab verdict` reads. `cell` is the column that names a run's variant, `pair` the column
    that pairs the runs. `metric`: one or more columns; metrics times variants are one family of tests. `delta`: the
    largest difference that does not matter, for each metric; without it nothing is called equivalent. `cluster`: a
    column of groups whose pairs change sign together, as the questions of a document do. `control`: a variant with the
    code of the baseline; if it differs, no variant is called different. `state`: the column of the states of runs. For
    `decision`, `metric` may be metric -> "up" or "down", the better direction. UserError: a column is missing, a value
    is no number, or two finished runs have the same variant and pair.
    """
    if isinstance(frame, str | Path):
        from realm_lab.evidence.verdict.sources import read_runs

        frame = read_runs(str(frame))
    rows, baseline, control = rows_of(frame), str(baseline), str(control)
    metrics = [metric] if isinstance(metric, str) else [*metric]
    better = metric if isinstance(metric, Mapping) else {}
    bounds = dict.fromkeys(metrics, delta) if isinstance(delta, int | float) else dict(delta or {})
    columns = dict.fromkeys(name for row in rows for name in row.names)
    if not rows:
        raise UserError("no runs", remedy="give a table with a row for each run")
    if pair not in columns:
        raise UserError(
            f"no column '{pair}', which pairs the runs of the variants",
            remedy=f"name the column of the seed with --pair ({suggestion(pair, columns)})",
        )
    optional = [(name, flag) for name, flag in ((cluster, "--cluster"), (state, "--state")) if name]
    for name, flag in ((cell, "--cell"), *((name, "--metric") for name in metrics), *optional):
        if name not in columns:
            for row in rows:
                raise_unread(row)
            raise UserError(f"{flag}: no column '{name}'", remedy=suggestion(name, columns))
    if state:
        check_states(rows, state)
    runs, left_out = runs_of(rows, metrics, cell, pair, state)
    for name in metrics:
        check_parts([row for row in runs.values() if is_finished(row, state)], name)
    cells = dict.fromkeys(name for name, _ in runs)
    if baseline not in cells:
        raise UserError(f"--baseline: no variant '{baseline}'", remedy=suggestion(baseline, cells))
    if control and (control == baseline or control not in cells):
        others = [name for name in cells if name != baseline]
        raise UserError(f"--control: no other variant '{control}'", remedy=suggestion(control, others))
    names = [baseline, *(name for name in cells if name != baseline)]
    tables = {one: values_of(runs, one, state) for one in metrics}
    defined = {one: _metric(one, tables[one], better.get(one, "")) for one in metrics}
    for name, largest in bounds.items():
        if name not in defined:
            raise UserError(f"--delta: '{name}' is none of the metrics", remedy=suggestion(name, defined))
        defined[name].check_delta(largest)
    clusters = clusters_of(runs, cluster) if cluster else None
    compared = {
        (one, name): (defined[one], found)
        for one, table in tables.items()
        for name in names[1:]
        if (found := _compare(_finite(table[name]), _finite(table[baseline]), clusters))
    }
    controls = judge({key: one for key, one in compared.items() if key[1] == control}, bounds)
    judged = judge({key: one for key, one in compared.items() if key not in controls}, bounds)
    refused = {one for one in metrics if control and not _is_control(controls.get((one, control)))}
    judged = {key: one._replace(is_refused=key[0] in refused) for key, one in judged.items()} | controls
    answers = []
    for one, table in tables.items():
        base, made = _finite(table[baseline]), []
        steps = steps_of(runs, one, table)
        last = max((step for of_cell in steps.values() for step in of_cell.values()), default=None)
        for name in names:
            values, finding = _finite(table[name]), judged.get((one, name))
            is_alone = name != baseline and finding is None
            gap = Gap.NO_VALUE if not values else Gap.CANNOT_BE_PAIRED if is_alone else None
            failed = {pair for pair, value in table[name].items() if value is None}
            missing = tuple(sorted(failed | (base.keys() - table[name].keys() if finding else set())))
            unpaired = tuple(sorted(values.keys() - base.keys()))
            stopped = {pair: step for pair, step in steps[name].items() if last is not None and step < last}
            made.append(CellAnswer(name, values, missing, unpaired, stopped, finding, gap))
        if not base:
            raise UserError(f"--baseline: no run of '{baseline}' has a value of {one}", remedy="name another")
        answers.append(MetricAnswer(defined[one], made, last))
    other_status = {} if state else unused_states(rows)
    return Answer(cell, pair, tuple(answers), left_out, other_status, cluster, control)


def _is_control(found: Finding | None) -> bool:
    """True if the control has enough pairs for a difference, and shows none."""
    return found is not None and not found.is_significant and found.kind is not Kind.TOO_FEW_SEEDS


def _compare(
    cell: Mapping[Any, float], baseline: Mapping[Any, float], clusters: Mapping[Any, str] | None
) -> Comparison | None:
    """Compare by pair or by cluster. The value of a cluster is the sum over its pairs, scaled so that the mean over the
    clusters equals the mean over the pairs."""
    if clusters is None:
        return compare(cell, baseline)
    shared = cell.keys() & baseline.keys()
    members: dict[str, list[Any]] = {}
    for pair in shared:
        members.setdefault(clusters[pair], []).append(pair)
    scale = len(members) / max(len(shared), 1)
    sums: list[dict[Any, float]] = [
        {name: scale * math.fsum(values[pair] for pair in pairs) for name, pairs in members.items()}
        for values in (cell, baseline)
    ]
    return compare(*sums)


def plain(text: str) -> str:
    """Escape the characters of a text that have a meaning in Markdown."""
    return re.sub(r"([\\`*<\[\]|])", r"\\\1", " ".join(text.split()))


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names[:PAIRS_SHOWN])) + ", ..." * (len(names) > PAIRS_SHOWN)


def _finite(values: Mapping[Any, float | None]) -> dict[Any, float]:
    return {pair: value for pair, value in values.items() if value is not None}


def _metric(name: str, table: Mapping[str, Mapping[Any, float | None]], better: Better) -> Metric:
    """Return realm_lab's metric of that name if all values are within its bounds (an f1 may be a percentage), else a
    metric without bounds, with the direction `better`. Its digits resolve the median deviation from the median, so
    that one diverged run hides no difference."""
    values = [value for cells in table.values() for value in cells.values() if value is not None]
    middle = statistics.median(values) if values else 0.0
    spread = statistics.median([abs(value - middle) for value in values if value != middle] or [0.0])
    place = -math.floor(math.log10(spread)) if spread else None  # decimal of the spread's first digit
    known = METRICS.get(name)
    if known and all((known.low is None or known.low <= v) and (known.high is None or v <= known.high) for v in values):
        return replace(known, digits=max(known.digits, place or 0), better=better or known.better)
    return Metric(name, name, digits=3 if place is None else max(place + 2, 0), better=better)
