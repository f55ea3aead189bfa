"""reports/NAME of a search: search.csv, summary.json and report.md with its drawings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas as pd

from realm_lab.core.files import atomic_write, read_json, write_json, write_text
from realm_lab.metrics import CURVES, METRICS
from realm_lab.params.load import show
from realm_lab.reporting.figures import draw, history_figure
from realm_lab.reporting.rendering import NOTHING, number, render
from realm_lab.reporting.report import write_figures
from realm_lab.tracking.study_record import study_folder

STATES = ("complete", "pruned", "failed", "running")
ENOUGH_TRIALS = 50  # complete: PED-ANOVA looks at the best tenth, which is five then


class Trial(NamedTuple):
    """One trial of trials.json, which the search writes."""

    number: int
    cell: str
    state: str
    values: dict[str, Any]
    value: float | None
    runs: list[str]
    step: int | None
    why: str | None


def write_search_report(root: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Write everything from runs/studies/NAME/trials.json; returns the folder and what summary.json says."""
    data = read_json(study_folder(Path(root) / "runs", name) / "trials.json")
    plan = SimpleNamespace(**data)
    trials = [Trial(**trial) for trial in data["trials"]]
    folder = Path(root) / "reports" / plan.name
    trials = sorted(trials, key=lambda trial: trial.number)
    counts = {state: sum(trial.state == state for trial in trials) for state in STATES}
    best, base = best_of(plan, trials), next((trial for trial in trials if trial.values == plan.baseline), None)
    importance = sorted((plan.importances or {}).items(), key=lambda item: -item[1])
    title = _title(plan.metric)
    history = draw(
        "history",
        f"{title} of every trial, in the order in which they were proposed.",
        lambda: history_figure(
            pd.DataFrame({"number": t.number, "value": t.value, "pruned": t.state == "pruned"} for t in trials),
            base.value if base is not None and _is_complete(base) else None,
            title,
            maximise=plan.direction == "maximize",
        ),
    )
    found = [history] if history else []
    summary = {
        "search": plan.name,
        "question": plan.question,
        "metric": plan.metric,
        "direction": plan.direction,
        "seeds": list(plan.seeds),
        "trials": counts,
        "baseline": _entry(plan, base),
        "best": _entry(plan, best),
        "figures": [drawing.entry for drawing in found],
    }
    _write_table(folder / "search.csv", plan, trials)
    write_figures(folder, found)
    text = render(
        "search.md.j2",
        **summary | {"metric": plan.metric, "title": _title(plan.metric)},
        source=f"experiments/{plan.source}",
        counts=", ".join(f"{count} {state}" for state, count in counts.items() if count),
        best_is_baseline=best is not None and best.values == plan.baseline,
        settings=settings_of(plan, best) if best else "",
        base_value=_value(base) if base is not None and _is_complete(base) else "",
        best_value=_value(best) if best else "",
        rows=[_row(plan, trial, trial is best) for trial in trials],
        failed=[(trial.number, trial.why or "unknown error") for trial in trials if trial.state == "failed"],
        enough_trials=ENOUGH_TRIALS,
        importance=[{"parameter": name, "importance": number(value, 2)} for name, value in importance],
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


def best_of(plan: Any, trials: Sequence[Trial]) -> Trial | None:
    """The complete trial with the best value, the earliest of equals."""
    sign = 1.0 if plan.direction == "maximize" else -1.0
    complete = [trial for trial in trials if _is_complete(trial)]
    return max(complete, key=lambda trial: (sign * (trial.value or 0.0), -trial.number), default=None)


def settings_of(plan: Any, trial: Trial) -> str:
    """What a trial changes in the parameters as they are, as options of the command line."""
    own = plan.baseline
    return " ".join(f"--set {name}={_typed(value)}" for name, value in trial.values.items() if value != own[name])


def _entry(plan: Any, trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    return {
        "trial": trial.cell,
        "state": trial.state,
        "value": trial.value,
        "parameters": trial.values,
        "runs": trial.runs,
        "settings": settings_of(plan, trial),
    }


def _write_table(path: Path, plan: Any, trials: Sequence[Trial]) -> None:
    rows = []
    for trial in trials:
        value = f"{trial.value:.10g}" if _is_complete(trial) else ""
        row = {"trial": trial.number, "state": trial.state, plan.metric: value}
        row |= {part["name"]: _typed(trial.values[part["name"]]) for part in plan.space}
        row |= {"runs": " ".join(trial.runs), "step": "" if trial.step is None else trial.step}
        rows.append(row | {"why": trial.why or ""})
    with atomic_write(path) as file:
        pd.DataFrame(rows).to_csv(file, index=False, lineterminator="\n")


def _row(plan: Any, trial: Trial, is_best: bool) -> dict[str, str]:
    step = f" at step {trial.step}" if trial.step is not None else ""
    mark = " (best)" * is_best + " (baseline)" * (trial.values == plan.baseline)
    row = {"trial": f"{trial.number}{mark}", "state": f"{trial.state}{step}", plan.metric: _value(trial)}
    row |= {name: show(value) for name, value in trial.values.items()}
    return row | {"runs": " ".join(trial.runs) or NOTHING}


def _title(metric: str) -> str:
    found = CURVES.get(metric) or METRICS.get(metric)
    return found.title if found else metric


def _value(trial: Trial) -> str:
    return NOTHING if trial.value is None else f"{trial.value:.4g}".replace("-", "−")


def _typed(value: Any) -> str:
    """A value that YAML reads back as it is."""
    return repr(value) if isinstance(value, float) else "null" if value is None else show(value)


def _is_complete(trial: Trial) -> bool:
    return trial.state == "complete" and trial.value is not None
