"""reports/NAME of a search: search.csv, summary.json and report.md with its drawing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from realm_lab.evidence.report.figures import Sketch, draw, history_figure
from realm_lab.evidence.report.frames import frame, results_text
from realm_lab.evidence.report.rendered import write_figures
from realm_lab.evidence.report.rendering import render
from realm_lab.evidence.statistics.wording import NOTHING, number
from realm_lab.records.files import read_json, write_json, write_text
from realm_lab.records.metrics import CURVES, metric
from realm_lab.records.parameters import show
from realm_lab.records.study import study_folder

STATES = ("complete", "pruned", "failed", "running")

Trial = dict[str, Any]  # as trials.json has it: number, cell, state, values, value, runs, why


def write_search_report(root: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Write everything from runs/studies/NAME/trials.json; returns the folder and the content of summary.json."""
    plan = SimpleNamespace(**read_json(study_folder(Path(root) / "runs", name) / "trials.json"))
    folder = Path(root) / "reports" / plan.name
    trials: list[Trial] = sorted(plan.trials, key=lambda trial: trial["number"])
    complete = [trial for trial in trials if trial["state"] == "complete"]
    best = max(complete, key=lambda trial: trial["value"], default=None)
    base = next((trial for trial in trials if trial["values"] == plan.baseline), None)
    base_value = base["value"] if base else None
    title = (CURVES.get(plan.metric) or metric(plan.metric)).title
    caption = f"{title} of every complete trial, in the order in which they were proposed."
    alt = f"{title} of each complete trial, with the best so far"
    sketch = Sketch("history", caption, alt, lambda: history_figure(frame(complete), base_value, title))
    history = draw(sketch)
    summary = {
        "search": plan.name,
        "question": plan.question,
        "metric": plan.metric,
        "seeds": list(plan.seeds),
        "trials": {state: sum(trial["state"] == state for trial in trials) for state in STATES},
        "baseline": base,
        "best": best,
        "figures": [sketch.entry] if history else [],
    }
    write_text(folder / "search.csv", results_text(frame([_columns(plan, trial) for trial in trials])))
    write_figures(folder, [history] if history else [], {"history"} if history else set())
    text = render(
        "search.md.j2",
        **summary,
        title=title,
        base_value=base_value,
        source=f"experiments/{plan.source}",
        settings=_settings(plan, best) if best else "",
        rows=[_row(plan, trial, trial is best) for trial in trials],
        importance=[
            {"parameter": parameter, "importance": number(value, 2)}
            for parameter, value in sorted(plan.importances.items(), key=lambda item: -item[1])
        ],
        space=[
            {"parameter": name, "searched": show(values), "baseline": show(plan.baseline[name])}
            for name, values in plan.space.items()
        ],
    )
    write_text(folder / "report.md", text)
    write_json(folder / "summary.json", summary)
    return folder, summary


def _columns(plan: Any, trial: Trial) -> dict[str, Any]:
    row = {"trial": trial["number"], "state": trial["state"], plan.metric: trial["value"], **trial["values"]}
    return row | {"runs": " ".join(trial["runs"]), "why": trial["why"]}


def _settings(plan: Any, trial: Trial) -> str:
    """Return a trial's changes of the present parameters, as options of the command line."""
    changed = {name: value for name, value in trial["values"].items() if value != plan.baseline[name]}
    return " ".join(f"--set {name}={json.dumps(value)}" for name, value in changed.items())


def _row(plan: Any, trial: Trial, is_best: bool) -> dict[str, str]:
    mark = " (best)" * is_best + " (baseline)" * (trial["values"] == plan.baseline)
    row = {"trial": f"{trial['number']}{mark}", "state": trial["state"], plan.metric: number(trial["value"])}
    row |= {name: show(value) for name, value in trial["values"].items()}
    return row | {"why": trial["why"] or NOTHING}
