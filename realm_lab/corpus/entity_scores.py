"""Entities of tags, and precision, recall and F1 over whole entities, as conlleval and seqeval count them.

An entity counts as found where its first token, its last token and its label are all right (CoNLL-2003's measure).
How a row of tags is read is conlleval's rule, which seqeval follows in its default mode ("lenient"):
- an entity begins at B- and S-, at any tag after E- or S-, and where the label changes or an O stood before;
- it ends after E- and S-, before B-, S- and O, and where the label changes.
So an I- without its B- begins an entity. seqeval's mode "strict" with IOB2 drops such an entity; `strict` does so here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Entity(NamedTuple):
    """An entity of a row of tokens."""

    start: int  # its first token
    end: int  # after its last
    label: str


class Score(NamedTuple):
    """Entities found: shares of 0 to 1, and how many there are. A share of nothing is 0, as in seqeval."""

    precision: float
    recall: float
    f1: float
    gold: int
    predicted: int
    right: int


def entities_of(tags: Sequence[str], strict: bool = False) -> list[Entity]:
    """The entities of tags such as "B-PER"; `strict` leaves out those that do not begin with B- or S-."""
    found: list[Entity] = []
    start, label, begun = -1, "", "O"
    before = "O"
    for place, tag in enumerate([*tags, "O"]):
        prefix, name = tag[0], tag[2:]
        if start >= 0 and (prefix in "OBS" or before in "ES" or name != label):
            if not strict or begun in "BS":
                found.append(Entity(start, place, label))
            start = -1
        if start < 0 and prefix != "O":
            start, label, begun = place, name, prefix
        before = prefix
    return found


def tags_of(entities: Iterable[Entity], length: int) -> list[str]:
    """The tags of entities that do not overlap, in IOB2."""
    tags = ["O"] * length
    for start, end, label in entities:
        tags[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    return tags


def entity_scores(gold: Sequence[Iterable[Entity]], predicted: Sequence[Iterable[Entity]]) -> dict[str, Score]:
    """Score of each label, and of all together under "micro"; one item a sentence in both lists."""
    golds: Counter[str] = Counter()
    guesses: Counter[str] = Counter()
    rights: Counter[str] = Counter()
    for wanted, found in zip(gold, predicted, strict=True):
        these, those = set(wanted), set(found)
        golds.update(entity.label for entity in these)
        guesses.update(entity.label for entity in those)
        rights.update(entity.label for entity in these & those)
    scores = {label: score(golds[label], guesses[label], rights[label]) for label in sorted({*golds, *guesses})}
    return scores | {"micro": score(golds.total(), guesses.total(), rights.total())}


def score(gold: int, predicted: int, right: int) -> Score:
    """Precision, recall and F1 of counts."""
    precision = right / predicted if predicted else 0.0
    recall = right / gold if gold else 0.0
    f1 = 2 * right / (gold + predicted) if right else 0.0
    return Score(precision, recall, f1, gold, predicted, right)
