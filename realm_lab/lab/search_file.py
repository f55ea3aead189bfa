"""A search as a file: experiments/search-NAME.yaml -> Search, and its space of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from realm_lab.lab.launchers import Part
from realm_lab.lab.rules.space import Space
from realm_lab.lab.study import StudyFile
from realm_lab.records.metrics import CURVES

CELL = "trial-{:03}"  # the name of a trial in the study


class Pruning(Part):
    """Rule for stopping a trial early: by the metric, or by the retrieval utility if the metric is not a curve."""

    after_steps: Annotated[int, Field(ge=1)]
    """Steps of pre-training that every trial may do; after them, every evaluation decides."""
    percentile: Annotated[float, Field(gt=0.0, lt=100.0)] = 50.0
    """A trial ends if its best value so far is worse than this percentile of complete trials at the same step."""
    min_trials: Annotated[int, Field(ge=1)] = 4
    """At least this many other trials must be complete, and have reached that step."""


class Search(StudyFile):
    """The keys of a search file, besides those that it shares with a study: question, preset, set, seeds, launcher."""

    PARTS: ClassVar[dict[str, type[BaseModel]]] = {**StudyFile.PARTS, "pruning": Pruning}

    space: Annotated[Space, Field(min_length=1)]
    """Parameter -> `{low, high}`, with `log: true` or a `step` if wanted, or `{choices: [...]}`. The parameters as they
    are, the first trial and baseline, must lie in it."""
    metric: str = "retrieval_utility"
    """The quantity to maximise, a mean over the seeds, measured on development data: a curve of
    pre-training (its last value), or a result such as `exact_match_dev`."""
    trials: Annotated[int, Field(ge=1)] = 20
    """Number of trials, including the baseline, pruned and failed ones."""
    parallel: Annotated[int, Field(ge=1)] = 1
    """Number of trials at a time."""
    sampler: Literal["tpe", "random"] = "tpe"
    """Optuna sampler that proposes trials. (For a full grid, use a study with `axes`.)"""
    pruning: Pruning | None = None
    """Rule for stopping a trial early; empty: never."""

    @property
    def curve(self) -> str:
        """The curve of pre-training used for pruning."""
        return self.metric if self.metric in CURVES else "retrieval_utility"

    def as_data(self, baseline: Mapping[str, Any]) -> dict[str, Any]:
        """Return the search in plain data. `baseline`: the values of its space as they are."""
        return {
            "name": self.name,
            "question": self.question,
            "metric": self.metric,
            "seeds": list(self.seeds),
            "source": self.path.name,
            "space": {name: dimension.model_dump(exclude_defaults=True) for name, dimension in self.space.items()},
            "baseline": dict(baseline),
        }
