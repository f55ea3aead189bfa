"""Chunking: exact offsets, whole sentences, the limit of ORQA's preprocessing."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_lab.corpus import chunking
from realm_lab.corpus.chunking import pack_passages, pack_sentences, split_sentences
from realm_lab.corpus.records import Document


def words(texts: list[str]) -> list[int]:
    """A stand-in for a tokenizer: one token per word."""
    return [len(text.split()) for text in texts]


def sentences_of(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


def test_sentences_of_abbreviations_initials_and_quotes() -> None:
    text = 'Dr. J. R. R. Tolkien left the U.S. Army at 3 p.m. on Jan. 5.  Then "Help!" he cried. It is 3.5 km.\n\nEnd'
    assert sentences_of(text) == [
        "Dr. J. R. R. Tolkien left the U.S. Army at 3 p.m. on Jan. 5.",
        'Then "Help!" he cried.',
        "It is 3.5 km.",
        "End",
    ]


def test_wiki_marks_stay_with_the_sentence_they_belong_to() -> None:
    text = "It closed in 2009.[citation needed][note 1] It opened again.[who?]"
    assert sentences_of(text) == ["It closed in 2009.[citation needed][note 1]", "It opened again.[who?]"]


def test_sentences_without_blanks_between_them() -> None:
    assert sentences_of("日本語です。次の文。") == ["日本語です。", "次の文。"]


@given(st.text(alphabet=st.sampled_from("aB é\u0301\u200b\ufeff日。.!?[]()\"'\n\r\t\u2028😀𝔘5,;"), max_size=80))
def test_sentences_cover_everything_but_blanks(text: str) -> None:
    place = 0
    for start, end in split_sentences(text):
        assert not text[place:start].strip()
        assert start < end
        assert text[start:end] == text[start:end].strip()
        place = end
    assert not text[place:].strip()


@given(st.lists(st.integers(0, 12)), st.integers(-3, 20))
def test_packing_is_greedy_and_keeps_the_order(counts: list[int], budget: int) -> None:
    ranges = list(pack_sentences(counts, budget))
    assert [number for first, last in ranges for number in range(first, last)] == list(range(len(counts)))
    for first, last in ranges:
        assert sum(counts[first:last]) <= budget or last == first + 1
    for (first, last), (_, following) in itertools.pairwise(ranges):
        assert sum(counts[first : last + 1]) > budget, "the next sentence would still have fitted"
        assert following > last


DOCUMENT = Document("d#0", "The Title", "One two three.  Four five.\nSix seven eight nine ten. Eleven.", "d")


def passages_of(document: Document, max_tokens: int, counts: Counter[str] | None = None) -> list[tuple[str, str]]:
    packed = pack_passages(document, split_sentences(document.text), words, max_tokens, counts)
    return [(passage.id, passage.body) for passage in packed]


def test_passages_are_slices_of_whole_sentences_within_the_limit() -> None:
    # 3 special tokens and 2 of the title leave 5 of 10
    assert passages_of(DOCUMENT, 10) == [
        ("d#0/0", "One two three.  Four five."),
        ("d#0/1", "Six seven eight nine ten."),
        ("d#0/2", "Eleven."),
    ]


def test_title_document_and_article_are_repeated() -> None:
    for passage in pack_passages(DOCUMENT, split_sentences(DOCUMENT.text), words, 10):
        assert (passage.title, passage.document, passage.article) == ("The Title", "d#0", "d")


def test_a_sentence_over_the_limit_is_a_passage_of_its_own_and_counted() -> None:
    counts: Counter[str] = Counter()
    assert passages_of(DOCUMENT, 9, counts) == [
        ("d#0/0", "One two three."),
        ("d#0/1", "Four five."),
        ("d#0/2", "Six seven eight nine ten."),
        ("d#0/3", "Eleven."),
    ]
    assert counts == {chunking.TOO_LONG: 1}


def test_a_title_that_fills_the_limit_leaves_one_sentence_a_passage() -> None:
    counts: Counter[str] = Counter()
    assert len(passages_of(DOCUMENT._replace(title="w " * 20), 10, counts)) == 4
    assert counts == {chunking.TOO_LONG: 4}


def test_what_has_no_wordpieces_is_left_out_and_counted() -> None:
    counts: Counter[str] = Counter()
    packed = pack_passages(DOCUMENT._replace(text="\u200b"), [(0, 1)], lambda texts: [0 for _ in texts], 10, counts)
    assert list(packed) == []
    assert counts == {chunking.NOTHING_TO_ENCODE: 1}


@pytest.mark.parametrize("text", ["", " \n "])
def test_no_text_no_passages(text: str) -> None:
    assert passages_of(DOCUMENT._replace(text=text), 10) == []
