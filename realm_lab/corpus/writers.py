"""Writers of a prepared corpus: passages, sentences and questions in batches, counting what is kept and dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer

from realm_lab.corpus.cutting import token_spans, unfit
from realm_lab.corpus.records import Passage, Question, Sentence, Span
from realm_lab.corpus.store import Passages, Questions, RaggedWriter, TextTableWriter, question_row, token_dtype
from realm_lab.corpus.vocabulary import encode_batch_plain
from realm_lab.params.parameters import Params

BATCH = 4096
Progress = Callable[[str, int], None]  # (part, records of it that are written)
Item = TypeVar("Item")


class TaggedPassage(NamedTuple):
    """A passage with its sentences."""

    passage: Passage
    sentences: list[Sentence]


class Writer:
    """Writes the parts of one prepared corpus and counts what is kept and dropped."""

    def __init__(self, folder: Path, params: Params, tokenizer: Tokenizer, progress: Progress):
        self.folder, self.params, self.tokenizer, self.progress = folder, params, tokenizer, progress
        self.dtype = token_dtype(tokenizer.get_vocab_size())
        self.counts: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    def passages(
        self,
        name: str,
        stream: Iterable[TaggedPassage],
        on_sentences: Callable[[TaggedPassage, int, Encoding], None] | None = None,
    ) -> None:
        """Write a knowledge corpus."""
        folder = self.folder / name
        titles, bodies = RaggedWriter(folder, "titles", self.dtype), RaggedWriter(folder, "bodies", self.dtype)
        starts = RaggedWriter(folder, "sentence_starts", np.int32)
        text = TextTableWriter(folder / "text.arrow", Passages.SCHEMA)
        numbers: dict[str, int] = {}
        row = 0
        with open(folder / "articles.bin", "wb") as articles:
            for batch in batched(stream, BATCH):
                encoded = encode_batch_plain(self.tokenizer, [item.passage.body for item in batch])
                titles.append(e.ids for e in encode_batch_plain(self.tokenizer, [i.passage.title for i in batch]))
                bodies.append(e.ids for e in encoded)
                starts.append(sentence_starts(item, encoding) for item, encoding in zip(batch, encoded, strict=True))
                text.append([item.passage._asdict() for item in batch])
                number = [numbers.setdefault(item.passage.article, len(numbers)) for item in batch]
                np.array(number, np.int32).tofile(articles)
                for item, encoding in zip(batch, encoded, strict=True):
                    if on_sentences is not None:
                        on_sentences(item, row, encoding)
                    row += 1
                self.progress(name, row)
        for part in (titles, bodies, starts, text):
            part.close()
        self.counts[name] = row

    def questions(
        self, split: str, stream: Iterable[tuple[Question, tuple[str, ...], list[int]]], *, with_kinds: bool = False
    ) -> None:
        """Write questions with their second-edition answers and gold rows; with kinds where not all are plain text."""
        name = f"questions_{split}"
        folder = self.folder / name
        tokens, gold = RaggedWriter(folder, "tokens", self.dtype), RaggedWriter(folder, "gold", np.int32)
        text = TextTableWriter(folder / "text.arrow", Questions.SCHEMA_WITH_KINDS if with_kinds else Questions.SCHEMA)
        for batch in batched(stream, BATCH):
            encoded = encode_batch_plain(self.tokenizer, [question.question for question, _, _ in batch])
            tokens.append(e.ids for e in encoded)
            gold.append(rows for _, _, rows in batch)
            text.append([question_row(question, updated) for question, updated, _ in batch])
            self.counts[name] += len(batch)
        for part in (tokens, gold, text):
            part.close()


class SentenceRow(NamedTuple):
    """A sentence as stored."""

    tokens: list[int]
    spans: list[int]  # flat wordpiece spans
    origin: int
    gold: int


class SentenceWriter:
    """Writes one set of sentences, in batches; what cannot be a query is dropped and counted.

    Sentences without a salient span are queries too where `pretrain.sentence_choice` is `any`; held-out sets, in which
    the one span is masked, have none.
    """

    def __init__(self, writer: Writer, name: str, *, needs_span: bool):
        self._writer, self._name, self._needs_span = writer, name, needs_span
        folder = writer.folder / name
        self._tokens = RaggedWriter(folder, "tokens", writer.dtype)
        self._spans = RaggedWriter(folder, "spans", np.int32)
        self._origins, self._gold = open(folder / "origins.bin", "wb"), open(folder / "gold.bin", "wb")
        self._longest = writer.params.corpus.sentence_length
        self._waiting: list[SentenceRow] = []

    def add(self, tokens: list[int], spans: list[int], origin: int, gold: int) -> None:
        """Add one sentence: wordpieces, flat wordpiece spans, the passage it is from, the passage that answers it."""
        reason = unfit(len(tokens), bool(spans), self._longest, needs_span=self._needs_span)
        if reason is not None:
            self._writer.dropped[reason] += 1
        else:
            self._waiting.append(SentenceRow(tokens, spans, origin, gold))
            if len(self._waiting) == BATCH:
                self._flush()

    def _flush(self) -> None:
        rows = self._waiting
        self._tokens.append([row.tokens for row in rows])
        self._spans.append([row.spans for row in rows])
        np.array([row.origin for row in rows], np.int32).tofile(self._origins)
        np.array([row.gold for row in rows], np.int32).tofile(self._gold)
        self._writer.counts[self._name] += len(rows)
        if not self._needs_span:
            self._writer.counts[f"{self._name} with a salient span"] += sum(bool(row.spans) for row in rows)
        self._waiting = []

    def close(self) -> None:
        """Write what waits and finish the files."""
        self._flush()
        self._tokens.close()
        self._spans.close()
        self._origins.close()
        self._gold.close()


def sentence_starts(item: TaggedPassage, encoding: Encoding) -> list[int]:
    """First wordpiece of each sentence of a passage."""
    starts = []
    for offset in sentence_offsets(item):
        token = encoding.char_to_token(offset)
        starts.append(len(encoding.ids) if token is None else token)
    return starts


def sentence_offsets(item: TaggedPassage) -> list[int]:
    """First character of each sentence of a passage."""
    offsets = []
    place = 0
    for sentence in item.sentences:
        place = item.passage.body.index(sentence.text, place)
        offsets.append(place)
        place += len(sentence.text)
    return offsets


def sentences_of(
    item: TaggedPassage, encoding: Encoding, dropped: Counter[str]
) -> Iterator[tuple[list[int], list[int]]]:
    """(wordpieces, flat wordpiece spans) of each sentence of an encoded passage."""
    starts = [*sentence_starts(item, encoding), len(encoding.ids)]
    for number, (sentence, offset) in enumerate(zip(item.sentences, sentence_offsets(item), strict=True)):
        first, end = starts[number], starts[number + 1]
        shifted = [Span(span.start + offset, span.end + offset, span.label) for span in sentence.spans]
        spans = token_spans(shifted, encoding, first, dropped)
        yield encoding.ids[first:end], spans


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of up to `size` items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
