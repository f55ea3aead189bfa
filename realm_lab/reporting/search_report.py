"""reports/NAME of a search: search.csv, summary.json and report.md with its drawings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from realm_lab.core.files import atomic_write, write_json, write_text
from realm_lab.metrics import CURVES, METRICS
from realm_lab.params.load import show
from realm_lab.reporting.figures import draw, history_figure
from realm_lab.reporting.rendering import NOTHING, number, render
from realm_lab.reporting.report import write_figures

Plan = Any  # runner.search_file.SearchPlan; the runner is above, and calls this with its own
Trial = Any  # runner.search_journal.Trial
STATES = ("complete", "pruned", "failed", "running")
ENOUGH_TRIALS = 50  # complete: PED-ANOVA looks at the best tenth, which is five then


def write_search_report(
    root: Path,
    plan: Plan,
    trials: Sequence[Trial],
    runs: Mapping[int, list[str]],
    importances: Callable[[], dict[str, float]],
) -> tuple[Path, dict[str, Any]]:
    """Write everything; returns the folder and what summary.json says.

    `runs`: number of a trial -> folders of its runs. `importances` is asked only where there are enough trials.
    """
    folder = Path(root) / "reports" / plan.name
    trials = sorted(trials, key=lambda trial: trial.number)
    counts = {state: sum(trial.state == state for trial in trials) for state in STATES}
    best, base = best_of(plan, trials), next((trial for trial in trials if trial.values == plan.baseline), None)
    enough = counts["complete"] >= ENOUGH_TRIALS and len(plan.space) > 1
    importance = sorted(importances().items(), key=lambda item: -item[1]) if enough else []
    title = _title(plan.search.metric)
    history = draw(
        "history",
        f"{title} of every trial, in the order in which they were proposed.",
        lambda: history_figure(
            pd.DataFrame({"number": t.number, "value": t.value, "pruned": t.state == "pruned"} for t in trials),
            base.value if base is not None and _is_complete(base) else None,
            title,
            maximise=plan.search.direction == "maximize",
        ),
    )
    found = [history] if history else []
    summary = {
        "search": plan.name,
        "question": plan.search.question,
        "metric": plan.search.metric,
        "direction": plan.search.direction,
        "seeds": list(plan.search.seeds),
        "trials": counts,
        "baseline": _entry(plan, base, runs),
        "best": _entry(plan, best, runs),
        "figures": [drawing.entry for drawing in found],
    }
    _write_table(folder / "search.csv", plan, trials, runs)
    write_figures(folder, found)
    text = render(
        "search.md.j2",
        **summary | {"metric": plan.search.metric, "title": _title(plan.search.metric)},
        source=f"experiments/{plan.search.path.name}",
        counts=", ".join(f"{count} {state}" for state, count in counts.items() if count),
        best_is_baseline=best is not None and best.values == plan.baseline,
        settings=settings_of(plan, best) if best else "",
        base_value=_value(base) if base is not None and _is_complete(base) else "",
        best_value=_value(best) if best else "",
        rows=[_row(plan, trial, trial is best, runs) for trial in trials],
        failed=[
            (trial.number, trial.notes.get("error", "unknown error")) for trial in trials if trial.state == "failed"
        ],
        enough_trials=ENOUGH_TRIALS,
        importance=[{"parameter": name, "importance": number(value, 2)} for name, value in importance],
        space=[{"parameter": d.name, "searched": str(d), "baseline": show(plan.baseline[d.name])} for d in plan.space],
        sampler=plan.search.sampler,
        sampler_seed=plan.search.sampler_seed,
    )
    write_text(folder / "report.md", text)
    write_json(folder / "summary.json", summary)
    return folder, summary


def best_of(plan: Plan, trials: Sequence[Trial]) -> Trial | None:
    """The complete trial with the best value, the earliest of equals."""
    sign = 1.0 if plan.search.direction == "maximize" else -1.0
    complete = [trial for trial in trials if _is_complete(trial)]
    return max(complete, key=lambda trial: (sign * (trial.value or 0.0), -trial.number), default=None)


def settings_of(plan: Plan, trial: Trial) -> str:
    """What a trial changes in the parameters as they are, as options of the command line."""
    own = plan.baseline
    return " ".join(f"--set {name}={_typed(value)}" for name, value in trial.values.items() if value != own[name])


def _entry(plan: Plan, trial: Trial | None, runs: Mapping[int, list[str]]) -> dict[str, Any] | None:
    if trial is None:
        return None
    return {
        "trial": trial.cell,
        "state": trial.state,
        "value": trial.value,
        "parameters": trial.values,
        "runs": runs.get(trial.number, []),
        "settings": settings_of(plan, trial),
    }


def _write_table(path: Path, plan: Plan, trials: Sequence[Trial], runs: Mapping[int, list[str]]) -> None:
    rows = []
    for trial in trials:
        notes = trial.notes
        value = f"{trial.value:.10g}" if _is_complete(trial) else ""
        row = {"trial": trial.number, "state": trial.state, plan.search.metric: value}
        row |= {dimension.name: _typed(trial.values[dimension.name]) for dimension in plan.space}
        row |= {"runs": " ".join(runs.get(trial.number, [])), "step": notes.get("step", "")}
        rows.append(row | {"same_as": notes.get("same_as", ""), "why": notes.get("error") or notes.get("why", "")})
    with atomic_write(path) as file:
        pd.DataFrame(rows).to_csv(file, index=False, lineterminator="\n")


def _row(plan: Plan, trial: Trial, is_best: bool, runs: Mapping[int, list[str]]) -> dict[str, str]:
    step = f" at step {trial.notes['step']}" if "step" in trial.notes else ""
    same = f", as trial {trial.notes['same_as']}" if "same_as" in trial.notes else ""
    mark = " (best)" * is_best + " (baseline)" * (trial.values == plan.baseline)
    row = {"trial": f"{trial.number}{mark}", "state": f"{trial.state}{step}{same}", plan.search.metric: _value(trial)}
    row |= {name: show(value) for name, value in trial.values.items()}
    return row | {"runs": " ".join(runs.get(trial.number, [])) or NOTHING}


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
