"""The options of the corpus sources of section 6: those of source toy and more."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from realm_lab.engine.worlds.settings import WorldOptions


class TripleOptions(WorldOptions):
    """The toy world with structured knowledge: Z has facts as triples, "kelbo | mayor | nofmez ."."""

    triples: Literal["none", "half", "all", "both"] = "all"
    """Facts that are triples in place of a sentence: none, half of each entity's, or all. `both`: each fact in both
    forms, a passage each."""
    triple_cards: bool = False
    """All triples of an entity in one passage. If false, each has a separate passage with another sentence."""


class BilingualOptions(WorldOptions):
    """The toy world in two languages: X, held-out sentences and questions are in the second."""

    second_language: Literal["names_shared", "transliterated"] = "names_shared"
    """Words are written in other letters, and sentences backwards. `names_shared`: names and years stay as they are.
    `transliterated`: they are in those letters too, so that the languages share no wordpiece."""
    knowledge_language: Literal["first", "second", "both"] = "first"
    """Language of Z; `both`: each passage once in each language."""
    sentence_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the training sentences that X has; a small one stands for a language with little text."""


class DrawnOptions(WorldOptions):
    """The toy world with pictures of facts as passages of Z, most without text; needs model.pictures."""

    pictures: Literal["facts", "captioned", "shuffled"] = "facts"
    """Each fact as an image in place of its sentence; `captioned`: an image and a sentence, a passage each; `shuffled`:
    an image with a random value, so that no passage has a fact."""
