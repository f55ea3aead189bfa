"""Entities of tags and their scores, against cases counted by hand and figures of seqeval 1.2.2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_lab.corpus.entity_scores import Entity, Score, entities_of, entity_scores, tags_of

# tags -> entities read leniently, and those that mode "strict" with IOB2 leaves
CASES: dict[str, tuple[list[tuple[int, int, str]], list[tuple[int, int, str]]]] = {
    "": ([], []),
    "O O": ([], []),
    "B-PER": ([(0, 1, "PER")], [(0, 1, "PER")]),
    "B-PER I-PER O": ([(0, 2, "PER")], [(0, 2, "PER")]),
    "B-PER B-PER": ([(0, 1, "PER"), (1, 2, "PER")], [(0, 1, "PER"), (1, 2, "PER")]),
    "I-PER I-PER": ([(0, 2, "PER")], []),  # no B-
    "O I-PER O I-PER": ([(1, 2, "PER"), (3, 4, "PER")], []),
    "B-PER I-LOC": ([(0, 1, "PER"), (1, 2, "LOC")], [(0, 1, "PER")]),  # the label changes inside
    "B-PER I-LOC I-PER": ([(0, 1, "PER"), (1, 2, "LOC"), (2, 3, "PER")], [(0, 1, "PER")]),
    "I-PER B-PER I-PER": ([(0, 1, "PER"), (1, 3, "PER")], [(1, 3, "PER")]),
    "S-PER S-PER": ([(0, 1, "PER"), (1, 2, "PER")], [(0, 1, "PER"), (1, 2, "PER")]),
    "B-PER I-PER E-PER I-PER": ([(0, 3, "PER"), (3, 4, "PER")], [(0, 3, "PER")]),
    "B-PER E-PER E-PER": ([(0, 2, "PER"), (2, 3, "PER")], [(0, 2, "PER")]),
    "S-PER I-PER": ([(0, 1, "PER"), (1, 2, "PER")], [(0, 1, "PER")]),
    "B-geo-loc I-geo-loc": ([(0, 2, "geo-loc")], [(0, 2, "geo-loc")]),  # a dash in the label
}


@pytest.mark.parametrize("tags", CASES)
def test_entities_are_those_of_conlleval(tags: str) -> None:
    lenient, strict = CASES[tags]
    assert entities_of(tags.split()) == lenient
    assert entities_of(tags.split(), strict=True) == strict


def test_scores_by_hand() -> None:
    gold = ["B-PER I-PER O B-LOC", "B-ORG O B-LOC"]
    found = ["B-PER I-PER O B-ORG", "B-ORG I-ORG B-LOC"]  # right: PER, the last LOC; a wrong label; a bound too far
    scores = entity_scores([entities_of(row.split()) for row in gold], [entities_of(row.split()) for row in found])
    assert scores == {
        "LOC": Score(1.0, 0.5, 2 / 3, 2, 1, 1),
        "ORG": Score(0.0, 0.0, 0.0, 1, 2, 0),
        "PER": Score(1.0, 1.0, 1.0, 1, 1, 1),
        "micro": Score(0.5, 0.5, 0.5, 4, 4, 2),
    }


def test_nothing_to_find_and_nothing_found() -> None:
    assert entity_scores([[]], [[]]) == {"micro": Score(0.0, 0.0, 0.0, 0, 0, 0)}
    assert entity_scores([[Entity(0, 1, "X")]], [[]])["X"] == Score(0.0, 0.0, 0.0, 1, 0, 0)
    assert entity_scores([[]], [[Entity(0, 1, "X")]])["X"] == Score(0.0, 0.0, 0.0, 0, 1, 0)


def test_an_entity_found_in_another_sentence_is_not_found() -> None:
    one, other = [Entity(0, 1, "X")], [Entity(1, 2, "X")]
    assert entity_scores([one, other], [other, one])["micro"].right == 0


# Random rows with the F1 of each label (LOC, MISC, PER) and the micro F1 that seqeval 1.2.2 prints for them.
SEQEVAL = [
    (
        ["B-PER B-MISC I-LOC O O I-MISC", "O B-LOC I-PER O I-PER B-PER O O"],
        ["B-PER B-MISC I-LOC O O I-LOC", "O I-PER I-PER O I-PER B-PER O O"],
        [0.5, 0.666667, 0.75, 0.666667],
    ),
    (
        ["O I-PER B-LOC I-PER I-MISC I-LOC B-PER O", "I-PER I-LOC B-PER B-LOC O I-PER I-LOC O"],
        ["O I-PER B-LOC I-PER B-MISC I-LOC B-PER O", "I-LOC O B-PER B-LOC I-LOC I-PER I-LOC O"],
        [0.6, 1.0, 0.909091, 0.782609],
    ),
    (
        ["B-MISC B-PER I-MISC B-LOC B-PER B-MISC B-MISC O", "I-MISC I-PER I-PER I-MISC"],
        ["B-LOC B-PER I-MISC B-LOC O B-LOC B-MISC O", "I-MISC I-LOC I-PER I-MISC"],
        [0.4, 0.8, 0.4, 0.6],
    ),
    (
        ["B-LOC I-LOC B-MISC I-LOC B-LOC O B-MISC", "B-PER I-PER O B-MISC O B-PER"],
        ["B-PER B-MISC B-MISC O B-LOC O B-MISC", "B-PER I-PER O B-LOC O B-PER"],
        [0.4, 0.666667, 0.8, 0.625],
    ),
]


@pytest.mark.parametrize(("gold", "found", "expected"), SEQEVAL)
def test_scores_are_those_of_seqeval(gold: list[str], found: list[str], expected: list[float]) -> None:
    scores = entity_scores([entities_of(row.split()) for row in gold], [entities_of(row.split()) for row in found])
    assert [scores[name].f1 for name in ("LOC", "MISC", "PER", "micro")] == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(["A", "B-C"]))))
def test_tags_and_entities_are_inverse(parts: list[tuple[int, int, str]]) -> None:
    entities, place = [], 0
    for gap, length, label in parts:
        entities.append(Entity(place + gap, place + gap + length, label))
        place += gap + length
    assert entities_of(tags_of(entities, place + 1)) == entities
