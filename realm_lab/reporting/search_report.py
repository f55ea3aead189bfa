"""reports/NAME of a search: search.csv, summary.json and report.md with its drawings."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from realm_lab.core.files import read_json, write_json, write_text
from realm_lab.metrics import CURVES, metric
from realm_lab.params.load import show
from realm_lab.reporting.figures import draw, history_figure
from realm_lab.reporting.frames import write_results
from realm_lab.reporting.rendering import NOTHING, number, render
from realm_lab.reporting.report import write_figures
from realm_lab.tracking.study_record import study_folder

STATES = ("complete", "pruned", "failed", "running")
ENOUGH_TRIALS = 50  # complete: PED-ANOVA looks at the best tenth, which is five then

Trial = dict[str, Any]  # as trials.json has it: number, cell, state, values, value, runs, step, why


def write_search_report(root: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Write everything from runs/studies/NAME/trials.json; returns the folder and what summary.json says."""
    plan = SimpleNamespace(**read_json(study_folder(Path(root) / "runs", name) / "trials.json"))
    folder = Path(root) / "reports" / plan.name
    trials: list[Trial] = sorted(plan.trials, key=lambda trial: trial["number"])
    complete = [trial for trial in trials if trial["state"] == "complete" and trial["value"] is not None]
    sign = 1.0 if plan.direction == "maximize" else -1.0
    best = max(complete, key=lambda trial: (sign * trial["value"], -trial["number"]), default=None)
    base = next((trial for trial in trials if trial["values"] == plan.baseline), None)
    base_value = base["value"] if base in complete else None
    counts = {state: sum(trial["state"] == state for trial in trials) for state in STATES}
    title = (CURVES.get(plan.metric) or metric(plan.metric)).title
    history = draw(
        "history",
        f"{title} of every trial, in the order in which they were proposed.",
        lambda: history_figure(pd.DataFrame(trials), base_value, title, maximise=sign > 0),
    )
    found = [history] if history else []
    summary = {
        "search": plan.name,
        "question": plan.question,
        "metric": plan.metric,
        "direction": plan.direction,
        "seeds": list(plan.seeds),
        "trials": counts,
        "baseline": base,
        "best": best,
        "figures": [drawing.entry for drawing in found],
    }
    _write_table(folder / "search.csv", plan, trials, complete)
    write_figures(folder, found)
    text = render(
        "search.md.j2",
        **summary,
        title=title,
        base_value=base_value,
        source=f"experiments/{plan.source}",
        settings=_settings(plan, best) if best else "",
        rows=[_row(plan, trial, trial is best) for trial in trials],
        failed=[trial for trial in trials if trial["state"] == "failed"],
        enough_trials=ENOUGH_TRIALS,
        importance=[
            {"parameter": parameter, "importance": number(value, 2)}
            for parameter, value in sorted((plan.importances or {}).items(), key=lambda item: -item[1])
        ],
        space=[
            {"parameter": d["name"], "searched": d["values"], "baseline": show(plan.baseline[d["name"]])}
            for d in plan.space
        ],
        sampler=plan.sampler,
        sampler_seed=plan.sampler_seed,
    )
    write_text(folder / "report.md", text)
    write_json(folder / "summary.json", summary)
    return folder, summary


def _write_table(path: Path, plan: Any, trials: list[Trial], complete: list[Trial]) -> None:
    rows = [
        {"trial": trial["number"], "state": trial["state"], plan.metric: trial["value"] if trial in complete else None}
        | trial["values"]
        | {"runs": " ".join(trial["runs"]), "step": trial["step"], "why": trial["why"]}
        for trial in trials
    ]
    write_results(path, pd.DataFrame(rows))


def _settings(plan: Any, trial: Trial) -> str:
    """What a trial changes in the parameters as they are, as options of the command line."""
    changed = {name: value for name, value in trial["values"].items() if value != plan.baseline[name]}
    return " ".join(f"--set {name}={json.dumps(value)}" for name, value in changed.items())


def _row(plan: Any, trial: Trial, is_best: bool) -> dict[str, str]:
    step = f" at step {trial['step']}" if trial["step"] is not None else ""
    mark = " (best)" * is_best + " (baseline)" * (trial["values"] == plan.baseline)
    row = {"trial": f"{trial['number']}{mark}", "state": f"{trial['state']}{step}", plan.metric: number(trial["value"])}
    row |= {name: show(value) for name, value in trial["values"].items()}
    return row | {"runs": " ".join(trial["runs"]) or NOTHING}
