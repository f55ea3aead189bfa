"""Optuna's part in a search: spaces, the sampler, and the journal. Only this file imports optuna."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from optuna import Study, Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, NopPruner, PercentilePruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from realm_lab.errors import UserError
from realm_lab.lab.progress import say
from realm_lab.lab.rules.space import Dimension
from realm_lab.lab.study import CELL, StudyPlan
from realm_lab.records.files import digest, read_json, write_json
from realm_lab.records.parameters import show
from realm_lab.records.study import study_folder

optuna.logging.set_verbosity(optuna.logging.WARNING)

RANDOM_TRIALS = 10  # the first trials of TPE: they depend on no result
STATES = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
CONTINUES = "continues"  # attribute of a trial: number of the earlier one that it continues


def distributions(space: Mapping[str, Dimension], start: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Convert a space to Optuna's distributions; `start` has a value of each parameter, for its type."""
    found: dict[str, BaseDistribution] = {}
    for name, item in space.items():
        if item.low is None or item.high is None:
            found[name] = CategoricalDistribution(item.ends)
        elif isinstance(start[name], int):
            found[name] = IntDistribution(int(item.low), int(item.high), item.log, int(item.step or 1))
        else:
            found[name] = FloatDistribution(item.low, item.high, item.log, item.step)
    return found


class Journal:
    """The trials of a search in Optuna's journal, which only one process writes at a time. trials.json has them in
    plain data. The baseline is proposed first, and failed trials again if `retry_failed`.

    UserError: not a journal of Optuna, or one of a search with another space, metric, seeds or parameters.
    """

    def __init__(self, plan: StudyPlan, root: Path, *, retry_failed: bool = False):
        assert plan.search is not None
        self._plan, self._search = plan, plan.search
        self._start = plan.spaces[0].start
        self._space = distributions(plan.spaces[0].space, self._start)
        self._folder = study_folder(Path(root) / "runs", plan.name)
        self._stopped: set[int] = set()
        pruner: BasePruner = NopPruner()
        if pruning := plan.search.pruning:
            pruner = PercentilePruner(  # Optuna's percentile counts from the best
                100.0 - pruning.percentile,
                n_startup_trials=pruning.min_trials,
                n_warmup_steps=pruning.after_steps,
                n_min_trials=pruning.min_trials,
            )
        self._study = _opened(path := self._folder / "optuna.jsonl", plan.name, pruner)
        keys = [[*run.keys().values()][-1] for run in plan.runs]
        space = {name: str(distribution) for name, distribution in self._space.items()}
        design = digest({"space": space, "metric": plan.search.metric, "runs": keys})
        known = self._study.user_attrs.get("design")
        if known is None:
            self._study.set_user_attr("design", design)
        elif known != design:
            raise UserError(
                f"search '{plan.name}' was started with another space, metric, seeds or parameters",
                "rename the search's file, or delete this journal: finished runs are not repeated",
                path=path,
            )
        self._study.enqueue_trial(dict(self._start), skip_if_exists=True)
        for trial in self._counted():
            is_open = trial.state is TrialState.RUNNING
            is_half = is_open and trial.params.keys() != self._space.keys()  # its process was killed in `ask`
            if is_half or (retry_failed and trial.state is TrialState.FAIL):
                self._study.enqueue_trial(trial.params, user_attrs={CONTINUES: trial.number})
            if is_half:
                self._study.tell(trial.number, state=TrialState.FAIL)

    def _counted(self) -> list[FrozenTrial]:
        """Return all trials except waiting ones and those that a later trial replaces."""
        trials = self._study.get_trials(deepcopy=False)
        replaced = {trial.user_attrs.get(CONTINUES) for trial in trials}
        return [trial for trial in trials if trial.state in STATES and trial.number not in replaced]

    def trials(self) -> list[dict[str, Any]]:
        """Return the trials in plain data."""
        return [
            {
                "number": trial.number,
                "cell": CELL.format(trial.number),
                "state": STATES[trial.state],
                "value": trial.value if trial.state is TrialState.COMPLETE else None,
                "values": dict(trial.params),
                "runs": trial.user_attrs.get("runs", []),
                "why": trial.user_attrs.get("why"),
            }
            for trial in self._counted()
        ]

    def open(self) -> list[tuple[int, dict[str, Any]]]:
        """Return number and values of the trials that have not ended."""
        return [(trial.number, dict(trial.params)) for trial in self._counted() if trial.state is TrialState.RUNNING]

    def may_ask(self, most: int) -> bool:
        """True if there may be another trial. There is none after the baseline failed: nothing could be compared with
        it, and the stages that all trials share have probably failed."""
        base = next((trial for trial in self._counted() if trial.params == self._start), None)
        return len(self._counted()) < most and not (base and base.state is TrialState.FAIL)

    def ask(self) -> None:
        """Ask Optuna for another trial."""
        # a new sampler for each trial, seeded by its number, so that a stopped search has the same proposals
        number = len(self._study.get_trials(deepcopy=False))
        self._study.sampler = TPESampler(seed=number, n_startup_trials=RANDOM_TRIALS)
        trial = self._study.ask(self._space)
        with suppress(UserError):  # no valid combination: open_trials ends it
            trial.set_user_attr("runs", [run.name for run in self._plan.spaces[0].make(trial.params)])

    def tell(self, number: int, state: str, value: float | None = None, why: str = "") -> None:
        """Record how a trial ended, and print it."""
        trial = self._trial(number)
        if why:
            trial.set_user_attr("why", why)
        self._study.tell(number, value, next(one for one, name in STATES.items() if name == state))
        values = ", ".join(f"{name.rsplit('.', 1)[-1]} = {show(value)}" for name, value in trial.params.items())
        shown = f": {self._search.metric} {value:.4g}" if value is not None else ""
        say(f"{CELL.format(number)} {state}{shown}{f': {why}' if why else ''} ({values})")

    def behind(self, number: int, curves: Sequence[Mapping[int, float]], steps: int) -> int | None:
        """Report to Optuna, for every new step that all seeds have reached, the mean of their curves. Returns the step
        at which the trial is not worth continuing, or None. The baseline, and a trial at its last step (`steps`), are
        always worth it."""
        trial = self._trial(number)
        reported = max(self._frozen(number).intermediate_values, default=-1)
        for step in sorted(set.intersection(*(set(curve) for curve in curves))):
            if step > reported:
                trial.report(statistics.fmean(curve[step] for curve in curves), step)
                if trial.params != self._start and step < steps and trial.should_prune():
                    return step
        return None

    def say_left_open(self, number: int) -> None:
        """Print, once, that somebody stopped a trial."""
        if number not in self._stopped:
            self._stopped.add(number)
            say(f"{CELL.format(number)} left open: it was stopped")

    def write(self) -> None:
        """Write trials.json."""
        data = self._search.as_data(self._start) | {"trials": self.trials()}
        path = self._folder / "trials.json"
        if not path.exists() or read_json(path) != data:
            write_json(path, data)

    def _trial(self, number: int) -> Trial:
        return Trial(self._study, self._frozen(number)._trial_id)

    def _frozen(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]


def _opened(path: Path, name: str, pruner: BasePruner) -> Study:
    """Create or continue a journal. UserError: it is not a journal of Optuna."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # remains of an owner that was killed while it wrote: its lock, and half a line
    Path(f"{path}.lock").unlink(missing_ok=True)
    if path.exists() and not (text := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, text.rfind(b"\n") + 1)
    try:
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))
        return optuna.create_study(
            storage=storage, study_name=name, direction="maximize", load_if_exists=True, pruner=pruner
        )
    except (ValueError, KeyError, TypeError) as error:
        remedy = "delete it to start the search again: finished runs are not repeated"
        raise UserError(f"not a journal of Optuna ({error})", remedy, path=path) from None
