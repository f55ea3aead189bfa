"""reports/NAME of a search: search.csv, summary.json and report.md with its drawings."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from realm_lab.core.files import atomic_write, write_json, write_text
from realm_lab.params.load import show
from realm_lab.reporting import markdown
from realm_lab.reporting.document import NOTHING, Block, Code, Document, Figure, Section, Table, Text
from realm_lab.reporting.document_files import remove_old_figures
from realm_lab.reporting.search_figures import TrialSpot, history_figure, importance_figure
from realm_lab.runner.search_file import SearchPlan

if TYPE_CHECKING:
    from realm_lab.runner.search_journal import Trial

STATES = ("complete", "pruned", "failed", "running")
ENOUGH_TRIALS = 50  # complete: PED-ANOVA looks at the best tenth, which is five then


def write_search_report(
    root: Path,
    plan: SearchPlan,
    trials: Sequence[Trial],
    runs: Mapping[int, list[str]],
    importances: Callable[[], dict[str, float]],
) -> tuple[Path, dict[str, Any]]:
    """Write everything; returns the folder and what summary.json says.

    `runs`: number of a trial -> folders of its runs. `importances` is asked only where there are enough trials.
    """
    folder = Path(root) / "reports" / plan.name
    trials = sorted(trials, key=lambda trial: trial.number)
    summary = summarise(plan, trials, runs)
    _write_table(folder / "search.csv", plan, trials, runs)
    write_json(folder / "summary.json", summary)
    enough = summary["trials"]["complete"] >= ENOUGH_TRIALS and len(plan.space) > 1
    document = _document(plan, trials, runs, summary, importances() if enough else None)
    names = set()
    for block in (block for section in document.sections for block in section.blocks):
        if isinstance(block, Figure):
            write_text(folder / "figures" / f"{block.name}.svg", block.svg)
            with atomic_write(folder / "figures" / f"{block.name}.png", "wb") as file:
                file.write(block.png)
            names.add(block.name)
    remove_old_figures(folder, names)
    write_text(folder / "report.md", markdown.render(document))
    return folder, summary


def summarise(plan: SearchPlan, trials: Sequence[Trial], runs: Mapping[int, list[str]]) -> dict[str, Any]:
    """Counts, the baseline and the best trial."""
    base = next((trial for trial in trials if trial.values == plan.baseline), None)
    best = best_of(plan, trials)
    return {
        "search": plan.name,
        "question": plan.search.question,
        "metric": plan.search.metric,
        "direction": plan.search.direction,
        "seeds": list(plan.search.seeds),
        "trials": {state: sum(trial.state == state for trial in trials) for state in STATES},
        "baseline": _entry(plan, base, runs),
        "best": _entry(plan, best, runs),
    }


def best_of(plan: SearchPlan, trials: Sequence[Trial]) -> Trial | None:
    """The complete trial with the best value, the earliest of equals."""
    sign = 1.0 if plan.search.direction == "maximize" else -1.0
    complete = [(sign * trial.value, -trial.number, trial) for trial in trials if _is_complete(trial)]  # type: ignore[operator]
    return max(complete, key=lambda item: item[:2])[2] if complete else None


def settings_of(plan: SearchPlan, trial: Trial) -> str:
    """What a trial changes in the parameters as they are, as options of the command line."""
    own = plan.baseline
    return " ".join(f"--set {name}={_typed(value)}" for name, value in trial.values.items() if value != own[name])


def _entry(plan: SearchPlan, trial: Trial | None, runs: Mapping[int, list[str]]) -> dict[str, Any] | None:
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


def _write_table(path: Path, plan: SearchPlan, trials: Sequence[Trial], runs: Mapping[int, list[str]]) -> None:
    names = [dimension.name for dimension in plan.space]
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["trial", "state", plan.search.metric, *names, "runs", "step", "same_as", "why"])
        for trial in trials:
            value = "" if trial.value is None or trial.state != "complete" else f"{trial.value:.10g}"
            notes = trial.notes
            values = [_typed(trial.values[name]) for name in names]
            rest = [notes.get("step", ""), notes.get("same_as", ""), notes.get("error") or notes.get("why", "")]
            writer.writerow([trial.number, trial.state, value, *values, " ".join(runs.get(trial.number, [])), *rest])


def _document(
    plan: SearchPlan,
    trials: Sequence[Trial],
    runs: Mapping[int, list[str]],
    summary: Mapping[str, Any],
    importances: Mapping[str, float] | None,
) -> Document:
    counts = ", ".join(f"{count} {state}" for state, count in summary["trials"].items() if count)
    seeds = ", ".join(map(str, plan.search.seeds))
    sections = [
        Section("best", "The best trial", _best(plan, trials)),
        Section("trials", "Trials", [_table(plan, trials, runs)]),
        Section("history", "In the order of time", [_history(plan, trials)]),
        Section("importance", "Which parameter mattered", [_importance(importances, summary["trials"]["complete"])]),
        Section("space", "What was searched", [_space(plan)]),
        Section("reproduce", "How to reproduce", [Code(f"realm-lab search {_source(plan)}")]),
    ]
    return Document(
        title=f"Search: {plan.name}",
        subtitle=f"{plan.search.question} · {plan.search.direction} {plan.search.metric} · seeds {seeds} · {counts}",
        verdict=_verdict(plan, trials),
        flags=[],
        warnings=[],
        key_numbers=[],
        sections=sections,
    )


def _verdict(plan: SearchPlan, trials: Sequence[Trial]) -> str:
    best, base = best_of(plan, trials), next((t for t in trials if t.values == plan.baseline), None)
    if best is None:
        return "No trial is complete, so there is no best one."
    metric = plan.search.metric
    if best.values == plan.baseline:
        return f"No trial reached more than the baseline: {metric} {best.value:.4g}."
    against = f"; the baseline has {base.value:.4g}" if base is not None and _is_complete(base) else ""
    return (
        f"The best of {sum(map(_is_complete, trials))} complete trials is {best.cell}: "
        f"{metric} {best.value:.4g}{against}. "
        "This does not show that it is better than the baseline: it was chosen for being the best with these seeds."
    )


def _best(plan: SearchPlan, trials: Sequence[Trial]) -> list[Block]:
    best = best_of(plan, trials)
    if best is None:
        return [Text("No trial is complete yet.", missing=True)]
    settings = settings_of(plan, best)
    if not settings:
        return [Text("The baseline: the parameters as they are.")]
    seeds = ", ".join(map(str, plan.search.seeds))
    return [
        Text(f"Its parameters, over those of {_source(plan)}:"),
        Code(settings),
        Text(
            f"Whether it beats the baseline is a question for fresh seeds: put both into a study, with other seeds "
            f"than {seeds}, and sweep it. The value above is too good by as much as chance was worth in the choice."
        ),
    ]


def _table(plan: SearchPlan, trials: Sequence[Trial], runs: Mapping[int, list[str]]) -> Table:
    best = best_of(plan, trials)
    rows = []
    for trial in trials:
        step = f" at step {trial.notes['step']}" if "step" in trial.notes else ""
        same = f", as trial {trial.notes['same_as']}" if "same_as" in trial.notes else ""
        mark = " (best)" if best is not None and trial.number == best.number else ""
        mark += " (baseline)" if trial.values == plan.baseline else ""
        rows.append(
            {
                "trial": f"{trial.number}{mark}",
                "state": f"{trial.state}{step}{same}",
                plan.search.metric: NOTHING if trial.value is None else f"{trial.value:.4g}".replace("-", "−"),
                **{name: show(value) for name, value in trial.values.items()},
                "runs": " ".join(runs.get(trial.number, [])) or NOTHING,
            }
        )
    notes = [f"Trial {t.number} failed: {t.notes.get('error', 'unknown error')}" for t in trials if t.state == "failed"]
    if any(trial.state == "pruned" for trial in trials):
        notes.append("The value of a pruned trial is that of the step at which it ended.")
    return Table(f"Trials: {plan.search.metric}, mean over the seeds.", pd.DataFrame(rows), notes=tuple(notes))


def _history(plan: SearchPlan, trials: Sequence[Trial]) -> Block:
    base = next((trial for trial in trials if trial.values == plan.baseline and _is_complete(trial)), None)
    figure = history_figure(
        "history",
        f"{plan.search.metric} of every trial, in the order in which they were proposed.",
        [TrialSpot(t.number, t.value, t.state == "pruned") for t in trials if t.value is not None],
        base.value if base else None,
        plan.search.metric,
        maximise=plan.search.direction == "maximize",
    )
    return figure or Text("Fewer than two trials are complete: there is no history yet.", missing=True)


def _importance(importances: Mapping[str, float] | None, complete: int) -> Block:
    figure = importances and importance_figure(
        "importance", "Importance of the parameters in this space (PED-ANOVA).", importances
    )
    return figure or Text(
        f"Too few trials to say: an importance needs {ENOUGH_TRIALS} complete ones and two parameters, there are "
        f"{complete}."
    )


def _space(plan: SearchPlan) -> Table:
    own = plan.baseline
    rows = [{"parameter": d.name, "searched": str(d), "baseline": show(own[d.name])} for d in plan.space]
    how = {"tpe": "tree-structured Parzen estimators", "random": "at random", "grid": "every point"}[
        plan.search.sampler
    ]
    return Table(f"The space; sampled by {how}, seed {plan.search.sampler_seed}.", pd.DataFrame(rows))


def _source(plan: SearchPlan) -> str:
    return f"experiments/{plan.search.path.name}"


def _typed(value: Any) -> str:
    """A value that YAML reads back as it is."""
    return repr(value) if isinstance(value, float) else "null" if value is None else show(value)


def _is_complete(trial: Trial) -> bool:
    return trial.state == "complete" and trial.value is not None
