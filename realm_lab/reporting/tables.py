"""The tables of a report: rows of finished strings, one dict a row. What is said about them is in the templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from realm_lab.params import load as config
from realm_lab.params.load import show
from realm_lab.params.parameters import Params
from realm_lab.reporting.comparison import CellResult, MetricResult
from realm_lab.reporting.confounds import flat_parameters, paper_parameters
from realm_lab.reporting.frames import Run, StudyFrames, column, summarise
from realm_lab.reporting.rendering import NOTHING, interval, mean_sd, number, signed

Rows = list[dict[str, str]]
REFERENCE = "bm25"  # results that a run measures of BM25 on the same passages
DIGEST_CHARACTERS = 12
OVERLAPS = {"no_overlap": "neither", "answer_overlap_only": "answer only", "question_overlap": "question"}
CORPUS_UPDATE = {
    "follows": "follows the new version",
    "stays": "stays with the old",
    "wrong": "wrong",
    "unchanged_exact_match_before": "unchanged facts: exact match before",
    "unchanged_exact_match_after": "after",
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
    digits = result.metric.digits
    row = {"cell": cell.cell.title, **_spread([*cell.values.values()], digits)}
    found = cell.comparison
    row["Δ"] = signed(found.mean, digits) if found else NOTHING
    row["95 %"] = interval(found.interval if found else None, digits)
    row["p (smallest)"] = f"{number(cell.corrected_p)} ({number(cell.smallest_p)})" if found else NOTHING
    if any(other.per_example is not None for other in result.cells):
        row["95 %, examples"] = interval(cell.per_example, digits)
    row["finding"] = "baseline" if cell is result.baseline else cell.finding
    if cell.paper and result.metric.name in cell.paper.values:
        value = cell.paper.values[result.metric.name]
        row["paper"] = number(value)
        row["paper Δ"] = signed(value - cell.paper.baseline[result.metric.name])
    return row


def tuned_rows(result: MetricResult, equal: MetricResult, chosen: Mapping[str, str], short: str, own: str) -> Rows:
    """`result_row` of cells at their best values, with that value and the difference all else equal."""
    before = {cell.cell.name: cell.comparison for cell in equal.cells}
    rows = []
    for cell in result.cells:
        row = result_row(cell, result)
        row = {"cell": row.pop("cell"), short: chosen.get(cell.cell.name, NOTHING)} | row
        other = before[cell.cell.name]
        rows.append(row | {f"Δ at {own}": signed(other.mean, result.metric.digits) if other else NOTHING})
    return rows


def reference_values(results: pd.DataFrame, metric: str) -> dict[int, float]:
    """seed -> value of BM25; every run of a seed measures the same, so each seed counts once."""
    name = f"{REFERENCE}.{metric}"
    if name not in results:
        return {}
    known = results[results[name].notna()].drop_duplicates("seed")
    return {int(seed): float(value) for seed, value in zip(known["seed"], known[name], strict=True)}


def overlap_rows(results: pd.DataFrame, cells: Sequence[tuple[str, str]]) -> Rows:
    """Exact match split by what training had already said; empty where no run was measured so."""
    if not any(f"questions_{group}" in results for group in OVERLAPS):
        return []
    rows = []
    for name, title in cells:
        row = {"cell": title}
        for group, heading in OVERLAPS.items():
            row[heading] = mean_sd(summarise(column(results, name, f"exact_match_{group}").values()))
            questions = summarise(column(results, name, f"questions_{group}").values())
            row[f"questions, {heading}"] = number(questions.mean, 0) if questions else NOTHING
        rows.append(row)
    return rows


def corpus_update_rows(results: pd.DataFrame, cells: Sequence[tuple[str, str]]) -> Rows:
    """The paper's Table 4, a row a cell: what answers do when the corpus is replaced and nothing is trained."""
    rows = []
    for name, title in cells:
        values = {key: column(results, name, f"corpus_update.{key}") for key in (*CORPUS_UPDATE, "changed_questions")}
        if any(values.values()):
            row = {"cell": title, "n": str(max(map(len, values.values())))}
            row |= {heading: mean_sd(summarise(values[key].values())) for key, heading in CORPUS_UPDATE.items()}
            rows.append(row | {"changed questions": mean_sd(summarise(values["changed_questions"].values()), 0)})
    return rows


def cost_rows(study: StudyFrames) -> Rows:
    """Mean minutes of a complete run by stage, device hours, and what refreshing the index took of pre-training."""
    longest_first = sorted(study.own_runs, key=lambda run: -len(run.stages))
    stages = list(dict.fromkeys(stage for run in longest_first for stage in run.stages))
    rows = []
    for name, title in study.cells:
        runs = [run for run in study.of(name) if run.is_complete]
        row = {"cell": title, "runs": str(len(runs))}
        for stage in stages:
            times = [run.state.stages[stage].status.wall_seconds / 60 for run in runs if stage in run.stages]
            row[stage.replace("_", " ")] = _mean(times, 1)
        row["all"] = _mean([run.values["wall_seconds"] / 60 for run in runs], 1)
        row["device hours"] = _mean([run.values["device_hours"] for run in runs], 3)
        mine = study.curves[study.curves["cell"] == name]
        for metric, what in (("flops", "FLOPs"), ("time", "time")):
            share = mine[mine["metric"] == f"refresh_share_of_{metric}"].groupby("seed")["value"].last()
            row[f"refresh share of {what}"] = _mean(list(share), 3)
        rows.append(row)
    return rows


def state_rows(study: StudyFrames) -> Rows:
    """A row for each run that is not complete or has no readable results: its state, stage and cause."""
    found = {(run.cell, run.seed): run for run in study.runs}
    rows = []
    for member in study.record.everything().runs:
        run = found.get((member.cell, member.seed))
        if run is not None and run.is_complete:
            continue
        row = {"cell": member.cell, "seed": str(member.seed), "run": member.run}
        if run is None:
            row |= {"state": "PENDING", "stage": NOTHING, "step": NOTHING, "why": "no readable run.json"}
        else:
            stage = run.state.stages.get(run.state.stage or "")
            step = (
                f"{stage.status.step} of {stage.status.total_steps}" if stage and stage.status.total_steps else NOTHING
            )
            why = run.state.error or ("no readable results" if run.state.state == "COMPLETE" else NOTHING)
            row |= {"state": run.state.state, "stage": run.state.stage or NOTHING, "step": step, "why": why}
        rows.append(row)
    return rows


def coverage(study: StudyFrames, cell: str | None = None) -> dict[str, Any]:
    """How many runs there are, how many are complete, and how many are in each state."""
    results = study.results if cell is None else study.results[study.results["cell"] == cell]
    states = Counter(results["status"])
    return {"runs": len(results), "complete": states.get("COMPLETE", 0), "states": dict(sorted(states.items()))}


def change_rows(study: StudyFrames) -> Rows:
    """What each cell changes of the baseline."""
    record, base = study.record, study.record.cell(study.record.baseline)
    rows = []
    for name, title in study.cells:
        cell = record.cell(name)
        parts = [f"{key} = {show(value)}" for key, value in cell.changes.items()]
        parts += [f"system {cell.system}"] if cell.system != base.system else []
        rows.append({"cell": name, "title": title, "changes": "; ".join(parts) or "nothing: the baseline"})
    return rows


def identity_rows(runs: Sequence[Run]) -> Rows:
    """Where every run comes from."""
    rows = []
    for run in runs:
        commits = sorted(commit[:DIGEST_CHARACTERS] for commit in run.environment("git_commit"))
        dirty = " + changes" if "True" in run.environment("git_dirty") else ""
        rows.append(
            {
                "run": run.name,
                "cell": run.cell,
                "state": run.state.state,
                "engine": str(run.record.engine_version),
                "commit": ", ".join(commits) + dirty if commits else NOTHING,
                "corpus": str(run.record.inputs.get("corpus", NOTHING))[:DIGEST_CHARACTERS],
            }
        )
    return rows


def machines(runs: Sequence[Run]) -> list[str]:
    """On what the runs were made: Python, torch, processor."""
    found = set()
    for env in (env for run in runs for env in run.environments.values()):
        packages = env["packages"] if isinstance(env.get("packages"), dict) else {}
        processor = env.get("cpu") or env.get("device")
        parts = [
            f"{name} {value}"
            for name, value in (("Python", env.get("python")), ("torch", packages.get("torch")))
            if value
        ]
        parts += [f"{processor} ({env['cores']} cores)" if env.get("cores") else str(processor)] if processor else []
        found.add(", ".join(parts))
    return sorted(found - {""})


def parameter_rows(study: StudyFrames) -> Rows:
    """What the baseline's parameters change by hand of its preset's, beside the paper's values."""
    runs = study.of(study.record.baseline)
    if not runs:
        return []
    here, paper = flat_parameters(runs[0].record.params), paper_parameters()
    preset = _preset(runs[0].record.preset) or paper
    keys = sorted(key for key in here.keys() & preset.keys() if here[key] != preset[key])
    return [
        {"parameter": key, "here": show(here[key]), "preset": show(preset[key]), "paper": show(paper.get(key))}
        for key in keys
    ]


def _preset(name: str) -> dict[str, Any] | None:
    try:
        return flat_parameters(Params(**config.preset_values(name) | {"preset": name}).model_dump(mode="json"))
    except ValueError:  # UserError and pydantic's are ValueErrors: a preset of another version of the project
        return None


def _spread(values: list[float], digits: int) -> dict[str, str]:
    found = summarise(values)
    if found is None:
        return {"n": "0", "mean ± sd": NOTHING, "range": NOTHING}
    ends = f"{number(found.min, digits)} to {number(found.max, digits)}"
    return {"n": str(found.n), "mean ± sd": mean_sd(found, digits), "range": ends}


def _mean(values: Sequence[float], digits: int) -> str:
    return number(sum(values) / len(values), digits) if values else NOTHING
