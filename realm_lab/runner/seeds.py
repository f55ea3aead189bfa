"""The seeds of a study: a list, or a rule that takes them one after another until each cell is decided."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from realm_lab.runner.launchers import Part
from realm_lab.statistics.paired import EXACT_SEEDS, FEWEST_SEEDS

SeedList = Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]
MOST_SEEDS = EXACT_SEEDS  # for a rule: all signs of this many are counted


class UntilDecided(Part):
    """Seeds that are taken one after another, until the first metric of every cell is decided."""

    until: Literal["decided"]
    at_least: Annotated[int, Field(ge=2, le=MOST_SEEDS)]
    at_most: Annotated[int, Field(ge=FEWEST_SEEDS, le=MOST_SEEDS)]
    first: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _in_order(self) -> UntilDecided:
        if self.at_least > self.at_most:
            raise ValueError(f"at_least is {self.at_least}, more than at_most, {self.at_most}; lower it")
        return self


LIST, RULE = "a list", "a rule"  # kinds of `seeds`, which pydantic puts into the location of an error
SeedsOrRule = Annotated[
    Annotated[SeedList, Tag(LIST)] | Annotated[UntilDecided, Tag(RULE)],
    Discriminator(lambda given: RULE if isinstance(given, dict | UntilDecided) else LIST),
]
