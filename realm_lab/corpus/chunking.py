"""Texts into sentences, sentences into passages.

Sentences come from sentencex (Wikimedia; rules, no model, no download). Measured on 400 SQuAD paragraphs
(304 k characters): sentencex 46 M characters/s, blingfire 4.7 M, syntok 1.2 M, pysbd 0.2 M; wrong or missing
boundaries among those on which they disagree: fewest in sentencex, all but a few of them Wikipedia's
"[citation needed]" marks, which are put right here.

Passages are packed as ORQA's preprocessing does it (official code: orqa/preprocessing): whole sentences,
greedily, without overlap, so that 3 special tokens + title + body fit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import sentencex

from realm_lab.corpus.records import Document, Passage

SPECIAL_TOKENS = 3  # [CLS] title [SEP] body [SEP]
TOO_LONG = "passage: longer than the limit, cut when encoded"
NOTHING_TO_ENCODE = "passage: no wordpieces (invisible characters only)"

CountTokens = Callable[[list[str]], list[int]]

# Wiki marks that follow a full stop without a blank: "in 2009.[citation needed][note 1] The ..."
_MARKS = re.compile(r"(?:\[[^\[\]\n]{1,60}\])+")

# The splitter cuts these inside a character and panics; a line feed has the same length in characters.
_LINE_ENDS = str.maketrans({"\u2028": "\n", "\u2029": "\n", "\x85": "\n"})


def split_sentences(text: str, language: str = "en") -> list[tuple[int, int]]:
    """Character offsets (start, end) of the sentences of `text`, in order.

    Sentences are not empty, have no outer blanks, do not overlap, and leave out nothing but blanks.
    Two of them always have a blank between them, unless the writing has none (Chinese, Japanese).
    """
    sentences: list[tuple[int, int]] = []
    for boundary in sentencex.get_sentence_boundaries(language, text.translate(_LINE_ENDS)):
        start, end = _strip(text, boundary["start_index"], boundary["end_index"])
        if start == end:
            continue
        if sentences and sentences[-1][1] == start:
            marks = _MARKS.match(text, start, end)
            if marks:
                sentences[-1] = (sentences[-1][0], marks.end())
                start, end = _strip(text, marks.end(), end)
                if start == end:
                    continue
            if sentences[-1][1] == start and not _is_ideographic(text[start]):
                sentences[-1] = (sentences[-1][0], end)
                continue
        sentences.append((start, end))
    return sentences


def pack_sentences(counts: Sequence[int], budget: int) -> Iterator[tuple[int, int]]:
    """Greedy packing: ranges [first, last) of sentences whose token counts sum to at most `budget`.

    A sentence that is longer than `budget` on its own is a range of its own.
    """
    first, used = 0, 0
    for number, count in enumerate(counts):
        if number > first and used + count > budget:
            yield first, number
            first, used = number, 0
        used += count
    if first < len(counts):
        yield first, len(counts)


def pack_passages(
    document: Document,
    sentences: Sequence[tuple[int, int]],
    count_tokens: CountTokens,
    max_tokens: int,
    counts: Counter[str] | None = None,
) -> Iterator[Passage]:
    """Cut a document into passages of at most `max_tokens` wordpieces, title and special tokens included.

    `sentences` are offsets in `document.text` as `split_sentences` gives them; `count_tokens` counts wordpieces
    without special tokens. A body is the exact slice from its first to its last sentence. A single sentence over
    the limit becomes a passage of its own, cut when it is encoded; it and what has no wordpieces at all (left out)
    are counted in `counts`.
    """
    for passage, _ in cut_document(document, sentences, count_tokens, max_tokens, counts):
        yield passage


def cut_document(
    document: Document,
    sentences: Sequence[tuple[int, int]],
    count_tokens: CountTokens,
    max_tokens: int,
    counts: Counter[str] | None = None,
) -> Iterator[tuple[Passage, Sequence[tuple[int, int]]]]:
    """`pack_passages`, each passage with the offsets of its sentences in the document's text."""
    title, *tokens = count_tokens([document.title, *(document.text[start:end] for start, end in sentences)])
    for passage, first, last in cut_counted(document, sentences, title, tokens, max_tokens, counts):
        yield passage, sentences[first:last]


def cut_counted(
    document: Document,
    sentences: Sequence[tuple[int, int]],
    title_tokens: int,
    sentence_tokens: Sequence[int],
    max_tokens: int,
    counts: Counter[str] | None = None,
) -> Iterator[tuple[Passage, int, int]]:
    """The passages of a document whose wordpieces are counted, each with the range [first, last) of its sentences."""
    budget = max_tokens - SPECIAL_TOKENS - title_tokens
    for number, (first, last) in enumerate(pack_sentences(sentence_tokens, budget)):
        tokens = sum(sentence_tokens[first:last])
        if counts is not None and (tokens == 0 or tokens > budget):
            counts[TOO_LONG if tokens else NOTHING_TO_ENCODE] += 1
        if tokens == 0:
            continue
        body = document.text[sentences[first][0] : sentences[last - 1][1]]
        yield Passage(f"{document.id}/{number}", document.title, body, document.id, document.article), first, last


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    """Offsets without the blanks at both ends."""
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    return start, max(start, start + len(piece.strip()))


def _is_ideographic(character: str) -> bool:
    """Chinese, Japanese, Hangul and the full-width forms: writings that need no blank after a full stop."""
    return "\u2e80" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7af" or character >= "\uf900"
