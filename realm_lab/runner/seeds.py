"""The seeds of a study: a list, or a rule that takes them one after another until each cell is decided."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from realm_lab.errors import UserError
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


def seeds_of(given: list[int] | UntilDecided, wanted: int | None) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Return the seeds of a study, and its rule (at least, at most), if it has one and no number is `wanted`."""
    rule = given if isinstance(given, UntilDecided) else None
    seeds = given if isinstance(given, list) else [given.first + number for number in range(given.at_most)]
    if wanted is None:
        return tuple(seeds), (rule.at_least, rule.at_most) if rule else None
    if wanted < 1:
        raise UserError(f"--seeds {wanted}: a study needs at least one; give 1 or more")
    return (tuple(seeds[:wanted]) if wanted <= len(seeds) else tuple(range(wanted))), None
