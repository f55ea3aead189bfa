"""The part that Optuna has in a search and in `tune`: spaces, samplers, and the journal. The only file that imports
optuna."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna import Study, Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import get_param_importances
from optuna.pruners import BasePruner, NopPruner, PercentilePruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from realm_lab.errors import UserError
from realm_lab.runner.space import Dimension

__all__ = ["FrozenTrial", "Study", "Trial", "TrialState", "get_param_importances"]

optuna.logging.set_verbosity(optuna.logging.WARNING)

RANDOM_TRIALS = 10  # the first trials of TPE: they depend on no result
MOST_DRAWS = 200  # for one trial


def distributions(space: Mapping[str, Dimension], own: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Convert a space to Optuna's distributions; `own` has a value of each parameter, for its type."""
    found: dict[str, BaseDistribution] = {}
    for name, item in space.items():
        if item.low is None or item.high is None:
            found[name] = CategoricalDistribution(item.ends)
        elif isinstance(own[name], int):
            found[name] = IntDistribution(int(item.low), int(item.high), item.log, int(item.step or 1))
        else:
            found[name] = FloatDistribution(item.low, item.high, item.log, item.step)
    return found


def sampler(kind: str, seed: int) -> BaseSampler:
    """Return the sampler of a trial. Each trial has a new one, seeded by its number, so that what was stopped proposes
    what it would have proposed."""
    return TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS) if kind == "tpe" else RandomSampler(seed)


def draws(
    kind: str,
    space: Mapping[str, Dimension],
    own: Mapping[str, Any],
    ended: Sequence[tuple[Mapping[str, Any], float | None]],
    number: int,
) -> Iterator[dict[str, Any]]:
    """Yield proposals for the trial of that number, until one suits. They depend on nothing but the arguments. `ended`:
    earlier trials with their values, None for a failed one."""
    wanted = distributions(space, own)
    trials = [
        create_trial(
            params=dict(values),
            distributions=wanted,
            value=value,
            state=TrialState.FAIL if value is None else TrialState.COMPLETE,
        )
        for values, value in ended
    ]
    for draw in range(MOST_DRAWS):
        study = optuna.create_study(direction="maximize", sampler=sampler(kind, number + 1000 * draw))
        study.add_trials(trials)
        yield dict(study.ask(wanted).params)


def open_journal(path: Path, name: str, pruner: BasePruner) -> Study:
    """Create or continue the journal of a search's trials. UserError: it is not a journal of Optuna."""
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
        remedy = "delete it to begin the search again: finished runs are only read"
        raise UserError(f"not a journal of Optuna ({error})", remedy, path=path) from None


def make_pruner(percentile: float | None, after_steps: int = 0, min_trials: int = 1) -> BasePruner:
    """Return the pruner of a search; without a percentile, one that never prunes."""
    if percentile is None:
        return NopPruner()
    return PercentilePruner(  # Optuna's percentile counts from the best
        100.0 - percentile, n_startup_trials=min_trials, n_warmup_steps=after_steps, n_min_trials=min_trials
    )
