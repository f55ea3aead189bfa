"""The tables of a report: rows of finished strings, one dict a row. What is said about them is in the templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from realm_lab.params.load import show
from realm_lab.reporting.comparison import CellResult, MetricResult
from realm_lab.reporting.frames import StudyFrames, column, not_measured, summarise
from realm_lab.reporting.rendering import NOTHING, interval, mean_sd, number, signed

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

TITLES = {  # of `other_rows`, in a paper
    "overlap": "Exact match by overlap with training",
    "utility": "What utility is made of",
    "cost": "Mean minutes of a run, by stage",
    "changes": "What each cell changes",
    "corpus_update": "Answers after the corpus was replaced without training",
    "not_measured": "What a system cannot be measured in",
    "not_run": "What was not run",
}


def result_rows(result: MetricResult, results: pd.DataFrame) -> Rows:
    """One metric: a row a cell, the baseline first, BM25 on the same passages where it was measured."""
    rows = [result_row(cell, result) for cell in result.cells]
    if reference := [*reference_values(results, result.metric.name).values()]:
        spread = _spread(reference, result.metric.digits)
        rows.append({"cell": "BM25, the same passages", **spread, "finding": "reference"})
    return rows


def result_row(cell: CellResult, result: MetricResult) -> dict[str, str]:
    """One cell in one metric."""
    digits, found = result.metric.digits, cell.comparison
    row = {"cell": cell.cell.title, **_spread(cell.values.values(), digits)}
    row["Δ"] = signed(found and found.mean, digits)
    row["95 %"] = interval(found and found.interval, digits)
    row["corrected p (smallest)"] = NOTHING
    if cell.judged and found:
        row["corrected p (smallest)"] = f"{number(cell.judged.corrected_p)} ({number(found.smallest_p)})"
    if any(other.per_example is not None for other in result.cells):
        row["95 %, examples"] = interval(cell.per_example, digits)
    row["finding"] = cell.sentence
    if cell is result.baseline:
        row["finding"] = "baseline" if cell.values else f"baseline, {cell.gap}"
    if cell.paper and result.metric.name in cell.paper.values:
        value = cell.paper.values[result.metric.name]
        row["paper"] = number(value)
        row["paper Δ"] = signed(value - cell.paper.baseline[result.metric.name])
    if cell.paper and result.metric.name in cell.paper.later:
        row["later papers"] = number(cell.paper.later[result.metric.name])
    return row


def reference_values(results: pd.DataFrame, metric: str) -> dict[int, float]:
    """seed -> value of BM25; every run of a seed measures the same, so each seed counts once."""
    name = f"{REFERENCE}.{metric}"
    return dict(results.dropna(subset=[name]).groupby("seed")[name].first()) if name in results else {}


def group_rows(results: pd.DataFrame, cells: Sequence[tuple[str, str]], columns: Mapping[str, str]) -> Rows:
    """Mean and spread of several columns (column -> heading), a row for each cell that has any of them."""
    rows = []
    for name, title in cells:
        found = {key: summarise(column(results, name, key).values()) for key in columns}
        if any(found.values()):
            shown = {heading: mean_sd(found[key], 0 if "questions" in key else 3) for key, heading in columns.items()}
            rows.append({"cell": title, "n": str(max(one.n for one in found.values() if one))} | shown)
    return rows


def cost_rows(study: StudyFrames) -> Rows:
    """Mean minutes of a complete run by stage, device hours, and what refreshing the index took of pre-training."""
    longest_first = sorted(study.runs, key=lambda run: -len(run.stages))
    stages = list(dict.fromkeys(stage for run in longest_first for stage in run.stages))
    ends = study.curves.groupby(["cell", "metric", "seed"])["value"].last()
    rows = []
    for name, title in study.cells:
        runs = [run for run in study.of(name) if run.is_complete]
        row = {"cell": title, "runs": str(len(runs))}
        for stage in stages:
            times = [run.state.stages[stage].status.wall_seconds / 60 for run in runs if stage in run.stages]
            row[stage.replace("_", " ")] = _mean(times, 1)
        row["all"] = _mean([run.values["wall_seconds"] / 60 for run in runs], 1)
        for value, heading, scale, digits in COSTS:
            row[heading] = _mean([run.values[value] / scale for run in runs if value in run.values], digits)
        for metric, heading, scale, digits in OF_PRETRAINING:
            row[heading] = _mean([*ends.get((name, metric), pd.Series(dtype=float)) / scale], digits)
        rows.append(row)
    unknown = {heading for _, heading, *_ in COSTS if all(row[heading] == NOTHING for row in rows)}  # of older runs
    return [{heading: value for heading, value in row.items() if heading not in unknown} for row in rows]


def run_rows(study: StudyFrames) -> Rows:
    """Every run: where it comes from, and of one that is not complete its stage and the cause."""
    found = {(run.cell, run.seed): run for run in study.runs}
    rows = []
    for member in study.record.runs:
        run = found.get((member.cell, member.seed))
        row = {"cell": member.cell, "seed": str(member.seed), "run": member.run}
        rows.append(row)
        if run is None:
            row |= {"state": "PENDING", "why": "not readable"}
            continue
        commits = ", ".join(sorted(commit[:DIGEST_CHARACTERS] for commit in run.environment("git_commit")))
        row["state"], row["engine"] = run.state.state, str(run.record.engine_version)
        row["commit"] = (commits or NOTHING) + " + changes" * ("True" in run.environment("git_dirty"))
        row["corpus"] = str(run.record.inputs.get("corpus", NOTHING))[:DIGEST_CHARACTERS]
        if run.state.stage:
            status = run.state.stages[run.state.stage].status
            row |= {"stage": run.state.stage, "step": f"{status.step} of {status.total_steps}"}
            row["why"] = run.state.error or NOTHING
    return rows


def other_rows(study: StudyFrames) -> dict[str, Rows]:
    """The tables of a study besides those of the metrics and the runs, by name."""
    return {
        "overlap": group_rows(study.results, study.cells, OVERLAPS),
        "utility": group_rows(study.results, study.cells, UTILITY),
        "cost": cost_rows(study),
        "changes": change_rows(study),
        "corpus_update": group_rows(study.results, study.cells, CORPUS_UPDATE),
        "not_measured": [
            {"cell": title, "part": part, "why": reason}
            for name, title in study.cells
            for part, reason in (not_measured(study.results, name) or {}).items()
        ],
        "not_run": [{"system": name, "why": why} for name, why in study.record.not_run.items()],
    }


def coverage(study: StudyFrames, cell: str | None = None) -> dict[str, Any]:
    """How many runs there are, how many are complete, and how many are in each state."""
    results = study.results if cell is None else study.results[study.results["cell"] == cell]
    states = Counter(results["status"])
    return {"runs": len(results), "complete": states.get("COMPLETE", 0), "states": dict(sorted(states.items()))}


def unfinished(study: StudyFrames) -> list[str]:
    """A sentence on runs that are not complete; empty where all are."""
    counts = coverage(study)
    states = ", ".join(f"{count} {state}" for state, count in counts["states"].items() if state != "COMPLETE")
    return [f"Incomplete: {counts['complete']} of {counts['runs']} runs are complete ({states})."] if states else []


def change_rows(study: StudyFrames) -> Rows:
    """What each cell changes of the baseline."""
    base, rows = study.record.cell(study.record.baseline), []
    for name, title in study.cells:
        cell = study.record.cell(name)
        parts = [f"{key} = {show(value)}" for key, value in cell.changes.items()]
        parts += [f"system {cell.system}"] if cell.system != base.system else []
        rows.append({"cell": name, "title": title, "changes": "; ".join(parts) or "nothing: the baseline"})
    return rows


def _spread(values: Iterable[float], digits: int) -> dict[str, str]:
    found = summarise(values)
    if found is None:
        return {"n": "0", "mean ± sd": NOTHING, "range": NOTHING}
    ends = f"{number(found.min, digits)} to {number(found.max, digits)}"
    return {"n": str(found.n), "mean ± sd": mean_sd(found, digits), "range": ends}


def _mean(values: Sequence[float], digits: int) -> str:
    return number(sum(values) / len(values), digits) if values else NOTHING
