"""Runs of any program as a table, compared with a baseline: the family of tests, its gaps, and Markdown.

The digits are the same as in realm_lab's reports: each metric times each cell is one family, as in a study.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.errors import UserError, suggestion
from realm_lab.metrics import METRICS, Metric
from realm_lab.other_runs.status import is_finished, status_columns
from realm_lab.other_runs.tables import Row, Rows, rows_of
from realm_lab.statistics.calibration import Calibration, calibrate
from realm_lab.statistics.family import Finding, judge
from realm_lab.statistics.intervals import FEWEST_FOR_SPREAD
from realm_lab.statistics.paired import compare
from realm_lab.statistics.wording import (
    NOTHING,
    detectable,
    estimate,
    false_alarms,
    in_short,
    interval,
    needed,
    number,
    p_text,
    signed,
)

NO_VALUE = frozenset(("", "nan", "none", "null", "na", "n/a", "<na>"))
LARGEST = 1e150  # squares of larger numbers overflow; MLflow's SQL stores keep infinity as 1.797e308
SAME = 1e-6  # relative: event files have single precision
PAIRS_SHOWN = 10


class Gap(StrEnum):
    """The reason why a cell is not compared."""

    NO_VALUE = "no run has a value"
    CANNOT_BE_PAIRED = "cannot be paired"


class CellAnswer(NamedTuple):
    """A cell in one metric. The baseline has neither finding nor gap."""

    cell: str
    values: dict[Any, float]  # by pair
    missing: tuple[Any, ...]  # pairs whose run has no finite value, or did not finish
    unpaired: tuple[Any, ...]  # pairs that the baseline lacks
    stopped: dict[Any, float]  # pair -> last step of a run that ended before the last step of all runs
    finding: Finding | None = None
    gap: Gap | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields of one cell, without infinite bounds."""
        plain: dict[str, Any] = {"n": len(self.values), "mean": _mean(self.values)}
        plain |= {"missing": [*self.missing], "unpaired": [*self.unpaired], "gap": self.gap}
        plain |= {"stopped": {str(pair): step for pair, step in self.stopped.items()}}
        return plain | (self.finding.as_json() if self.finding else {})


class MetricAnswer(NamedTuple):
    """A metric over all cells, the baseline first."""

    metric: Metric
    cells: list[CellAnswer]
    last_step: float | None  # of all runs


class LeftOut(NamedTuple):
    """A run that is none of those that are compared."""

    run: str
    why: str


@dataclass(frozen=True)
class Answer:
    """The verdict on a table of runs."""

    cell: str  # the column that names the variant
    pair: str  # the column that pairs the runs
    metrics: tuple[MetricAnswer, ...]
    left_out: tuple[LeftOut, ...]
    other_status: dict[str, list[str]]  # columns called like one of the state of a run, with other values

    @property
    def baseline(self) -> CellAnswer:
        """The baseline in the first metric."""
        return self.metrics[0].cells[0]

    def as_json(self) -> dict[str, Any]:
        """Every field: metric -> cell -> finding or gap."""
        found = {one.metric.name: {cell.cell: cell.as_json() for cell in one.cells} for one in self.metrics}
        names: dict[str, Any] = {"cell": self.cell, "pair": self.pair, "baseline": self.baseline.cell}
        names |= {"left_out": [one._asdict() for one in self.left_out], "other_status": self.other_status}
        return names | {"calibration": self.calibration and self.calibration.as_json(), "metrics": found}

    @property
    def calibration(self) -> Calibration | None:
        """False alarms of the family; None if it has too few pairs for any."""
        findings = [cell.finding for one in self.metrics for cell in one.cells if cell.finding]
        return calibrate([found.comparison.by_seed for found in findings])

    def markdown(self) -> str:
        """A section for each metric: a sentence, a table, and the runs that are left out."""
        lines: list[str] = []
        for one in self.metrics:
            base, *others = one.cells
            findings = [f"{in_short(cell.finding) if cell.finding else cell.gap}: {cell.cell}" for cell in others]
            shown = number(_mean(base.values), one.metric.digits)
            lines += [f"## {one.metric.name}", "", f"Compared with {base.cell} ({shown}): {'; '.join(findings)}.", ""]
            rows = self.rows(one)
            lines += ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
            lines += ["| " + " | ".join(value.replace("|", r"\|") for value in row.values()) + " |" for row in rows]
            lines += ["", *(f"- {note}" for note in self._notes(one)), ""]
        lines += [*self._notes_of_table(), ""] if self.left_out or self.other_status else []
        tests = next((c.finding.tests for one in self.metrics for c in one.cells if c.finding), 0)
        lines.append(
            f"Differences are paired by {self.pair}. p: exact sign-flip test, corrected over {tests} "
            f"test{'s' * (tests != 1)} (step-down max-T); in brackets the smallest p that this many pairs can give. "
            "Intervals: Student's t, not corrected; p decides. Minimum detectable difference: with 80 % power. Skewed: "
            "this test alone gives more than 7.5 % false alarms."
        )
        if self.calibration:
            lines.append(false_alarms(self.calibration))
        return "\n".join(lines) + "\n"

    def rows(self, one: MetricAnswer) -> list[dict[str, str]]:
        """The table of a metric, as text."""
        digits, rows = one.metric.digits, []
        for place, cell in enumerate(one.cells):
            found = cell.finding
            row = {self.cell: cell.cell, "n": str(found.seeds if found else len(cell.values))}
            row["mean ± sd"] = _mean_sd(cell.values, digits)
            row["difference"] = signed(found and found.size, digits)
            row["95 % interval"] = interval(found and found.interval, digits)
            row["p (smallest)"] = p_text(found) if found else NOTHING
            row["finding"] = in_short(found) if found else str(cell.gap or "") if place else "baseline"
            row["minimum detectable difference"] = detectable(found) if found else NOTHING
            row["interquartile mean"] = estimate(found and found.interquartile, digits)
            row["P(higher)"] = estimate(found and found.probability_higher, 2)
            row["pairs needed"] = needed(found) if found else NOTHING
            if any(other.finding and other.finding.bound is not None for other in one.cells):
                row["90 % interval"] = interval(found and found.equivalence_interval, digits)
            rows.append(row)
        return rows

    def _notes_of_table(self) -> list[str]:
        """The runs and columns that are not used."""
        by_reason: dict[str, list[str]] = {}
        for run, why in self.left_out:
            by_reason.setdefault(why, []).append(run)
        notes = [f"- Left out: {_listed(runs)} ({why})." for why, runs in by_reason.items()]
        for name, words in self.other_status.items():
            notes.append(f"- Column '{name}' is not used as the state of the runs: its values are {_listed(words)}.")
        return notes

    def _notes(self, one: MetricAnswer) -> list[str]:
        """The runs that no test counts, or that ended early."""
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
    metric: str | Sequence[str],
    baseline: object,
    cell: str = "cell",
    pair: str = "seed",
    delta: Mapping[str, float] | float | None = None,
) -> Answer:
    """Compare each variant of a table of runs with the baseline, paired by seed or fold; docs/verdict.md explains it.

    frame: a table with a row for each run (a pandas or polars frame, a list of dicts, columns by name), or the path of
    a file or folder that `realm-lab verdict` reads. `cell` and `pair` are its columns of the variant and of the
    pairing. `metric`: one or more columns; metrics times variants are one family of tests. `delta`: the largest
    difference that does not matter, for each metric; without it nothing is called equivalent. UserError: a column is
    missing, a value is no number, or two runs have the same variant and pair.
    """
    if isinstance(frame, str | Path):
        from realm_lab.other_runs.sources import read_runs

        rows = read_runs(str(frame))
    else:
        rows = rows_of(frame)
    names = [metric] if isinstance(metric, str) else [*metric]
    bounds = dict.fromkeys(names, delta) if isinstance(delta, int | float) else dict(delta or {})
    return judge_rows(rows, names, str(baseline), cell, pair, bounds)


def judge_rows(
    rows: Rows, metrics: Sequence[str], baseline: str, cell: str, pair: str, delta: Mapping[str, float]
) -> Answer:
    """The verdict on rows. UserError as `verdict`."""
    columns = dict.fromkeys(name for row in rows for name in row.names)
    if not rows:
        raise UserError("no runs", remedy="give a table with a row for each run")
    if pair not in columns:
        raise UserError(
            f"no column '{pair}', and without what runs share they cannot be paired",
            remedy=f"name the column of the seed with --pair ({suggestion(pair, columns)})",
        )
    for name, flag in ((cell, "--cell"), *((name, "--metric") for name in (*metrics, *delta))):
        if name not in columns:
            for row in rows:
                _raise_unread(row)
            raise UserError(f"{flag}: no column '{name}'", remedy=suggestion(name, columns))
    status, other_status = status_columns(rows)
    runs, left_out = _runs(rows, metrics, cell, pair, status)
    for metric in metrics:
        _check_parts([*runs.values()], metric)
    cells = dict.fromkeys(name for name, _ in runs)
    if baseline not in cells:
        raise UserError(f"--baseline: no {cell} '{baseline}'", remedy=suggestion(baseline, cells))
    names = [baseline, *(name for name in cells if name != baseline)]
    tables = {metric: {name: _values(runs, name, metric, status) for name in names} for metric in metrics}
    defined = {metric: _metric(metric, tables[metric]) for metric in metrics}
    for name, largest in delta.items():
        if name not in defined:
            raise UserError(f"--delta: '{name}' is none of the metrics", remedy=suggestion(name, defined))
        defined[name].check_delta(largest)
    compared = {
        (metric, name): (defined[metric], found)
        for metric, table in tables.items()
        for name in names[1:]
        if (found := compare(_finite(table[name]), _finite(table[baseline])))
    }
    judged = judge(compared, delta)
    answers = []
    for metric, table in tables.items():
        base, made = _finite(table[baseline]), []
        steps = _steps(runs, metric, table)
        last = max((step for of_cell in steps.values() for step in of_cell.values()), default=None)
        for name in names:
            values, finding = _finite(table[name]), judged.get((metric, name))
            gap = None
            if not values:
                gap = Gap.NO_VALUE
            elif name != baseline and finding is None:
                gap = Gap.CANNOT_BE_PAIRED
            missing = tuple(sorted(pair for pair, value in table[name].items() if value is None))
            unpaired = tuple(sorted(values.keys() - base.keys()))
            stopped = {pair: step for pair, step in steps[name].items() if last is not None and step < last}
            made.append(CellAnswer(name, values, missing, unpaired, stopped, finding, gap))
        if not base:
            raise UserError(f"--baseline: no run of '{baseline}' has a value of {metric}", remedy="name another")
        answers.append(MetricAnswer(defined[metric], made, last))
    return Answer(cell, pair, tuple(answers), left_out, other_status)


def _runs(
    rows: Rows, metrics: Sequence[str], cell: str, pair: str, status: Sequence[str]
) -> tuple[dict[tuple[str, Any], Row], tuple[LeftOut, ...]]:
    """(cell, pair) -> its run, and the runs that are left out. If several have the same cell and pair, the one that
    finished counts."""
    left_out = [LeftOut(row.where, row.left_out) for row in rows if row.left_out]
    named: list[Row] = []
    for row in (row for row in rows if not row.left_out):
        blank = next((name for name in (cell, pair) if _is_blank(row.setting(name))), None)
        if blank is None:
            named.append(row)
        elif row.has_children or all(_value(row, metric) is None for metric in metrics):
            left_out.append(
                LeftOut(row.where, f"no {blank}, and {'runs below it' if row.has_children else 'no value'}")
            )
        else:
            raise UserError(f"{row.where}: no {blank}", remedy="fill it in, or delete the run")
    are_whole = all(_is_whole(row.setting(pair)) for row in named)
    found: dict[tuple[str, Any], list[Row]] = {}
    for row in named:
        shared = row.setting(pair)
        key = str(row.setting(cell)), (_whole(shared) if are_whole else str(shared))
        if text := next((str(one) for one in key if "${" in str(one)), ""):
            problem = f"{row.where}: its configuration has no answer for {text}"
            raise UserError(problem, remedy="name another column with --cell or --pair")
        found.setdefault(key, []).append(row)
    runs = {}
    for key, same in found.items():
        done = [row for row in same if _counts(row, metrics, status)]
        if len(done) > 1:
            raise UserError(
                f"{done[1].where}: {cell} {key[0]} and {pair} {key[1]} are also in {done[0].where}",
                remedy="keep one, or name a column that tells them apart with --cell or --pair",
            )
        runs[key] = (done or same)[0]
        why = f"did not finish; another run of {cell} {key[0]}, {pair} {key[1]} {'did' if done else 'is named'}"
        left_out += [LeftOut(row.where, why) for row in same if row is not runs[key]]
    return runs, tuple(left_out)


def _counts(row: Row, metrics: Sequence[str], status: Sequence[str]) -> bool:
    """True if the run finished with a value of any metric."""
    return is_finished(row, status) and any(_value(row, metric) is not None for metric in metrics)


def _check_parts(rows: Rows, metric: str) -> None:
    """UserError: parts of a run have other values of the metric, or runs have it in other parts. Parts with other
    digits in their names, such as times, are the same part."""
    common: set[str] | None = None
    first: tuple[Row, str] | None = None
    for row in rows:
        parts = row.logged.get(metric, {})
        values = {part: _number(one.value) for part, one in parts.items()}
        for part, value in values.items():
            if not _agree(value, next(iter(values.values()))):
                problem = f"{row.where}: {metric} is in {next(iter(values))} and in {part}, with other values"
                raise UserError(problem, remedy="choose one with --part")
        names = {re.sub(r"\d+", "0", part) for part in parts}
        if first and common is not None and names and not common & names:
            problem = f"{row.where}: {metric} is in {next(iter(parts))}, but in {first[1]} of {first[0].where}"
            raise UserError(problem, remedy="choose one with --part")
        if names:
            common = names if common is None else common & names
            first = first or (row, next(iter(parts)))


def _values(
    runs: Mapping[tuple[str, Any], Row], cell: str, metric: str, status: Sequence[str]
) -> dict[Any, float | None]:
    """pair -> value of one cell; None if the run has no finite one, or did not finish."""
    found: dict[Any, float | None] = {}
    for (name, pair), row in runs.items():
        if name == cell:
            found[pair] = _value(row, metric) if is_finished(row, status) else None
    return found


def _steps(
    runs: Mapping[tuple[str, Any], Row], metric: str, table: Mapping[str, Mapping[Any, float | None]]
) -> dict[str, dict[Any, float]]:
    """Cell -> pair -> step of each value, in sources with steps."""
    found: dict[str, dict[Any, float]] = {name: {} for name in table}
    for (name, pair), row in runs.items():
        step = row.measured(metric).step
        if step is not None and table[name][pair] is not None:
            found[name][pair] = step
    return found


def _value(row: Row, metric: str) -> float | None:
    given = row.measured(metric).value
    if _is_blank(given):
        _raise_unread(row)
    try:
        return _number(given)
    except (TypeError, ValueError):
        raise UserError(
            f"{row.where}: {metric} is {given!r}, no number", remedy="correct it, or leave it empty"
        ) from None


def _number(given: Any) -> float | None:
    """None for a blank value, NaN and infinity. ValueError, TypeError: no number."""
    value = math.nan if _is_blank(given) else float(given)
    return value if abs(value) < LARGEST else None


def _agree(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isclose(one, other, rel_tol=SAME))


def _raise_unread(row: Row) -> None:
    """UserError: a value is missing, and a file that may have it could not be read."""
    if row.unread:
        raise row.unread[0]


def _is_blank(value: Any) -> bool:
    return value is None or str(value).strip().casefold() in NO_VALUE


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names[:PAIRS_SHOWN])) + ", ..." * (len(names) > PAIRS_SHOWN)


def _is_whole(value: Any) -> bool:
    try:
        _whole(value)
    except (TypeError, ValueError, ArithmeticError):
        return False
    return True


def _whole(value: Any) -> int:
    """The exact whole number of "3", "3.0" or 3.0, also beyond the digits of a float; ValueError for others."""
    found = Decimal(str(value).strip())
    if found != found.to_integral_value():
        raise ValueError(value)
    return int(found)


def _finite(values: Mapping[Any, float | None]) -> dict[Any, float]:
    return {pair: value for pair, value in values.items() if value is not None}


def _metric(name: str, table: Mapping[str, Mapping[Any, float | None]]) -> Metric:
    """Return realm_lab's metric of that name if all values are within its bounds (another's f1 may be a percentage),
    else one without direction or bounds. Its digits resolve the median deviation from the median: one diverged run
    hides no difference."""
    values = [value for cells in table.values() for value in cells.values() if value is not None]
    middle = statistics.median(values) if values else 0.0
    spread = statistics.median([abs(value - middle) for value in values if value != middle] or [0.0])
    place = -math.floor(math.log10(spread)) if spread else None  # of the first digit of the spread
    known = METRICS.get(name)
    if known and all((known.low is None or known.low <= v) and (known.high is None or v <= known.high) for v in values):
        return replace(known, digits=max(known.digits, place or 0))
    return Metric(name, name, digits=3 if place is None else max(place + 2, 0), better="")


def _mean(values: Mapping[Any, float]) -> float | None:
    return math.fsum(values.values()) / len(values) if values else None


def _mean_sd(values: Mapping[Any, float], digits: int) -> str:
    mean = _mean(values)
    if mean is None or len(values) < FEWEST_FOR_SPREAD:
        return number(mean, digits)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values.values()) / (len(values) - 1))
    return f"{number(mean, digits)} ± {number(sd, digits)}"
