"""The tables of a report: rows of finished strings, one dict per row. The text around them is in the templates."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from realm_lab.evidence.report.comparison import MetricResult
from realm_lab.evidence.report.frames import SIDES, UPDATES, column, ordered_cells, summarise
from realm_lab.evidence.report.interactions import interactions
from realm_lab.evidence.report.noise import Sources
from realm_lab.evidence.report.rendering import mean_sd, words
from realm_lab.evidence.report.report_data import Report
from realm_lab.evidence.report.tuned import tuning_rows
from realm_lab.evidence.statistics.paired import compare, holm, step_down_max_t
from realm_lab.evidence.statistics.wording import (
    MINUS,
    NOTHING,
    detectable,
    difference,
    estimate,
    in_short,
    interval,
    needed,
    number,
    percent,
    signed,
)
from realm_lab.records.parameters import show
from realm_lab.records.study import StudyRecord

if TYPE_CHECKING:
    import pandas as pd

Rows = list[dict[str, str]]
REFERENCE = "bm25"  # results that a run measures of BM25 on the same passages
DIGEST_CHARACTERS = 12
OVERLAPS = {
    f"{what}_{group}": f"{heading}{unit}"
    for group, heading in (
        ("no_overlap", "neither"), ("answer_overlap_only", "answer only"), ("question_overlap", "question"),
    )
    for what, unit in (("exact_match", ""), ("questions", ", how many"))
}  # fmt: skip
COSTS = (  # value of a run, its title, its scale, its digits
    ("device_hours", "device hours", 1.0, 3),
    ("training_teraflop", "10¹² operations", 1.0, 2),
    ("peak_memory_gibibytes", "memory, GiB", 1.0, 2),
    ("energy_kilojoules", "energy, kJ", 1.0, 1),
    ("parameters", "10⁶ parameters", 1e6, 2),
)
OF_PRETRAINING = (  # curve whose end is shown, its title, its scale, its digits
    ("refresh_operations", "10¹² of refreshing", 1e12, 2),
    ("refresh_share_of_time", "refresh share of time", 1.0, 3),
)
UTILITY = {
    f"cloze_{name}_{when}": f"{title}, {when}"
    for name, title in (
        ("gold_log_likelihood", "log p(y|gold,x)"),
        ("null_log_likelihood", "log p(y|null,x)"),
        ("gold_rank", "median rank of gold"),
    )
    for when in ("start", "end")
}
CORPUS_UPDATE = {
    "corpus_update.follows": "follows the new version",
    "corpus_update.stays": "stays with the old",
    "corpus_update.wrong": "wrong",
    "corpus_update.unchanged_exact_match_before": "unchanged facts: exact match before",
    "corpus_update.unchanged_exact_match_after": "after",
}

UPDATED = {  # measure of a corpus update: its title and digits
    "log_likelihood": ("log p(y|x), nats", 2),
    "utility": ("utility, nats", 2),
    "answer_retrieved": ("a candidate has the answer", 3),
    "evidence_retrieved": ("a candidate supports the answer", 3),
    "exact_match": ("exact match", 3),
    "follows": ("follows the new version", 3),
    "stays": ("stays with the old", 3),
    "wrong": ("wrong", 3),
}

TITLES = {  # of `other_rows`
    "interactions": "Interactions of the two axes",
    "sources": "Sources of the variance",
    "overlap": "Exact match by overlap with training",
    "utility": "Retrieval utility by its parts",
    "collapse": "Collapsed runs",
    "cost": "Mean minutes of a run, by stage",
    "changes": "Cells",
    "tuning": "Tuning",
    "corpus_update": "Answers after the corpus was replaced, without training",
    "corpus_updates": "Finished runs with another corpus, without training",
    "not_measured": "Not measured",
    "not_run": "Not run",
}


def result_rows(result: MetricResult, results: pd.DataFrame) -> Rows:
    """One metric: a row for each cell, the baseline first, BM25 on the same passages if it was measured; with numbers
    of seeds if a cell lacks one."""
    seeds = {cell.finding.seeds if cell.finding else len(cell.values) for cell in result.cells if cell.values}
    has_seeds = bool(seeds - {results["seed"].nunique()})
    rows = []
    for cell in result.cells:
        finding = cell.finding
        row = {"cell": cell.cell.title}
        if has_seeds:
            row["n"] = str(finding.seeds if finding else len(cell.values))
        row["mean"] = number(cell.mean, result.metric.digits)
        row[_difference([result])] = difference(finding) if finding else NOTHING
        row["p"] = number(finding.corrected_p) if finding else NOTHING
        row["finding"] = in_short(finding) if finding else cell.gap or ""
        if not result.is_measured:
            row["finding"] = f"{cell.gap}: {cell.reason or result.reasons[0]}"
        if cell is result.baseline:
            row["finding"] = f"baseline, {row['finding']}" if cell.gap else "baseline"
        rows.append(row)
    if reference := [*reference_values(results, result.metric.name).values()]:
        shown = number(sum(reference) / len(reference), result.metric.digits)
        rows.append({"cell": "BM25, the same passages", "mean": shown, "finding": "reference"})
        rows[-1] |= {"n": str(len(reference))} if has_seeds else {}
    return rows


def _difference(results: Iterable[MetricResult]) -> str:
    """Heading of the differences, which have an interval from three seeds on."""
    findings = [cell.finding for result in results for cell in result.cells if cell.finding]
    return "difference [95 % interval]" if any(finding.interval for finding in findings) else "difference"


def detail_rows(result: MetricResult, results: pd.DataFrame) -> Rows:
    """Details of the same cells: seeds, spread and range, power, other questions, and published numbers."""
    rows = []
    for cell in result.cells:
        digits, finding, name = result.metric.digits, cell.finding, result.metric.name
        row = {"cell": cell.cell.title} | _spread(cell.values.values(), digits)
        row["smallest p"] = number(finding and finding.comparison.smallest_p)
        row["minimum detectable difference"] = detectable(finding) if finding else NOTHING
        row["seeds needed"] = needed(finding) if finding else NOTHING
        row["90 % interval"] = interval(finding.equivalence_interval if finding and finding.bound else None, digits)
        row["interquartile mean (95 %)"] = estimate(finding and finding.interquartile, digits)
        row["P(higher) (95 %)"] = estimate(finding and finding.probability_higher, 2)
        row["95 %, questions"] = interval(finding and finding.per_example, digits)
        row["95 %, seeds and questions"] = interval(finding and finding.seeds_and_questions, digits)
        row["paper"] = row["paper Δ"] = row["later papers"] = NOTHING
        if cell.paper and name in cell.paper.values:
            row["paper"] = number(cell.paper.values[name])
            row["paper Δ"] = signed(cell.paper.values[name] - cell.paper.baseline[name])
        if cell.paper and name in cell.paper.later:
            row["later papers"] = number(cell.paper.later[name])
        rows.append(row)
    if reference := reference_values(results, result.metric.name):
        rows.append(
            dict.fromkeys(rows[0], NOTHING)
            | {"cell": "BM25, the same passages"}
            | _spread(reference.values(), result.metric.digits)
        )
    known = {key for row in rows for key, value in row.items() if value != NOTHING} | {"n", "range"}
    return [{key: value for key, value in row.items() if key in known} for row in rows]


def reference_values(results: pd.DataFrame, metric: str) -> dict[int, float]:
    """seed -> value of BM25; every run of a seed measures the same, so each seed counts once."""
    name = f"{REFERENCE}.{metric}"
    return dict(results.dropna(subset=[name]).groupby("seed")[name].first()) if name in results else {}


def interaction_rows(report: Report) -> Rows:
    """A row for each interaction of the two axes."""
    rows = []
    for one in interactions(report.record, report.compared):
        rows.append(
            {
                "effect": f"{one.first} at {words([*report.record.axes][1])} {one.second}",
                "metric": one.metric.title,
                "difference of differences": difference(one.finding),
                "p": number(one.finding.corrected_p),
                "finding": in_short(one.finding),
            }
        )
    return rows


def other_title(key: str, report: Report) -> str:
    """The title of one of `other_rows`."""
    return f"{report.compared[0].metric.title} by both axes" if key == "axes" else TITLES[key]


def axes_rows(report: Report) -> Rows:
    """The first metric by the two axes: a row for each point of the first, a column for each of the second; empty
    without two axes."""
    if len(report.record.axes) != 2 or not report.compared:
        return []
    (first, points), (second, others) = report.record.axes.items()
    result = report.compared[0]
    at = {tuple(p.values()): cell.values for cell in result.cells if (p := cell.cell.points)}
    return [
        {words(first): point}
        | {
            f"{words(second)} {other}": mean_sd(summarise(at.get((point, other), {}).values()), result.metric.digits)
            for other in others
        }
        for point in points
    ]


def source_rows(report: Report) -> Rows:
    """A row for each metric and source of its variance; empty unless it is a study of noise."""
    rows = []
    for found in report.sources:
        for name, one in found.components.items():
            shown = number(math.sqrt(one.variance), found.metric.digits + 1)
            shown += f" (estimated variance {MINUS}{-one.raw:.1g})" if one.raw < 0 else ""
            rows.append(
                {
                    "metric": found.metric.title,
                    "source": words(name),
                    "standard deviation": shown,
                    "share of the variance": percent(one.share),
                    "95 % interval": f"{percent(one.interval.low)} to {percent(one.interval.high)}",
                    "degrees of freedom": str(one.freedom),
                }
            )
    return rows


def seed_text(found: Sources) -> str:
    """The shares of a metric's sources in one sentence."""
    (seed, of_seed), *others = [(words(name), f"{100 * one.share:.0f} %") for name, one in found.components.items()]
    rest = "".join(f", {share} the {name}" for name, share in others)
    return f"{found.metric.title}: {of_seed} of the variance is the {seed}{rest}"


def group_rows(results: pd.DataFrame, cells: Sequence[tuple[str, str]], columns: Mapping[str, str]) -> Rows:
    """Mean and spread of several columns (column -> heading), a row for each cell that has any of them."""
    rows = []
    for name, title in cells:
        found = {key: summarise(column(results, name, key).values()) for key in columns}
        if any(found.values()):
            shown = {heading: mean_sd(found[key], 0 if "questions" in key else 3) for key, heading in columns.items()}
            rows.append({"cell": title, "n": str(max(one.n for one in found.values() if one))} | shown)
    return rows


def update_rows(results: pd.DataFrame, cells: Sequence[tuple[str, str]]) -> Rows:
    """Return a row for each measure of each corpus update of a cell: both corpora, the change, and its p, corrected for
    all rows."""
    groups = dict.fromkeys(name.rsplit(".", 2)[0] for name in map(str, results) if name.startswith(f"{UPDATES}."))
    rows, changes = [], []
    for (name, title), group, (measure, (heading, digits)) in itertools.product(cells, groups, UPDATED.items()):
        before, after = (column(results, name, f"{group}.{side}.{measure}") for side in SIDES)
        if found := compare(after, before):
            row = {"cell": title, "update": group.partition(".")[2], "measure": heading, "seeds": str(len(found.seeds))}
            row |= {"old": _mean(before, 1, digits), "new": _mean(after, 1, digits)}
            shown = f" [{interval(found.interval, digits)}]" if len(found.seeds) > 2 else ""
            rows.append(row | {"new − old [95 %]": f"{signed(found.mean, digits)}{shown}"})
            changes.append(found.by_seed)
    return [row | {"p": number(p)} for row, p in zip(rows, step_down_max_t(changes), strict=True)] if rows else []


def collapse_rows(report: Report) -> Rows:
    """Each cell with the baseline: rates of collapse, and the first metric where neither collapsed; empty if no run
    collapsed."""
    found = report.collapse
    adjusted = dict(zip(found, holm([one.p for one in found.values()]), strict=True))
    rows = []
    for name, title in report.cells:
        if one := found.get(name):
            metric, alive = report.compared[0].metric, one.alive
            rows.append(
                {
                    "cell": title,
                    "collapsed": f"{one.cell} of {one.seeds}",
                    "baseline, same seeds": f"{one.baseline} of {one.seeds}",
                    "p, corrected": number(adjusted[name]),
                    "seeds where neither collapsed": str(len(alive.deltas)) if alive else "0",
                    "difference there": signed(alive and alive.mean, metric.digits),
                    "95 % interval there": interval(alive and alive.interval.within(metric.span), metric.digits),
                }
            )
    return rows


def cost_rows(report: Report) -> Rows:
    """Mean minutes of a complete run by stage, device hours, and the share of refreshing in pre-training."""
    cost, results = report.data["cost"], report.results
    minutes = [cost[name]["minutes"] for name, _ in report.cells]
    stages = dict.fromkeys(stage for stages in sorted(minutes, key=len, reverse=True) for stage in stages)
    rows = []
    for name, title in report.cells:
        row = {"cell": title, "runs": str(coverage(results, name)["complete"])}
        for stage in stages:
            row[stage.replace("_", " ")] = number(cost[name]["minutes"].get(stage), 1)
        row["all"] = _mean(column(results, name, "wall_seconds"), 60.0, 1)
        for value, heading, scale, digits in COSTS:
            row[heading] = _mean(column(results, name, value), scale, digits)
        for metric, heading, scale, digits in OF_PRETRAINING:
            row[heading] = number(cost[name][metric] / scale, digits) if metric in cost[name] else NOTHING
        rows.append(row)
    unknown = {heading for _, heading, *_ in COSTS if all(row[heading] == NOTHING for row in rows)}  # of older runs
    return [{heading: value for heading, value in row.items() if heading not in unknown} for row in rows]


def run_rows(report: Report) -> Rows:
    """Return every run: its source, and for an incomplete one its stage and the cause."""
    results = report.results
    found = dict(zip(zip(results["cell"], results["seed"], strict=True), results.to_dict("records"), strict=True))
    rows = []
    for run in report.data["runs"]:
        told = found[run["cell"], run["seed"]]
        row = {"cell, seed": f"{run['cell']}, {run['seed']}", "run": run["run"], "state": told["status"]}
        rows.append(row)
        if "commits" in run:
            commits = ", ".join(commit[:DIGEST_CHARACTERS] for commit in run["commits"]) or NOTHING
            row |= {"engine": str(told["engine_version"]), "commit": commits + " + changes" * run["is_changed"]}
            row["corpus"] = str(run["corpus"] or NOTHING)[:DIGEST_CHARACTERS]
        if "stage" in run:
            row |= {"stage": run["stage"], "step": f"{run['step']} of {run['total_steps']}"}
        if "error" in run:
            row["why"] = run["error"] or NOTHING
    return rows


def other_rows(report: Report) -> dict[str, Rows]:
    """The tables of a study besides those of the metrics and the runs, by name."""
    results, cells = report.results, report.cells
    return {
        "axes": axes_rows(report),
        "interactions": interaction_rows(report),
        "sources": source_rows(report),
        "overlap": group_rows(results, cells, OVERLAPS),
        "utility": group_rows(results, cells, UTILITY),
        "collapse": collapse_rows(report),
        "cost": cost_rows(report),
        "changes": change_rows(report.record),
        "tuning": tuning_rows(report.record),
        "corpus_update": group_rows(results, cells, CORPUS_UPDATE),
        "corpus_updates": update_rows(results, cells),
        "not_measured": [
            {"cell": title, "part": part, "why": reason}
            for name, title in cells
            for part, reason in report.data["not_measured"].get(name, {}).items()
        ],
        "not_run": [{"system": name, "why": why} for name, why in report.record.not_run.items()],
    }


def coverage(results: pd.DataFrame, cell: str | None = None) -> dict[str, Any]:
    """Number of runs, of complete ones, and of those in each state."""
    states = Counter(results["status"] if cell is None else results["status"][results["cell"] == cell])
    return {"runs": states.total(), "complete": states.get("COMPLETE", 0), "states": dict(sorted(states.items()))}


def unfinished(results: pd.DataFrame) -> list[str]:
    """A sentence on runs that are not complete; empty if all are."""
    counts = coverage(results)
    states = ", ".join(f"{count} {state}" for state, count in counts["states"].items() if state != "COMPLETE")
    return [f"Incomplete: {counts['complete']} of {counts['runs']} runs are complete ({states})."] if states else []


def change_rows(record: StudyRecord) -> Rows:
    """Return each cell's changes of the baseline."""
    base, rows = record.cell(record.baseline), []
    for name, title in ordered_cells(record):
        cell = record.cell(name)
        parts = [f"{key} = {show(value)}" for key, value in cell.changes.items()]
        parts += [f"system {cell.system}"] if cell.system != base.system else []
        rows.append({"cell": name, "title": title, "changes": "; ".join(parts) or "nothing: the baseline"})
    return rows


def _spread(values: Iterable[float], digits: int) -> dict[str, str]:
    found = summarise(values)
    if found is None:
        return {"n": "0", "sd": NOTHING, "range": NOTHING}
    shown = f"{number(found.min, digits)} to {number(found.max, digits)}"
    return {"n": str(found.n), "sd": number(found.sd, digits), "range": shown}


def _mean(values: Mapping[int, float], scale: float, digits: int) -> str:
    return number(sum(values.values()) / len(values) / scale, digits) if values else NOTHING
