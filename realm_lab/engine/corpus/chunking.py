"""Split texts into sentences, and pack sentences into passages.

Sentences come from sentencex (Wikimedia; rules, no model, no download). Measured on 400 SQuAD paragraphs
(304 k characters): sentencex 46 M characters/s, blingfire 4.7 M, syntok 1.2 M, pysbd 0.2 M. If they disagree on a
boundary, sentencex is wrong least often. Two of its faults are corrected here: it takes Wikipedia's
"[citation needed]" for the start of a sentence, and the text after a list for part of the last item.

Passages are packed as ORQA's preprocessing does it (official code: orqa/preprocessing): whole sentences,
greedily, without overlap, so that 3 special tokens + title + body fit into corpus.passage_length.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import sentencex

from realm_lab.engine.corpus.records import Document, Passage

SPECIAL_TOKENS = 3  # [CLS] title [SEP] body [SEP]
TOO_LONG = "passage: one sentence longer than corpus.passage_length"
CUT_WORDPIECES = "wordpieces: beyond corpus.passage_length, never read"
NOTHING_TO_ENCODE = "passage: no wordpieces (invisible characters only)"

# Wiki marks that follow a full stop without a blank: "in 2009.[citation needed][note 1] The ..."
_MARKS = re.compile(r"(?:\[[^\[\]\n]{1,60}\])+")

# An item of a list: its first line, and the lines after it that start in lower case.
_ITEM = re.compile(r"^[ \t]*(?P<mark>[-*•·‣▪◦–—]|\(?\w{1,3}[.)]).*(?:\n[ \t]*[a-z].*)*", re.MULTILINE)

# Any character except the blanks that BERT's tokenizer deletes. A gap of only such blanks does not separate words.
_BLANK = re.compile(r"[^\x0b\x0c\x1c-\x1f\x85]")

# sentencex panics at these line ends. They are replaced by a line feed, which is one character too.
_LINE_ENDS = "\u2028", "\u2029", "\x85"
LANGUAGE = "en"  # sentencex's rules for English cut texts of all languages


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Character offsets (start, end) of the sentences of `text`, in order.

    Sentences are not empty, have no outer blanks, do not overlap, and leave out nothing but blanks.
    Neighbours always have a blank between them, unless the writing has no blanks (Chinese, Japanese).
    """
    sentences: list[tuple[int, int]] = []
    lines = text
    for line_end in _LINE_ENDS:
        lines = lines.replace(line_end, "\n")
    for first, last in _boundaries(lines):
        start, end = _strip(text, first, last)
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
        elif sentences and not _BLANK.search(text, sentences[-1][1], start):
            sentences[-1] = (sentences[-1][0], end)
            continue
        sentences.append((start, end))
    return sentences


def _boundaries(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the sentences that sentencex finds, but let an item of a list end with its last line."""
    for found in sentencex.get_sentence_boundaries(LANGUAGE, text):
        start, end = found["start_index"], found["end_index"]
        chunk = text[start:end]
        if "\n" not in chunk.strip() or not _ITEM.match(chunk.lstrip()):
            yield start, end
            continue
        position = 0
        for item in _ITEM.finditer(chunk):
            yield from _plain(text, start + position, start + item.start())
            inside = _plain(text, start + item.end("mark"), start + item.end())
            yield start + item.start(), next(inside, (0, start + item.end()))[1]
            yield from inside
            position = item.end()
        yield from _plain(text, start + position, end)


def _plain(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for found in sentencex.get_sentence_boundaries(LANGUAGE, text[start:end]):
        yield start + found["start_index"], start + found["end_index"]


def pack_sentences(counts: Sequence[int], budget: int) -> Iterator[tuple[int, int]]:
    """Pack greedily: return ranges [first, last) of sentences whose token counts sum to at most `budget`.

    A sentence longer than `budget` is a separate range.
    """
    first, used = 0, 0
    for number, count in enumerate(counts):
        if number > first and used + count > budget:
            yield first, number
            first, used = number, 0
        used += count
    if first < len(counts):
        yield first, len(counts)


def cut_passages(
    document: Document,
    sentences: Sequence[tuple[int, int]],
    title_tokens: int,
    sentence_tokens: Sequence[int],
    max_tokens: int,
    dropped: Counter[str],
) -> Iterator[tuple[Passage, int, int]]:
    """Return the passages of a document, each with the range [first, last) of its sentences.

    `title_tokens` and `sentence_tokens` count wordpieces without special tokens; a passage has at most `max_tokens`,
    title and special tokens included. A body is the exact slice from its first to its last sentence. A sentence over
    the limit is a separate passage, whose end no encoder will see; `dropped` counts it and its wordpieces
    over the limit. Text without any wordpieces is left out and counted.
    """
    budget = max_tokens - SPECIAL_TOKENS - title_tokens
    numbers = itertools.count()
    for first, last in pack_sentences(sentence_tokens, budget):
        tokens = sum(sentence_tokens[first:last])
        if tokens == 0:
            dropped[NOTHING_TO_ENCODE] += 1
            continue
        if tokens > budget:
            dropped[TOO_LONG] += 1
            dropped[CUT_WORDPIECES] += tokens - budget
        body = document.text[sentences[first][0] : sentences[last - 1][1]]
        of_document = document.id, document.article, document.form
        yield Passage(f"{document.id}/{next(numbers)}", document.title, body, *of_document), first, last


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    """Offsets without the blanks at both ends."""
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    return start, max(start, start + len(piece.strip()))


def _is_ideographic(character: str) -> bool:
    """True for Chinese, Japanese and Hangul, which need no blank between sentences, and all characters from U+F900."""
    return "\u2e80" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7af" or character >= "\uf900"
