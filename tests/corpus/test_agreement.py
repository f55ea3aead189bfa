"""Two taggers beside each other and beside gold: counts by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from realm_lab.corpus.agreement import compare_with_rules, contexts_of, spans_in_text
from realm_lab.corpus.conll import TaggedSentence
from realm_lab.corpus.entity_scores import Entity
from realm_lab.corpus.records import Span

SENTENCES = [
    TaggedSentence(("In", "1969", "Neil", "Armstrong", "met", "cats", "."), (Entity(2, 4, "PER"),), 0),
    TaggedSentence(("Paris", "saw", "e\u0301lan", "and", "5", "dogs"), (Entity(0, 1, "LOC"), Entity(2, 3, "MISC")), 0),
    TaggedSentence(("They", "left", "Paris"), (Entity(2, 3, "LOC"),), 1),
]


class Fixed:
    """Says "Neil" and "1969" of the first sentence, "Paris" of the second and nothing of the third."""

    def tag_batch(self, texts: Sequence[str], contexts: Sequence[str]) -> list[tuple[Span, ...]]:
        assert len(texts) == len(contexts) == 3
        return [(Span(3, 7, "date"), Span(8, 12, "PER")), (Span(0, 5, "LOC"),), ()]


def test_entities_of_tokens_become_spans_of_the_text() -> None:
    text, spans = spans_in_text(SENTENCES[1])
    assert [(text[start:end], label) for start, end, label in spans] == [("Paris", "LOC"), ("e\u0301lan", "MISC")]


def test_the_context_of_a_sentence_is_its_document() -> None:
    first = "In 1969 Neil Armstrong met cats .\nParis saw e\u0301lan and 5 dogs"
    assert contexts_of(SENTENCES) == [first, first, "They left Paris"]
    long = TaggedSentence(("x" * 60_000,), (), 0)
    assert contexts_of([long, long]) == ["", ""]


def test_counts_by_hand() -> None:
    found = compare_with_rules(Fixed(), SENTENCES)
    # Gold: Armstrong, Paris, élan, Paris. The rules say 1969, Armstrong, 5 and the last Paris; the first one stands
    # alone at the start of its sentence.
    assert (found["tagger"]["right"], found["tagger"]["predicted"], found["tagger"]["gold"]) == (1, 2, 4)
    assert (found["rules"]["right"], found["rules"]["predicted"], found["rules"]["f1"]) == (2, 2, pytest.approx(2 / 3))
    assert found["names"] == {"f1": 0.0, "shared": 0.0, "tagger": 2, "rules": 2, "both": 0}
    assert found["spans"] == {
        "f1": pytest.approx(2 / 7),
        "shared": pytest.approx(1 / 6),
        "tagger": 3,
        "rules": 4,
        "both": 1,
    }
