"""The run of a table that counts for each cell and pair, and the values, the steps and the clusters of these runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from realm_lab.errors import UserError
from realm_lab.evidence.verdict.status import is_finished
from realm_lab.evidence.verdict.tables import Row, Rows

NO_VALUE = frozenset(("", "nan", "none", "null", "na", "n/a", "<na>"))
LARGEST = 1e150  # squares of larger numbers overflow; MLflow's SQL stores keep infinity as 1.797e308
SAME = 1e-6  # relative: event files have single precision


class LeftOut(NamedTuple):
    """A run that is not compared, and the reason."""

    run: str
    why: str


def clusters_of(runs: Mapping[tuple[str, Any], Row], column: str) -> dict[Any, str]:
    """Return pair -> its cluster. UserError: a run has no cluster, or two runs of a pair have different clusters."""
    found: dict[Any, str] = {}
    for (_, pair), row in runs.items():
        name = row.setting(column)
        if _is_unnamed(name):
            raise UserError(f"{row.where}: no {column}", remedy="fill it in, or leave out --cluster")
        if found.setdefault(pair, str(name)) != str(name):
            problem = f"{row.where}: {column} of {pair} is {name}, and {found[pair]} in another row"
            raise UserError(problem, remedy="correct one")
    return found


def runs_of(
    rows: Rows, metrics: Sequence[str], cell: str, pair: str, state: str
) -> tuple[dict[tuple[str, Any], Row], tuple[LeftOut, ...]]:
    """Return (cell, pair) -> its run, and the runs left out. If several runs have the same cell and pair, the one that
    finished counts. UserError: two runs of a cell and pair finished, or a run with a value has no cell or pair."""
    left_out = [LeftOut(row.where, row.left_out) for row in rows if row.left_out]
    named: list[Row] = []
    for row in (row for row in rows if not row.left_out):
        blank = next((name for name in (cell, pair) if _is_unnamed(row.setting(name))), None)
        if blank is None:
            named.append(row)
        elif row.has_children or all(_value(row, metric) is None for metric in metrics):
            left_out.append(
                LeftOut(row.where, f"no {blank}, and {'runs below it' if row.has_children else 'no value'}")
            )
        else:
            raise UserError(f"{row.where}: no {blank}", remedy="fill it in, or delete the run")
    numbers = [_whole(row.setting(pair)) for row in named]
    found: dict[tuple[str, Any], list[Row]] = {}
    for row, number in zip(named, numbers, strict=True):
        key = str(row.setting(cell)), (str(row.setting(pair)) if None in numbers else number)
        if text := next((str(one) for one in key if "${" in str(one)), ""):
            problem = f"{row.where}: {text} has an interpolation that the configuration does not resolve"
            raise UserError(problem, remedy="name another column with --cell or --pair")
        found.setdefault(key, []).append(row)
    runs = {}
    for key, same in found.items():
        done = [row for row in same if _counts(row, metrics, state)]
        if len(done) > 1:
            raise UserError(
                f"{done[1].where}: {cell} {key[0]} and {pair} {key[1]} are also in {done[0].where}",
                remedy="keep one, or name a column that tells them apart with --cell or --pair",
            )
        runs[key] = (done or same)[0]
        why = f"did not finish; another run of {cell} {key[0]}, {pair} {key[1]} {'did' if done else 'is named'}"
        left_out += [LeftOut(row.where, why) for row in same if row is not runs[key]]
    return runs, tuple(left_out)


def _counts(row: Row, metrics: Sequence[str], state: str) -> bool:
    """True if the run finished with a value of any metric."""
    return is_finished(row, state) and any(_value(row, metric) is not None for metric in metrics)


def check_parts(rows: Rows, metric: str) -> None:
    """Check that the parts of each run agree in the metric, and that all runs have it in a common part, else UserError.
    Parts whose names differ only in digits, such as times, are the same part."""
    common: set[str] | None = None
    first: tuple[Row, str] | None = None
    for row in rows:
        parts = row.logged.get(metric, {})
        values = {part: _number(row, metric, one.value) for part, one in parts.items()}
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


def values_of(runs: Mapping[tuple[str, Any], Row], metric: str, state: str) -> dict[str, dict[Any, float | None]]:
    """Return cell -> pair -> value; None if the run has no finite value, or did not finish."""
    found: dict[str, dict[Any, float | None]] = {name: {} for name, _ in runs}
    for (name, pair), row in runs.items():
        found[name][pair] = _value(row, metric) if is_finished(row, state) else None
    return found


def steps_of(
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
        raise_unread(row)
    return _number(row, metric, given)


def _number(row: Row, metric: str, given: Any) -> float | None:
    """Return a value as a number; None if it is blank, NaN or too large to square. UserError: it is no number."""
    try:
        value = math.nan if _is_blank(given) else float(given)
    except (TypeError, ValueError):
        raise UserError(
            f"{row.where}: {metric} is {given!r}, no number", remedy="correct it, or leave it empty"
        ) from None
    return value if abs(value) < LARGEST else None


def _agree(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isclose(one, other, rel_tol=SAME))


def raise_unread(row: Row) -> None:
    """Raise a UserError if a file of the run, which may have the missing value, could not be read."""
    if row.unread:
        raise row.unread[0]


def _is_blank(value: Any) -> bool:
    return value is None or str(value).strip().casefold() in NO_VALUE


def _is_unnamed(value: Any) -> bool:
    """True without a name of a cell, pair or cluster. The texts "none" and "NA" are names."""
    return not value.strip() if isinstance(value, str) else _is_blank(value)


def _whole(value: Any) -> int | None:
    """Read "3", "3.0" or 3.0 as a whole number, also beyond the digits of a float; None: it is none."""
    try:
        found = Decimal(str(value).strip())
        return int(found) if found == found.to_integral_value() else None
    except ArithmeticError:
        return None
