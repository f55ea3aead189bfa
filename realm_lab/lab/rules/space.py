"""Spaces of parameters to try, in a search or in `tune` of a study, and the metrics that may choose among trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.params.corpus import Corpus
from realm_lab.lab.launchers import Part
from realm_lab.lab.rules.seeds import SeedList
from realm_lab.records.metrics import CURVES, chosen_by

EDGE_SHARE = 0.05  # of a range, at each end


class Dimension(Part):
    """One parameter of the space: a range of numbers, or choices."""

    low: int | float | None = None
    """The smallest value."""
    high: int | float | None = None
    """The largest value."""
    log: bool = False
    """Small values are as likely as large ones: drawn on a log scale."""
    step: Annotated[int | float, Field(gt=0)] | None = None
    """Only values at multiples of this above `low`."""
    choices: Annotated[list[bool | int | float | str | None], Field(min_length=2)] | None = None
    """Any of these, instead of a range."""

    @model_validator(mode="after")
    def _consistent(self) -> Dimension:
        if [end is None for end in (self.low, self.high)] != [self.choices is not None] * 2:
            raise ValueError("write {low: ..., high: ...} or {choices: [...]}")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        if self.log and (self.step is not None or (self.low is not None and self.low <= 0)):
            raise ValueError("a log scale begins above 0 and has no step")
        return self

    def at(self, share: float, is_whole: bool) -> Any:
        """Return the value at a `share` (0 to below 1) of the range or of the list of choices."""
        if self.low is None or self.high is None:
            return self.ends[int(share * len(self.ends))]
        if self.step or is_whole:
            step = self.step or 1
            if not self.log:
                return self.low + step * int(share * (int((self.high - self.low) / step + 1e-9) + 1))
            return round(self.low * (self.high / self.low) ** share)
        return self.low * (self.high / self.low) ** share if self.log else self.low + (self.high - self.low) * share

    @property
    def ends(self) -> list[Any]:
        return [self.low, self.high] if self.choices is None else self.choices

    def __contains__(self, value: Any) -> bool:
        return value in self.ends if self.low is None or self.high is None else self.low <= value <= self.high

    def is_edge(self, value: Any) -> bool:
        """True for the smallest or largest of numeric choices, and for values in the first or last twentieth of a
        range: a better value may be outside."""
        if self.low is None or self.high is None:
            are_numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in self.ends)
            return are_numbers and value in (min(self.ends), max(self.ends))
        scale: Callable[[float], float] = math.log if self.log else float
        low, high = scale(self.low), scale(self.high)
        return min(scale(value) - low, high - scale(value)) <= EDGE_SHARE * (high - low)


Space = dict[str, Dimension]


class Tuning(Part):
    """The keys of `tune` in a study: the same number of trials for each variant, before the study's own seeds."""

    trials: Annotated[int, Field(ge=2)]
    """Number of trials of every variant. The first one has its parameters as they are."""
    seeds: SeedList
    """Development seeds, one run of a trial for each; the trial's value is the mean. None of the study's own seeds."""
    metric: str = "exact_match_dev"
    """The quantity to maximise, measured on development data, as in a search. Of equal trials the first one wins."""
    space: Space = Field(default_factory=dict)
    """Space of variants without a separate one, written as in a search."""
    sampler: Literal["latin", "grid"] = "latin"
    """Proposal of trials: `latin` (a Latin hypercube), or `grid`, every combination of the choices, which must be as
    many as the trials."""


def hypercube(space: Mapping[str, Dimension], start: Mapping[str, Any], count: int, draw: int) -> list[dict[str, Any]]:
    """Return a Latin hypercube sample (McKay, Beckman and Conover 1979, Technometrics 21, section 2): each parameter
    has one value in each of `count` equal parts of its range, in random order. The values depend on the names of
    the parameters, on `count` and on `draw`."""
    shares = {}
    for name in space:
        generator = numpy_generator(draw, "latin", name, count)
        shares[name] = (generator.permutation(count) + generator.random(count)) / count
    return [
        {name: item.at(float(shares[name][number]), isinstance(start[name], int)) for name, item in space.items()}
        for number in range(count)
    ]


def unfit(metric: str, corpus: Corpus) -> str:
    """Return why a metric cannot choose among trials: it is not measured on development data, or needs questions that
    the corpus does not have; "" if it can."""
    known, reason = chosen_by(), "is not measured on development data"
    if metric in known and not corpus.has_dev_questions:
        known = {name: entry for name, entry in known.items() if entry.part == "own measurements"}
        reason = "needs development questions, and corpus.files neither names nor holds out any"
    return "" if metric in known else f"metric: '{metric}' {reason}; choose one of {', '.join(known)}"


def last_stage_for(metric: str) -> str:
    """Return the last stage of a trial: no fine-tuning is needed if the metric is a curve of pre-training."""
    return "pretrain" if metric in CURVES else "evaluate"
