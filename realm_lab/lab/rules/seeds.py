"""The seeds of a study: a list, or a rule that takes them one after another, by the results so far.

A rule is a function of the study's record, the table of its complete runs and the rule's options; it returns cell ->
number of seeds that the cell takes. It is called when all cells have `at_least` seeds, and whenever more are complete.
It must depend on nothing else, so that a stopped sweep takes the same seeds when it continues. The baseline takes every
seed that another cell takes. An example is in docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, Tag, model_validator

from realm_lab.evidence.statistics.paired import EXACT_SEEDS, FEWEST_SEEDS
from realm_lab.lab.launchers import Part
from realm_lab.records.plugins import Choice, Kind, Plugin

SeedCounts = Callable[..., Mapping[str, int]]
SeedList = Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]
MOST_SEEDS = EXACT_SEEDS  # of a rule: with more, the sign-flip test is not exact


class SeedRule(Part):
    """Options of every rule; a rule with further options has a subclass."""

    at_least: Annotated[int, Field(ge=2, le=MOST_SEEDS)] = 4
    at_most: Annotated[int, Field(ge=FEWEST_SEEDS, le=MOST_SEEDS)] = MOST_SEEDS
    first: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _in_order(self) -> SeedRule:
        if self.at_least > self.at_most:
            raise ValueError(f"at_least is {self.at_least}, more than at_most, {self.at_most}; lower it")
        return self

    @property
    def looks(self) -> tuple[int, int] | None:
        """Seeds at the first and last look at differences, to correct p; None: the rule looks at no differences."""
        return None


SEED_RULES: Kind[SeedCounts] = Kind("rule for seeds", "function", "study, results")
SEED_RULES.declare(
    "decided", "realm_lab.lab.rules.until_decided:until_decided", "realm_lab.lab.rules.until_decided:UntilDecided"
)
register_seed_rule = SEED_RULES.register  # makes a rule selectable as `seeds: {until: NAME}`


def _rule(given: Any) -> Choice:
    """Read `{until: NAME, OPTION: VALUE, ...}`."""
    if isinstance(given, Choice):
        return given
    if not isinstance(given.get("until"), str):
        raise ValueError("write a list, or until: NAME of a rule, such as {until: decided}")
    return Choice.read({"name" if key == "until" else key: value for key, value in given.items()})


LIST, RULE = "a list", "a rule"  # kinds of `seeds`, which pydantic puts into the location of an error
SeedsOrRule = Annotated[
    Annotated[SeedList, Tag(LIST)]
    | Annotated[Choice, BeforeValidator(_rule), PlainSerializer(Choice.plain), Tag(RULE)],
    Discriminator(lambda given: RULE if isinstance(given, dict | Choice) else LIST),
]


def options_of(rule: Plugin[SeedCounts]) -> SeedRule:
    """Return the options of a rule, which planning has checked."""
    assert isinstance(rule.options, SeedRule)
    return rule.options
