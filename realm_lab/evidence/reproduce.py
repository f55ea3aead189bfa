"""Compare the numbers of a report with those of runs that are here (docs/reproduce.md).

d, the mean of new minus reported values over the m seeds that both have, is tested by t = d / (sd · √(2/m)) with n - 1
degrees of freedom. n: the report's seeds; sd: the larger standard deviation of reported and new values. Holm's
correction over all comparisons keeps the chance of any false "off" at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from scipy import stats

from realm_lab.evidence.report.frames import column, metric_columns
from realm_lab.evidence.report.section import Rows
from realm_lab.evidence.statistics.family import ALPHA
from realm_lab.evidence.statistics.intervals import FEWEST_FOR_SPREAD, LEVEL, Summary, summarise
from realm_lab.evidence.statistics.paired import holm
from realm_lab.evidence.statistics.wording import mean_sd, number
from realm_lab.records.metrics import metric as metric_of
from realm_lab.records.study import StudyRecord

if TYPE_CHECKING:
    import pandas as pd

ROUNDING = 1e-6  # relative: results.csv has ten digits


State = Literal["OK", "within noise", "off", "unknown"]


class Check(NamedTuple):
    """A metric of a cell: `expected` over all seeds of the report, `found` over the `seeds` that runs here share."""

    cell: str
    metric: str
    expected: Summary
    found: Summary
    seeds: int
    p: float | None  # of the deviation, after Holm's correction; None: too few seeds to know the spread
    state: State


def expected_folder(root: Path, study: str) -> Path:
    """Return the report that a study is compared with: the committed one if there is one."""
    reports = Path(root) / "reports"
    committed = reports / "reference" / study
    return committed if (committed / "results.csv").is_file() else reports / study


def tolerance(found: Summary | None, span: float = math.inf, new: int | None = None) -> float | None:
    """Return the deviation that the mean of `new` runs (default: as many) exceeds in at most 5 % of cases; None for
    fewer than three seeds, or if the deviation reaches `span`, the range of the metric."""
    if found is None or found.sd is None or found.n < FEWEST_FOR_SPREAD:
        return None
    far = float(stats.t.ppf((1 + LEVEL) / 2, found.n - 1)) * found.sd * math.sqrt(2 / (new or found.n))
    return far if far < span else None


def expected_rows(record: StudyRecord, results: pd.DataFrame) -> Rows:
    """A row for each cell: the command that runs it again, and each metric's mean ± the deviation that is still
    noise."""
    rows = []
    for cell in record.cells:
        row = {"command": f"realm-lab reproduce {record.name}/{cell.name}"}
        for metric in (metric_of(name) for name in record.metrics if name in results):
            if metric.source != "run":
                found = summarise(column(results, cell.name, metric.name).values())
                shown = found and found._replace(sd=tolerance(found, metric.span))
                row[metric.title] = mean_sd(shown, metric.digits)
        rows.append(row)
    return rows


def compare_runs(expected: pd.DataFrame, found: pd.DataFrame, cells: Iterable[str]) -> list[Check]:
    """Check every metric of the results, except costs such as time, in each of `cells`, over the shared seeds."""
    if found.empty:
        return []
    names = [name for name in metric_columns(expected) if metric_of(name).source != "run"]
    checks = []
    for cell in cells:
        same = _very_runs(expected, found, cell)
        for name in names:
            old, new = column(expected, cell, name), column(found, cell, name)
            seeds = sorted(old.keys() & new.keys())
            whole, mine = summarise(old.values()), summarise(new[seed] for seed in seeds)
            if whole is None or mine is None:
                continue
            off = [seed for seed in seeds if not _same(old[seed], new[seed])]
            p, state = _judged(sum(new[seed] - old[seed] for seed in seeds) / len(seeds), whole, mine)
            if not off:
                p, state = 1.0, "OK"
            elif same & {*off}:  # this very run made the report: no noise explains another number
                p, state = 0.0, "off"
            checks.append(Check(cell, name, whole, mine, len(seeds), p, state))
    tested = [place for place, check in enumerate(checks) if check.p is not None]
    for place, p in zip(tested, holm([checks[place].p or 0.0 for place in tested]), strict=True):
        state = checks[place].state
        checks[place] = checks[place]._replace(p=p, state="within noise" if state == "off" and p > ALPHA else state)
    return checks


def in_words(check: Check, study: str) -> str:
    """Describe a check on one line."""
    digits, sd = metric_of(check.metric).digits, _larger_sd(check.expected, check.found)
    far = tolerance(check.expected._replace(sd=sd), metric_of(check.metric).span, check.seeds)
    allowed = f" (± {number(far, digits)})" if far is not None else ""
    chance = "" if check.p is None else f", p = {check.p:.3g}"
    found = f"{number(check.found.mean, digits)} over {check.seeds} seed{'s' * (check.seeds != 1)}"
    told = f"{number(check.expected.mean, digits)}{allowed}"
    return f"{study}/{check.cell}: {check.metric}: expected {told}, found {found}{chance}: {check.state}"


def _larger_sd(expected: Summary, found: Summary) -> float | None:
    """Return the larger standard deviation: that of a few seeds may be 0 by chance. None for one expected seed."""
    return None if expected.sd is None else max(expected.sd, found.sd or 0.0)


def _judged(deviation: float, expected: Summary, found: Summary) -> tuple[float | None, State]:
    if expected.n < FEWEST_FOR_SPREAD:
        return None, "unknown"
    spread = (_larger_sd(expected, found) or 0.0) * math.sqrt(2 / found.n)
    p = float(2 * stats.t.sf(abs(deviation) / spread, expected.n - 1)) if spread else 0.0
    return p, "off" if p <= ALPHA else "within noise"


def _very_runs(expected: pd.DataFrame, found: pd.DataFrame, cell: str) -> set[int]:
    """Return the seeds whose run here is the report's: it has the same key and, up to rounding, the same time."""
    times = [column(table, cell, "wall_seconds") for table in (expected, found)]
    keys = [dict(zip(mine["seed"], mine["run_key"], strict=True)) for table in (expected, found)
            for mine in (table[table["cell"] == cell],)]  # fmt: skip
    both = times[0].keys() & times[1].keys()
    return {seed for seed in both if keys[0][seed] == keys[1][seed] and _same(times[0][seed], times[1][seed])}


def _same(told: float, found: float) -> bool:
    return math.isclose(told, found, rel_tol=ROUNDING, abs_tol=1e-8)
