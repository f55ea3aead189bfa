"""reports/NAME of a search: search.csv, summary.json and report.md with its drawings."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas as pd

from realm_lab.core.files import atomic_write, read_json, write_json, write_text
from realm_lab.params.load import show
from realm_lab.reporting import markdown
from realm_lab.reporting.document import NOTHING, Block, Code, Document, Figure, Section, Table, Text
from realm_lab.reporting.document_files import remove_old_figures
from realm_lab.reporting.search_figures import TrialSpot, history_figure, importance_figure
from realm_lab.tracking.study_record import study_folder

STATES = ("complete", "pruned", "failed", "running")
ENOUGH_TRIALS = 50  # complete: PED-ANOVA looks at the best tenth, which is five then


class Trial(NamedTuple):
    """One trial of trials.json."""

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
    importances = plan.importances
    trials = [Trial(**trial) for trial in data["trials"]]
    runs = {trial.number: trial.runs for trial in trials}
    folder = Path(root) / "reports" / plan.name
    trials = sorted(trials, key=lambda trial: trial.number)
    summary = summarise(plan, trials, runs)
    _write_table(folder / "search.csv", plan, trials, runs)
    write_json(folder / "summary.json", summary)
    document = _document(plan, trials, runs, summary, importances)
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


def summarise(plan: Any, trials: Sequence[Trial], runs: Mapping[int, list[str]]) -> dict[str, Any]:
    """Counts, the baseline and the best trial."""
    base = next((trial for trial in trials if trial.values == plan.baseline), None)
    best = best_of(plan, trials)
    return {
        "search": plan.name,
        "question": plan.question,
        "metric": plan.metric,
        "direction": plan.direction,
        "seeds": list(plan.seeds),
        "trials": {state: sum(trial.state == state for trial in trials) for state in STATES},
        "baseline": _entry(plan, base, runs),
        "best": _entry(plan, best, runs),
    }


def best_of(plan: Any, trials: Sequence[Trial]) -> Trial | None:
    """The complete trial with the best value, the earliest of equals."""
    sign = 1.0 if plan.direction == "maximize" else -1.0
    complete = [(sign * trial.value, -trial.number, trial) for trial in trials if _is_complete(trial)]  # type: ignore[operator]
    return max(complete, key=lambda item: item[:2])[2] if complete else None


def settings_of(plan: Any, trial: Trial) -> str:
    """What a trial changes in the parameters as they are, as options of the command line."""
    own = plan.baseline
    return " ".join(f"--set {name}={_typed(value)}" for name, value in trial.values.items() if value != own[name])


def _entry(plan: Any, trial: Trial | None, runs: Mapping[int, list[str]]) -> dict[str, Any] | None:
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


def _write_table(path: Path, plan: Any, trials: Sequence[Trial], runs: Mapping[int, list[str]]) -> None:
    names = [part["name"] for part in plan.space]
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["trial", "state", plan.metric, *names, "runs", "step", "why"])
        for trial in trials:
            value = "" if trial.value is None or trial.state != "complete" else f"{trial.value:.10g}"
            values = [_typed(trial.values[name]) for name in names]
            rest = ["" if trial.step is None else trial.step, trial.why or ""]
            writer.writerow([trial.number, trial.state, value, *values, " ".join(runs.get(trial.number, [])), *rest])


def _document(
    plan: Any,
    trials: Sequence[Trial],
    runs: Mapping[int, list[str]],
    summary: Mapping[str, Any],
    importances: Mapping[str, float] | None,
) -> Document:
    counts = ", ".join(f"{count} {state}" for state, count in summary["trials"].items() if count)
    seeds = ", ".join(map(str, plan.seeds))
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
        subtitle=f"{plan.question} · {plan.direction} {plan.metric} · seeds {seeds} · {counts}",
        verdict=_verdict(plan, trials),
        flags=[],
        warnings=[],
        key_numbers=[],
        sections=sections,
    )


def _verdict(plan: Any, trials: Sequence[Trial]) -> str:
    best, base = best_of(plan, trials), next((t for t in trials if t.values == plan.baseline), None)
    if best is None:
        return "No trial is complete, so there is no best one."
    metric = plan.metric
    if best.values == plan.baseline:
        return f"No trial reached more than the baseline: {metric} {best.value:.4g}."
    against = f"; the baseline has {base.value:.4g}" if base is not None and _is_complete(base) else ""
    return (
        f"The best of {sum(map(_is_complete, trials))} complete trials is {best.cell}: "
        f"{metric} {best.value:.4g}{against}. "
        "This does not show that it is better than the baseline: it was chosen for being the best with these seeds."
    )


def _best(plan: Any, trials: Sequence[Trial]) -> list[Block]:
    best = best_of(plan, trials)
    if best is None:
        return [Text("No trial is complete yet.", missing=True)]
    settings = settings_of(plan, best)
    if not settings:
        return [Text("The baseline: the parameters as they are.")]
    seeds = ", ".join(map(str, plan.seeds))
    return [
        Text(f"Its parameters, over those of {_source(plan)}:"),
        Code(settings),
        Text(
            f"Whether it beats the baseline is a question for fresh seeds: put both into a study, with other seeds "
            f"than {seeds}, and sweep it. The value above is too good by as much as chance was worth in the choice."
        ),
    ]


def _table(plan: Any, trials: Sequence[Trial], runs: Mapping[int, list[str]]) -> Table:
    best = best_of(plan, trials)
    rows = []
    for trial in trials:
        step = f" at step {trial.step}" if trial.step is not None else ""
        mark = " (best)" if best is not None and trial.number == best.number else ""
        mark += " (baseline)" if trial.values == plan.baseline else ""
        rows.append(
            {
                "trial": f"{trial.number}{mark}",
                "state": f"{trial.state}{step}",
                plan.metric: NOTHING if trial.value is None else f"{trial.value:.4g}".replace("-", "−"),
                **{name: show(value) for name, value in trial.values.items()},
                "runs": " ".join(runs.get(trial.number, [])) or NOTHING,
            }
        )
    notes = [f"Trial {t.number} failed: {t.why}" for t in trials if t.state == "failed"]
    if any(trial.state == "pruned" for trial in trials):
        notes.append("The value of a pruned trial is that of the step at which it ended.")
    return Table(f"Trials: {plan.metric}, mean over the seeds.", pd.DataFrame(rows), notes=tuple(notes))


def _history(plan: Any, trials: Sequence[Trial]) -> Block:
    base = next((trial for trial in trials if trial.values == plan.baseline and _is_complete(trial)), None)
    figure = history_figure(
        "history",
        f"{plan.metric} of every trial, in the order in which they were proposed.",
        [TrialSpot(t.number, t.value, t.state == "pruned") for t in trials if t.value is not None],
        base.value if base else None,
        plan.metric,
        maximise=plan.direction == "maximize",
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


def _space(plan: Any) -> Table:
    own = plan.baseline
    rows = [{"parameter": d["name"], "searched": d["values"], "baseline": show(own[d["name"]])} for d in plan.space]
    how = {"tpe": "tree-structured Parzen estimators", "random": "at random"}[plan.sampler]
    return Table(f"The space; sampled by {how}, seed {plan.sampler_seed}.", pd.DataFrame(rows))


def _source(plan: Any) -> str:
    return f"experiments/{plan.source}"


def _typed(value: Any) -> str:
    """A value that YAML reads back as it is."""
    return repr(value) if isinstance(value, float) else "null" if value is None else show(value)


def _is_complete(trial: Trial) -> bool:
    return trial.state == "complete" and trial.value is not None
