"""The runs that a study wants by the results so far. A sweep does those that are not done, and asks again whenever one
ends, until nothing is left.

Wanted runs depend only on the study and its results, so that a killed sweep continues with the same runs. Each rule
has a file in rules/: trials of a tuning come first (tune.py), then all seeds, or as many as a rule for seeds takes
(until_decided.py is one). A search (search.py) also needs a journal, since it proposes trials while others run.
"""

from __future__ import annotations

from pathlib import Path

from realm_lab.engine.systems.identity import record_run
from realm_lab.lab.results import Results
from realm_lab.lab.rules import search
from realm_lab.lab.rules.seeds import options_of
from realm_lab.lab.rules.tune import Tuned, tuned
from realm_lab.lab.study import StudyPlan
from realm_lab.records.lease import exclusive
from realm_lab.records.run import Run
from realm_lab.records.study import StudyRecord, read_study_record, study_folder, write_study_record


def wanted(study: StudyPlan, results: Results) -> list[Run]:
    """Return the runs that a study wants now, done or not."""
    if study.search is not None:
        return search.open_trials(study, results)
    study, trials = settled(study, results)
    return _taken(study, results) if trials is None or trials.choices else trials.runs


def _taken(study: StudyPlan, results: Results) -> list[Run]:
    """Return the runs of a study at all of its seeds, or at those that its rule takes by the results so far."""
    if study.rule is None:
        return [*study.runs]
    least = options_of(study.rule).at_least
    whole = study.record(study.runs)
    complete = results.table(whole)
    done = {*complete[["cell", "seed"]].itertuples(index=False, name=None)}
    begun = all((cell.name, seed) in done for cell in study.cells for seed in study.seeds[:least])
    counts = study.rule(whole, complete) if begun else {}
    seeds = {cell.name: {*study.seeds[: max(least, counts.get(cell.name, least))]} for cell in study.cells[1:]}
    seeds[study.baseline.name] = {*study.seeds[:least]}.union(*seeds.values())
    return [run for run in study.runs if run.seed in seeds[run.cell]]


def settled(study: StudyPlan, results: Results) -> tuple[StudyPlan, Tuned | None]:
    """Return a study with the values that tuning chose for its cells (unchanged before the choice), and the trials
    (None for a study without tuning)."""
    if study.tuning is None or study.choose is None:
        return study, None
    trials = tuned(study, results)
    return study.choose(trials.choices), trials


def study_record(study: StudyPlan, results: Results) -> StudyRecord:
    """Return the study.json of a study by its results; nothing is written."""
    if study.search is not None:
        return search.record(study, results)
    study, trials = settled(study, results)
    if trials is None:
        return study.record(_taken(study, results))
    return study.record(_taken(study, results) if trials.choices else (), trials.runs, trials.as_data())


def record_study(study: StudyPlan, root: Path, results: Results | None = None) -> StudyRecord:
    """Write run.json of every wanted run and every trial, and study.json of the study; returns it as read back."""
    results, runs = results or Results(root), Path(root) / "runs"
    now = wanted(study, results)  # first: in a search this notes which trials have ended
    record = study_record(study, results)
    for run in (*record.trials, *now):
        record_run(runs, run)
    with exclusive(study_folder(runs, study.name) / "study.lock"):  # hosts of --join may have different results
        return read_study_record(write_study_record(runs, record))
