"""Is a report right? Its numbers are compared with each other, and with runs that are here (docs/reproduce.md).

The mean deviation d of a cell's new runs over the m seeds that both have is compared with what two such sets of runs
differ by: t = d / (sd · √(2/m)), sd over the report's n seeds, n - 1 degrees of freedom. Holm's correction over all
that is compared keeps the chance of any false "off" at 5 %.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from scipy import stats

from realm_lab.core.files import read_json
from realm_lab.metrics import metric as metric_of
from realm_lab.reporting.comparison import as_json, compare_cells
from realm_lab.reporting.family import ALPHA
from realm_lab.reporting.frames import Summary, column, load_committed, metric_columns, summarise
from realm_lab.reporting.index import design_of
from realm_lab.reporting.rendering import escape_markdown, mean_sd, number
from realm_lab.reporting.statistics import LEVEL, holm
from realm_lab.reporting.tables import Rows, result_rows
from realm_lab.tracking.study_record import DEFAULT, StudyRecord

ROUNDING = 1e-6  # relative: results.csv has ten digits
TITLE = "Expected values"


class Check(NamedTuple):
    """A metric of a cell in the report, and in runs that are here, over the seeds that both have."""

    cell: str
    metric: str
    expected: Summary
    found: Summary
    seeds: int
    p: float | None  # of such a deviation, after Holm's correction; None where one seed gives no spread
    state: str  # OK, within noise, off, or unknown


def expected_folder(root: Path, study: str) -> Path:
    """The report that a study is compared with: the committed one where there is one."""
    reports = Path(root) / "reports"
    committed = reports / "reference" / study
    return committed if (committed / "results.csv").is_file() else reports / study


def tolerance(found: Summary | None) -> float | None:
    """By how much the mean of as many new runs deviates in at most 5 % of the cases; None for one seed."""
    if found is None or found.sd is None:
        return None
    return float(stats.t.ppf((1 + LEVEL) / 2, found.n - 1)) * found.sd * math.sqrt(2 / found.n)


def expected_rows(record: StudyRecord, results: pd.DataFrame, metrics: Sequence[str]) -> Rows:
    """A row a cell: the command that runs it again, what to expect of each metric, and how far off is still noise."""
    rows = []
    for cell in record.cells:
        row = {"command": f"realm-lab reproduce {record.name}/{cell.name}"}
        for name in metrics:
            if name in results and metric_of(name).source != "run":
                found, digits = summarise(column(results, cell.name, name).values()), metric_of(name).digits
                row[metric_of(name).title] = mean_sd(found and found._replace(sd=tolerance(found)), digits)
        rows.append(row)
    return rows


def contradictions(folder: Path) -> list[str]:
    """Where summary.json, report.md and (of the default run) metrics.json say something else than results.csv."""
    summary, results = load_committed(folder)
    record, found = design_of(summary), []
    for cell, told in summary["cells"].items():
        for name, values in told["metrics"].items():
            again = summarise(column(results, cell, name).values())
            for key, value in values.items():
                mine = getattr(again, key, None)
                if not _same(value, mine, abs(values["mean"])):  # a small sd of large values has fewer digits
                    found.append(f"summary.json: {cell}, {name}: {key} is {value}, results.csv gives {mine}")
    metrics = folder.parent / "metrics.json"
    if folder.name == DEFAULT and metrics.is_file():
        for cell, name in ((cell.name, name) for cell in record.cells for name in metric_columns(results)):
            again = summarise(column(results, cell, name).values())
            told = read_json(metrics).get(cell, {}).get(name)
            if told is not None and not _same(told, again and again.mean):
                found.append(f"metrics.json: {cell}.{name} is {told}, results.csv gives {again and again.mean}")
    text = (folder / "report.md").read_text(encoding="utf-8") if (folder / "report.md").is_file() else ""
    shown = dict(_tables(text))
    compared = compare_cells(record, results, summary["metrics"])
    comparisons = as_json(compared)
    for name, cells in summary["comparisons"].items():
        for cell, told in cells.items():
            corrected = ("corrected_p",) if "tests" in told else ()  # older code corrected by metric
            for key in ("delta", "interval", "p", *corrected):
                mine = comparisons.get(name, {}).get(cell, {}).get(key)
                if not _same(told[key], mine):
                    found.append(f"summary.json: {cell}, {name}: {key} is {told[key]}, results.csv gives {mine}")
    for result in compared:
        found += _differences(result.metric.title, shown, result_rows(result, results))
    return found + _differences(TITLE, shown, expected_rows(record, results, summary["metrics"]))


def compare_runs(
    expected: pd.DataFrame, found: pd.DataFrame, cells: Iterable[str], metrics: Sequence[str] | None = None
) -> list[Check]:
    """Every number of results (time aside) in each of the cells that both have, and what to think of the difference."""
    names = [name for name in metrics or metric_columns(expected) if metric_of(name).source != "run"]
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
    tested = [check for check in checks if check.p is not None]
    corrected = dict(zip(map(id, tested), holm([check.p or 0.0 for check in tested]), strict=True))
    return [_after_holm(check, corrected[id(check)]) if id(check) in corrected else check for check in checks]


def _after_holm(check: Check, p: float) -> Check:
    return check._replace(p=p, state="within noise" if check.state == "off" and p > ALPHA else check.state)


def in_words(check: Check, study: str) -> str:
    """One check on one line."""
    digits, sd = metric_of(check.metric).digits, _larger_sd(check.expected, check.found)
    far = tolerance(check.expected._replace(sd=sd))
    allowed = f" (± {number(far, digits)})" if far is not None else ""
    chance = "" if check.p is None else f", p = {check.p:.3g}"
    found = f"{number(check.found.mean, digits)} over {check.seeds} seed{'s' * (check.seeds != 1)}"
    told = f"{number(check.expected.mean, digits)}{allowed}"
    return f"{study}/{check.cell}: {check.metric}: expected {told}, found {found}{chance}: {check.state}"


def _larger_sd(expected: Summary, found: Summary) -> float | None:
    """The larger spread of the two: that of a few seeds may be 0 by chance. None for one seed."""
    return None if expected.sd is None else max(expected.sd, found.sd or 0.0)


def _judged(deviation: float, expected: Summary, found: Summary) -> tuple[float | None, str]:
    if expected.sd is None:
        return None, "unknown"
    spread = (_larger_sd(expected, found) or 0.0) * math.sqrt(2 / found.n)
    p = float(2 * stats.t.sf(abs(deviation) / spread, expected.n - 1)) if spread else 0.0
    return p, "off" if p <= ALPHA else "within noise"


def _very_runs(expected: pd.DataFrame, found: pd.DataFrame, cell: str) -> set[int]:
    """The seeds whose run here is the one that the report was made from: the same key, the same time to the digit."""
    times = [column(table, cell, "wall_seconds") for table in (expected, found)]
    keys = [dict(zip(mine["seed"], mine["run_key"], strict=True)) for table in (expected, found)
            for mine in (table[table["cell"] == cell],)]  # fmt: skip
    both = times[0].keys() & times[1].keys()
    return {seed for seed in both if keys[0][seed] == keys[1][seed] and _same(times[0][seed], times[1][seed])}


def _same(told: Any, found: Any, scale: float = 0.0) -> bool:
    if isinstance(told, list) and isinstance(found, list):
        return all(map(_same, told, found))
    if told is None or found is None:
        return told is found
    return math.isclose(told, found, rel_tol=ROUNDING, abs_tol=max(1e-8, 1e-9 * scale))


def _tables(text: str) -> Iterable[tuple[str, list[dict[str, str]]]]:
    """(title, rows) of the Markdown tables below a bold title or a heading."""
    title, lines = "", text.splitlines()
    for place, line in enumerate(lines):
        if heading := re.match(r"\*\*(.+?)\.?\*\*|#+ (.+)", line):
            title = heading[1] or heading[2]
        if re.fullmatch(r"[|\s:-]+", line) and "-" in line and place:
            names, rows = _cells(lines[place - 1]), []
            for row in lines[place + 1 :]:
                if not row.startswith("|"):
                    break
                rows.append(dict(zip(names, _cells(row), strict=False)))
            yield title.lower(), rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _differences(title: str, shown: dict[str, list[dict[str, str]]], rows: Rows) -> list[str]:
    """Cells of a table in report.md that are not those of the rows; what a report of other code lacks is left out."""
    found = []
    for told, row in zip(shown.get(str(escape_markdown(title)).lower(), []), rows, strict=False):
        for key, value in row.items():
            mine = str(escape_markdown(value))
            if key not in ("finding", "95 %, examples") and told.get(key, mine) != mine:
                found.append(f"report.md: {title}, {next(iter(row.values()))}: {key} is {told[key]}, not {value}")
    return found
