"""The trials of a search in Optuna's journal, JSON lines. The only file that imports optuna.

One process at a time writes it, who holds the search's lease. So what a killed owner left open is simply gone on with:
a trial that was asked for keeps its number and its values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from realm_lab.core.seeding import derive_seed
from realm_lab.errors import UserError
from realm_lab.runner.search_file import Dimension

optuna.logging.set_verbosity(optuna.logging.WARNING)

State = Literal["running", "complete", "pruned", "failed"]
STATES: dict[TrialState, State] = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
TOLD = {state: told for told, state in STATES.items()}
MOST_BITS = 32  # of a sampler's seed
DESIGN = "design"


@dataclass(frozen=True)
class Trial:
    """One trial. `value` of a pruned one is that of the step at which it ended. `notes` are plain data: `run_keys`,
    `error`, `why`, `step`, `same_as` (an earlier trial with the same runs), `retry_of` (one that failed)."""

    number: int
    state: State
    values: dict[str, Any]
    value: float | None
    notes: dict[str, Any]

    @property
    def cell(self) -> str:
        """Its name in the study."""
        return f"trial-{self.number:03}"


class TrialJournal:
    """The trials of one search, made or gone on with.

    `design` says what a trial is and what its value means: a search with another one has another journal.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        space: Sequence[Dimension],
        *,
        direction: Literal["maximize", "minimize"],
        sampler: str,
        seed: int,
        design: str,
    ):
        self._space, self._sampler, self._seed = space, sampler, seed
        path.parent.mkdir(parents=True, exist_ok=True)
        _mend(path)
        try:
            storage = JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))
            self._study = optuna.create_study(
                storage=storage, study_name=name, direction=direction, load_if_exists=True, sampler=RandomSampler(0)
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: not a journal of Optuna ({error}); delete it to begin the search again: "
                "finished runs are only read"
            ) from None
        begun = self._study.user_attrs.get(DESIGN)
        if begun is None:
            self._study.set_user_attr(DESIGN, design)
        elif begun != design:
            raise UserError(
                f"{path}: search '{name}' was begun with another space, metric, seeds or parameters; "
                "rename the search's file, or delete this one: finished runs are only read"
            )

    def trials(self) -> list[Trial]:
        """All trials that were asked for, by number."""
        return [self._trial(trial) for trial in self._study.get_trials(deepcopy=False) if trial.state in STATES]

    def retried(self) -> set[int]:
        """Numbers of the trials that failed and were proposed again."""
        known = [trial.user_attrs.get("retry_of") for trial in self._study.get_trials(deepcopy=False)]
        return {number for number in known if number is not None}

    def propose(self, values: Mapping[str, Any], *, retry_of: int | None = None) -> None:
        """Put a trial in front of those of the sampler, once; again where an earlier one failed."""
        if retry_of is None:
            self._study.enqueue_trial(dict(values), skip_if_exists=True)
        else:
            self._study.enqueue_trial(dict(values), user_attrs={"retry_of": retry_of})

    def waiting(self) -> int:
        """Proposed and not asked for yet."""
        return len(self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def ask(self) -> Trial:
        """The next trial, with all its values."""
        # A sampler of its own for each trial, so that a search that was gone on with does not draw the same again.
        self._study.sampler = self._new_sampler(len(self.trials()))
        return self._complete(self._study.ask())

    def resumed(self) -> list[Trial]:
        """The trials that were asked for and not told about, as a killed owner leaves them."""
        found = []
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.sampler = self._new_sampler(trial.number)
            found.append(self._complete(optuna.Trial(self._study, trial._trial_id)))
        return found

    def note(self, number: int, **notes: Any) -> Trial:
        """Add notes to a running trial."""
        frozen = self._study.get_trials(deepcopy=False)[number]
        trial = optuna.Trial(self._study, frozen._trial_id)
        for name, value in notes.items():
            trial.set_user_attr(name, value)
        return self._trial(self._study.get_trials(deepcopy=False)[number])

    def tell(self, number: int, state: State, value: float | None = None, **notes: Any) -> Trial:
        """Say how a trial has ended; `step` is where a pruned one did."""
        self.note(number, **notes)
        if state == "complete":
            self._study.tell(number, value)
        else:
            if state == "pruned" and value is not None:  # the sampler learns from it too
                frozen = self._study.get_trials(deepcopy=False)[number]
                optuna.Trial(self._study, frozen._trial_id).report(value, int(notes.get("step", 0)))
            self._study.tell(number, state=TOLD[state])
        return self._trial(self._study.get_trials(deepcopy=False)[number])

    def importances(self) -> dict[str, float]:
        """Share of each parameter in what tells the best tenth from the rest (PED-ANOVA), the largest first."""
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances  # brings scikit-learn

        return dict(get_param_importances(self._study, evaluator=PedAnovaImportanceEvaluator()))

    def _new_sampler(self, number: int) -> BaseSampler:
        seed = derive_seed(self._seed, "search", number) % 2**MOST_BITS
        return TPESampler(seed=seed) if self._sampler == "tpe" else RandomSampler(seed)

    def _complete(self, trial: optuna.Trial) -> Trial:
        """A value for every parameter; those that it has already stay."""
        for item in self._space:
            if item.kind == "choices":
                trial.suggest_categorical(item.name, item.choices)
            elif item.kind == "int":
                trial.suggest_int(item.name, int(item.low), int(item.high), step=int(item.step or 1), log=item.log)
            else:
                trial.suggest_float(item.name, item.low, item.high, step=item.step, log=item.log)
        return self._trial(self._study.get_trials(deepcopy=False)[trial.number])

    def _trial(self, trial: FrozenTrial) -> Trial:
        value = trial.values[0] if trial.values else None
        order = [item.name for item in self._space if item.name in trial.params]
        values = {name: trial.params[name] for name in order}
        return Trial(trial.number, STATES[trial.state], values, value, dict(trial.user_attrs))


def _mend(path: Path) -> None:
    """What an owner left that was killed while it wrote: half a line, and the lock. Inside the search's lease."""
    Path(f"{path}.lock").unlink(missing_ok=True)
    if path.exists():
        text = path.read_bytes()
        if text and not text.endswith(b"\n"):
            os.truncate(path, text.rfind(b"\n") + 1)
