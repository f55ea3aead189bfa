"""Chunking: exact offsets, whole sentences, the limit of ORQA's preprocessing."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_lab.engine.corpus import chunking
from realm_lab.engine.corpus.chunking import cut_passages, split_sentences
from realm_lab.engine.corpus.records import Document, Passage


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


SIGHTS = 9 * "One sight is old. It was built in 1900. It is big.\n"


@pytest.mark.parametrize("items", [["- A", "- B"], ["• A"], ["* A", "* B is b"], ["1. A", "2. B"], ["a)A", "(b) B"]])
def test_text_after_a_list_is_cut_into_sentences(items: list[str]) -> None:
    text = "\n".join([*items, SIGHTS])
    assert sentences_of(text) == items + 9 * ["One sight is old.", "It was built in 1900.", "It is big."]


@pytest.mark.parametrize(
    "sentences",
    [
        ["It closed in 2009.[citation needed][note 1]", " It opened again.[who?]"],  # marks of a wiki
        ["日本語です。", "次の文。"],
        # an item goes on over lines in lower case
        ["- A long\n  item of\ntwo sentences.", " This is one.", "\n- B", "\nMore text.", " Yes.", "\n- C", "\nEnd."],
    ],
)
def test_a_text_is_cut_between_its_sentences(sentences: list[str]) -> None:
    assert sentences_of("".join(sentences)) == [sentence.strip() for sentence in sentences]


@given(st.text(alphabet=st.sampled_from("aB é\u0301\u200b\ufeff日。.!?[]()\"'\n\r\t\u2028\u202eשไ😀𝔘5,;"), max_size=80))
def test_sentences_cover_everything_but_blanks(text: str) -> None:
    place = 0
    for start, end in split_sentences(text):
        assert not text[place:start].strip()
        assert start < end
        assert text[start:end] == text[start:end].strip()
        place = end
    assert not text[place:].strip()


DOCUMENT = Document("d#0", "The Title", "One two three.  Four five.\nSix seven eight nine ten. Eleven.", "d")


def cut(document: Document, max_tokens: int, dropped: Counter[str]) -> list[Passage]:
    """Cut a document in which each word is one wordpiece."""
    offsets = split_sentences(document.text)
    counts = [len(document.text[start:end].split()) for start, end in offsets]
    title = len(document.title.split())
    return [passage for passage, _, _ in cut_passages(document, offsets, title, counts, max_tokens, dropped)]


def test_a_sentence_over_the_limit_is_a_passage_of_its_own_and_what_is_cut_is_counted() -> None:
    dropped: Counter[str] = Counter()
    assert [(passage.id, passage.body) for passage in cut(DOCUMENT, 8, dropped)] == [
        ("d#0/0", "One two three."),
        ("d#0/1", "Four five."),
        ("d#0/2", "Six seven eight nine ten."),
        ("d#0/3", "Eleven."),
    ]
    assert dropped == {chunking.TOO_LONG: 1, chunking.CUT_WORDPIECES: 2}
    offsets = split_sentences(DOCUMENT.text)  # the second sentence is as if of invisible characters
    kept = cut_passages(DOCUMENT, offsets, 2, [9, 0, 9, 1], 8, dropped)
    assert [(passage.id, first) for passage, first, _ in kept] == [("d#0/0", 0), ("d#0/1", 2), ("d#0/2", 3)]
    within: Counter[str] = Counter()  # 3 special tokens and 2 of the title leave 5 of 10
    assert [passage.body for passage in cut(DOCUMENT, 10, within)] == [
        "One two three.  Four five.", "Six seven eight nine ten.", "Eleven.",
    ]  # fmt: skip
    assert not within
