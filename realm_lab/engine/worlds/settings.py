"""The options of corpus source `toy`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from realm_lab.engine.params.sections import OBSERVES, Fraction, NonNegative, Positive, Section

EASY_WORLD = {
    "entities_per_name": 1,
    "unanswerable_fraction": 0.0,
    "syntax_fraction": 0.0,
    "salient": "both",
    "asked_relations": "all",
    "question_articles": 0.0,
    "question_sentences": 0.0,
}


class WorldOptions(Section):
    """The embedded world of entities and facts, which docs/world.md describes."""

    world: Annotated[Literal["sharp", "easy"], OBSERVES] = "sharp"
    """`easy`: the options from entities_per_name to question_sentences are off unless they are set, for smoke tests."""
    entities: Annotated[int, Field(ge=40, le=4_000_000, multiple_of=4)] = 256
    """Entities of four types; each has an article of several passages."""
    entities_per_name: Annotated[int, Field(ge=1, le=4)] = 3
    """Number of entities, of as many types, that share one name."""
    unanswerable_fraction: Annotated[float, Field(ge=0.0, le=0.9)] = 0.3
    """Share of the sentences of X, if it is not Z, whose masked value no passage states: half are about names that Z
    lacks, half name no entity ("this town")."""
    syntax_fraction: Annotated[float, Field(ge=0.0, le=0.9)] = 0.1
    """Share of the other sentences of X in which an ordinary word is the salient span, predictable without
    retrieval."""
    salient: Literal["object", "both"] = "object"
    """Salient names of a sentence about a fact: its value, or its subject as well, which no query reveals."""
    asked_relations: Literal["half", "all"] = "half"
    """The relations of each type that training questions ask for; development and test ask for all."""
    question_articles: Fraction = 0.2
    """Share of the filler passages that hold a question, so that its words are known before fine-tuning."""
    question_sentences: Fraction = 0.1
    """Share of the sentences of X about facts that are a question and its answer."""
    fillers_per_entity: NonNegative = 2
    """Passages of each article that hold no fact."""
    articles: Positive = 70_000
    """Filler articles that teach the reader to copy in its warm start."""
    changed_fraction: Fraction = 0.5
    """Share of the facts that the corpus update changes (Guu, Table 4)."""
    restate_facts: bool = False
    """Let another passage of the same article state each fact again, in other words: evidence if X is Z."""
    bystanders: Fraction = 0.0
    """Share of the sentences of X about facts that also name another entity of the subject's type."""
    hops: Literal[1, 2] = 1
    """Facts per question: one, or two, as in "who is the mayor of the birthplace of ..."."""
    world_seed: NonNegative | None = None
    """Seed of the world; empty: the seed of each run."""

    @model_validator(mode="before")
    @classmethod
    def _easy(cls, values: Any) -> Any:
        is_easy = isinstance(values, dict) and values.get("world") == "easy"
        return EASY_WORLD | values if is_easy else values
