"""The rule of a search: asks Optuna for the next trials.

A trial is a cell of the study's record, with a run for every seed. Trials are in Optuna's journal, which only one
process writes at a time. Trials that a killed process left open go on. trials.json has all trials in plain data, for
reports.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from realm_lab.errors import UserError, needs
from realm_lab.lab.results import Results
from realm_lab.lab.study import CELL, Search, StudyPlan, changes_title
from realm_lab.records.run import Run
from realm_lab.records.study import StudyCell, StudyRecord

if TYPE_CHECKING:
    from realm_lab.lab.rules.trials import Journal


def journal_of(study: StudyPlan, results: Results) -> Journal:
    """Return the journal of a search, opened once. UserError: not a journal of Optuna, or one of another search."""
    if results.journal is None:
        with needs("a search", "optuna", "platform"):
            from realm_lab.lab.rules.trials import Journal

        results.journal = Journal(study, results.root, retry_failed=results.retry_failed)
    found: Journal = results.journal
    return found


def runs_of(study: StudyPlan, number: int, values: Mapping[str, Any]) -> list[Run]:
    """Return the runs of a trial, one for every seed. UserError: this combination of values is invalid."""
    (space,) = study.spaces
    changes = {name: value for name, value in values.items() if value != space.start[name]}
    return [replace(run, cell=CELL.format(number), chosen=changes) for run in space.make(values)]


def open_trials(study: StudyPlan, results: Results) -> list[Run]:
    """Return the runs of the open trials, after the journal has noted trials that have ended and proposed new ones. A
    trial that somebody stopped stays open, but its runs are not returned."""
    journal, search = journal_of(study, results), study.search
    assert search is not None
    while True:
        going = []
        for number, values in journal.open():
            try:
                runs = runs_of(study, number, values)
            except UserError as error:
                journal.tell(number, "failed", why=str(error))
                continue
            if _has_ended(journal, search, results, number, runs):
                continue
            if any(map(results.is_stopped, runs)):
                journal.say_left_open(number)
            else:
                going.append(runs)
        if len(going) >= search.parallel or not journal.may_ask(search.trials):
            journal.write()
            return [run for runs in going for run in runs]
        journal.ask()


def _has_ended(journal: Journal, search: Search, results: Results, number: int, runs: Sequence[Run]) -> bool:
    """Record in the journal that a trial has ended or is pruned, and return True; return False if it goes on."""
    failed = next((results.look(run) for run in runs if results.has_failed(run)), None)
    if all(results.look(run).state == "COMPLETE" for run in runs):
        found = [(results.outcome(run) or {}).get(search.metric) for run in runs]
        values = [value for value in found if value is not None]
        if len(values) == len(runs):
            journal.tell(number, "complete", statistics.fmean(values))
        else:
            journal.tell(number, "failed", why=f"{search.metric} is missing or not finite")
        return True
    if failed is not None:
        journal.tell(number, "failed", why=failed.error or "unknown error")
        return True
    if search.pruning is None:
        return False
    curves = [results.curve(run, search.curve) for run in runs]
    behind = journal.behind(number, curves, runs[0].params.pretrain.steps)
    if behind is not None:
        journal.tell(number, "pruned", why=f"behind the others at step {behind}")
    return behind is not None


def ended(study: StudyPlan, results: Results) -> list[Run]:
    """Return the runs of complete trials, whose values decide about later trials. UserError: the values were measured
    on other numbers of sentences or questions than the `evaluate` parameters ask for."""
    trials = [trial for trial in journal_of(study, results).trials() if trial["state"] == "complete"]
    runs = [run for trial in trials for run in runs_of(study, trial["number"], trial["values"])]
    for run in runs:
        results.outcome(run)
    return runs


def record(study: StudyPlan, results: Results) -> StudyRecord:
    """Return the study.json of a search: its trials are cells, the baseline first, equal ones once."""
    cells, runs, keys = list[StudyCell](), list[Run](), set[str]()
    start = study.spaces[0].start
    for trial in sorted(journal_of(study, results).trials(), key=lambda one: (one["values"] != start, one["number"])):
        try:
            found = runs_of(study, trial["number"], trial["values"])
        except UserError:
            continue
        if found[0].run_key not in keys:
            keys.add(found[0].run_key)
            changes = found[0].chosen
            title = changes_title(changes) if changes else "parameters as they are"
            cells.append(StudyCell(found[0].cell, title, found[0].system, changes))
            runs += found
    return replace(study.record(runs), baseline=cells[0].name if cells else "", cells=tuple(cells))


def is_well(study: StudyPlan, results: Results) -> bool:
    """True if the baseline is complete and no trial is open."""
    trials = journal_of(study, results).trials()
    base = next((trial for trial in trials if trial["values"] == study.spaces[0].start), None)
    return base is not None and base["state"] == "complete" and all(trial["state"] != "running" for trial in trials)
