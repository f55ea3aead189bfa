"""Runs of any program as a table, compared with a baseline: the family of tests, its gaps, and Markdown.

The digits are the same as in realm_lab's reports: each metric times each cell is one family, as in a study.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.errors import UserError, suggestion
from realm_lab.metrics import METRICS, Metric
from realm_lab.other_runs.sources import Row, Rows, rows_of
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

NO_VALUE = frozenset(("", "nan", "none", "null", "na", "n/a", "inf", "-inf", "infinity", "-infinity"))
STATUS = ("status", "state")  # columns, in lower case
DONE = frozenset(("finished", "complete", "completed", "succeeded", "success"))
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
    finding: Finding | None = None
    gap: Gap | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields of one cell, without infinite bounds."""
        plain: dict[str, Any] = {"n": len(self.values), "mean": _mean(self.values)}
        plain |= {"missing": [*self.missing], "unpaired": [*self.unpaired], "gap": self.gap}
        return plain | (self.finding.as_json() if self.finding else {})


class MetricAnswer(NamedTuple):
    """A metric over all cells, the baseline first."""

    metric: Metric
    cells: list[CellAnswer]


@dataclass(frozen=True)
class Answer:
    """The verdict on a table of runs."""

    cell: str  # the column that names the variant
    pair: str  # the column that pairs the runs
    metrics: tuple[MetricAnswer, ...]

    @property
    def baseline(self) -> CellAnswer:
        """The baseline in the first metric."""
        return self.metrics[0].cells[0]

    def as_json(self) -> dict[str, Any]:
        """Every field: metric -> cell -> finding or gap."""
        found = {one.metric.name: {cell.cell: cell.as_json() for cell in one.cells} for one in self.metrics}
        names = {"cell": self.cell, "pair": self.pair, "baseline": self.baseline.cell}
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

    def _notes(self, one: MetricAnswer) -> list[str]:
        """The runs that no test counts."""
        notes = []
        for cell in one.cells:
            if cell.missing:
                notes.append(
                    f"{cell.cell}: no value for {self._listed(cell.missing)}; a failed run can bias the result."
                )
            if cell.gap is Gap.CANNOT_BE_PAIRED:
                notes.append(
                    f"{cell.cell} cannot be paired: it shares no {self.pair} with the baseline. Run both with the same."
                )
            elif cell.unpaired:
                notes.append(f"{cell.cell}: left out, as the baseline lacks it: {self._listed(cell.unpaired)}.")
        return notes

    def _listed(self, pairs: Sequence[Any]) -> str:
        return f"{self.pair} " + ", ".join(map(str, pairs[:PAIRS_SHOWN])) + ", ..." * (len(pairs) > PAIRS_SHOWN)


def verdict(
    frame: Any,
    *,
    metric: str | Sequence[str],
    baseline: str,
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
    return judge_rows(rows, names, baseline, cell, pair, bounds)


def judge_rows(
    rows: Rows, metrics: Sequence[str], baseline: str, cell: str, pair: str, delta: Mapping[str, float]
) -> Answer:
    """The verdict on rows. UserError as `verdict`."""
    columns = dict.fromkeys(name for row in rows for name in row.values)
    if not rows:
        raise UserError("no runs", remedy="give a table with a row for each run")
    if pair not in columns:
        raise UserError(
            f"no column '{pair}', and without what runs share they cannot be paired",
            remedy=f"name the column of the seed with --pair ({suggestion(pair, columns)})",
        )
    for name, flag in ((cell, "--cell"), *((name, "--metric") for name in (*metrics, *delta))):
        if name not in columns:
            raise UserError(f"{flag}: no column '{name}'", remedy=suggestion(name, columns))
    runs: dict[tuple[str, Any], Row] = {}
    are_whole = all(_is_whole(row.values.get(pair)) for row in rows)
    for row in rows:
        for name in (cell, pair):
            given = row.values.get(name)
            if given is None or str(given).strip() == "" or (isinstance(given, float) and math.isnan(given)):
                raise UserError(f"{row.where}: no {name}", remedy="fill it in, or delete the run from the table")
        shared = row.values[pair]
        key = str(row.values[cell]), (_whole(shared) if are_whole else str(shared))
        if key in runs:
            raise UserError(
                f"{row.where}: {cell} {key[0]} and {pair} {key[1]} are also in {runs[key].where}",
                remedy="keep one, or name a column that tells them apart with --cell or --pair",
            )
        runs[key] = row
    cells = dict.fromkeys(name for name, _ in runs)
    if baseline not in cells:
        raise UserError(f"--baseline: no {cell} '{baseline}'", remedy=suggestion(baseline, cells))
    names = [baseline, *(name for name in cells if name != baseline)]
    tables = {metric: {name: _values(runs, name, metric) for name in names} for metric in metrics}
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
        for name in names:
            values, finding = _finite(table[name]), judged.get((metric, name))
            gap = None
            if not values:
                gap = Gap.NO_VALUE
            elif name != baseline and finding is None:
                gap = Gap.CANNOT_BE_PAIRED
            missing = tuple(sorted(pair for pair, value in table[name].items() if value is None))
            unpaired = tuple(sorted(values.keys() - base.keys()))
            made.append(CellAnswer(name, values, missing, unpaired, finding, gap))
        if not base:
            raise UserError(f"--baseline: no run of '{baseline}' has a value of {metric}", remedy="name another")
        answers.append(MetricAnswer(defined[metric], made))
    return Answer(cell, pair, tuple(answers))


def _values(runs: Mapping[tuple[str, Any], Row], cell: str, metric: str) -> dict[Any, float | None]:
    """pair -> value of one cell; None if the run has no finite one, or did not finish."""
    found: dict[Any, float | None] = {}
    for (name, pair), row in runs.items():
        if name == cell:
            found[pair] = _value(row, metric) if _is_done(row) else None
    return found


def _value(row: Row, metric: str) -> float | None:
    given = row.values.get(metric)
    if given is None or str(given).strip().casefold() in NO_VALUE:
        return None
    try:
        value = float(given)
    except (TypeError, ValueError):
        raise UserError(
            f"{row.where}: {metric} is {given!r}, no number", remedy="correct it, or leave it empty"
        ) from None
    return value if math.isfinite(value) else None


def _is_done(row: Row) -> bool:
    """False if a column marks the run as unfinished."""
    states = [str(value).casefold() for name, value in row.values.items() if name.casefold() in STATUS and value]
    return all(state in DONE for state in states)


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
