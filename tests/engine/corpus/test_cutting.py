"""Cutting against the plain way: encode every text by itself, pack by trying, and compare."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from realm_lab.engine.corpus.chunking import split_sentences
from realm_lab.engine.corpus.cutting import Cutter
from realm_lab.engine.corpus.records import Document, Span
from realm_lab.engine.corpus.salient_spans import RuleTagger
from realm_lab.engine.corpus.vocabulary import (
    WordEncoder,
    encode_batch_plain,
    train_wordpiece,
    wordpiece_from_vocabulary,
)

ALPHABET = "ab.!? \n\t\x1f\x7f\x00\x85\u200b\u2028é'\"-[]中。あ文\u0301İ1"
TEXTS = st.text(alphabet=st.sampled_from(ALPHABET), max_size=60)
LONG = "x" * 99


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_wordpiece(["ab ba bab abba a b . ! ? ' \" - [ ] mask 1 11 é 中 。 あ 文 xx"], 200)


def cutter_of(tokenizer: Tokenizer, passage_length: int = 16) -> Cutter:
    return Cutter(tokenizer.to_str(), passage_length, 16, RuleTagger)


@settings(max_examples=100)
@given(st.lists(TEXTS, max_size=4))
@example(["ab\x1fab ab\x85ab [MASK]", "", "AB Ab", f"{LONG}x {LONG}xx"])
def test_remembered_words_have_the_ids_of_the_library(tokenizer: Tokenizer, texts: list[str]) -> None:
    expected = [encoding.ids for encoding in encode_batch_plain(tokenizer, texts)]
    encoder = WordEncoder(tokenizer)
    assert encoder.encode(texts) == expected
    assert encoder.encode(texts[::-1]) == expected[::-1]  # now from memory


@settings(max_examples=300)
@given(
    st.text(alphabet=st.sampled_from(ALPHABET), max_size=16),
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=2),
)
@example("Ab abba, [MASK] bab.", [(0, 2), (3, 4), (9, 6)])
@example(f"{LONG} {LONG}xx", [(0, 99), (100, 101)])
@example("abba ba", [(1, 3)])  # starts within a word
@example("\u200b ab", [(0, 1), (2, 2)])  # of no wordpiece
def test_spans_of_words_are_those_of_the_library(
    tokenizer: Tokenizer, text: str, places: list[tuple[int, int]]
) -> None:
    spans = [(start, min(start + size, len(text))) for start, size in places if start < len(text)]
    encoder = WordEncoder(tokenizer)
    encoder.encode([text])
    [encoding] = encode_batch_plain(tokenizer, [text])
    pairs = [(encoding.char_to_token(start), encoding.char_to_token(end - 1)) for start, end in spans]
    expected = [None if first is None or last is None else (first, last + 1) for first, last in pairs]
    assert encoder.place_spans(text, spans) == expected


def test_a_cased_vocabulary_is_respected() -> None:
    cased = wordpiece_from_vocabulary(["a", "A", "##b", "-"], lowercase=False)
    assert WordEncoder(cased).encode(["Ab ab A-a"]) == [[6, 7, 5, 7, 6, 8, 5]]


def brute_force(counts: Sequence[int], budget: int) -> list[list[int]]:
    """Passages as lists of sentence numbers: each takes as many as fit, at least one."""
    rest, passages = list(range(len(counts))), []
    while rest:
        size = max([1, *(n for n in range(1, len(rest) + 1) if sum(counts[i] for i in rest[:n]) <= budget)])
        passages.append(rest[:size])
        rest = rest[size:]
    return passages


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return encode_batch_plain(tokenizer, [text])[0].ids


@settings(max_examples=60)
@given(st.lists(TEXTS.filter(str.strip), min_size=1, max_size=3), st.integers(8, 40))
@example(["ab\x85\x85ab ab. ab ab ab"], 20)
@example(["\u200bab ab. \u200b\u0301Ab b."], 9)
def test_passages_are_packed_as_by_trying_and_encoded_whole(
    tokenizer: Tokenizer, texts: list[str], length: int
) -> None:
    documents = [Document(str(number), "A b", text, "t") for number, text in enumerate(texts)]
    rows = cutter_of(tokenizer, length).cut([documents], "passages and sentences").passages.to_pylist()
    expected, starts = [], []
    for document in documents:
        offsets = split_sentences(document.text)
        counts = [len(plain_ids(tokenizer, document.text[start:end])) for start, end in offsets]
        for group in brute_force(counts, length - 3 - len(plain_ids(tokenizer, "A b"))):
            if sum(counts[number] for number in group):
                expected.append(document.text[offsets[group[0]][0] : offsets[group[-1]][1]])
                starts.append([sum(counts[group[0] : number]) for number in group])
    assert [row["body"] for row in rows] == expected
    assert [row["sentence_starts"] for row in rows] == starts
    for row in rows:
        assert row["bodies"] == plain_ids(tokenizer, row["body"])
        assert row["titles"] == plain_ids(tokenizer, "A b")


def test_the_same_sentence_is_always_in_the_same_part(tokenizer: Tokenizer) -> None:
    letters = [f"{a} {b} {c} ab ab ab." for a in "ab" for b in "ab1" for c in ("a", "b", "1", "Ba 1", "Ab 11")]
    documents = [Document(str(number), "", text, str(number)) for number, text in enumerate([*letters, *letters])]
    cut = cutter_of(tokenizer).cut([[document] for document in documents], "sentences")
    parts: dict[tuple[int, ...], set[str]] = {}
    for part, batch in cut.sentences.items():
        for tokens in batch.column("tokens").to_pylist():
            parts.setdefault(tuple(tokens), set()).add(part)
    kept = sum(batch.num_rows for batch in cut.sentences.values())
    assert kept + sum(cut.dropped.values()) == 2 * len(letters)
    assert all(len(found) == 1 for found in parts.values())


def test_given_spans_are_placed_in_their_sentences_and_no_tagger_adds_to_them(tokenizer: Tokenizer) -> None:
    text = "Ab abba ab bab ab ba. Ba Bab ab ab ab ab ab."
    assert [text[start:end] for start, end in split_sentences(text)] == [text[:21], text[22:]]
    spans = (Span(3, 7, "x"), Span(15, 24, "across"), Span(25, 28, "y\tz"))
    documents = [Document("given", "", text, "a", spans=spans), Document("none", "", text, "b", spans=())]
    cut = cutter_of(tokenizer, 40).cut([[document] for document in documents], "passages and sentences")
    assert cut.dropped["salient span across the end of a sentence"] == 1
    rows = cut.sentences["sentences"].to_pylist()
    assert [row["text"] for row in rows] == 2 * [text[:21], text[22:]]
    assert [row["labels"] for row in rows] == ["x", "y z", "", ""]
    assert [plain_ids(tokenizer, "abba"), plain_ids(tokenizer, "Bab")] == [
        row["tokens"][slice(*row["spans"])] for row in rows[:2]
    ]


def test_sentences_of_an_article_share_its_text_in_memory(tokenizer: Tokenizer) -> None:
    class Tagger:
        def tag_batch(self, texts: Sequence[str], contexts: Sequence[str]) -> list[tuple[Span, ...]]:
            assert len(contexts) == 3
            assert set(map(id, contexts[:2])) == {id(contexts[0])}, "a copy for each document takes quadratic memory"
            assert [*contexts] == ["Ab ab.\nBa ba.", "Ab ab.\nBa ba.", "Bab."]
            return [()] * len(texts)

    one, two, other = (Document(text, "", text, "a") for text in ("Ab ab.", "Ba ba.", "Bab."))
    cutter = Cutter(tokenizer.to_str(), 16, 16, Tagger)
    assert cutter.cut([[one, two], [other]], "passages and sentences").passages.num_rows == 3
