"""Articles into passages with tagged, tokenised sentences: what every worker of prepare does with its documents."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from tokenizers import Encoding, Tokenizer

from realm_lab.core.seeding import derive_seed
from realm_lab.corpus.chunking import cut_counted, split_sentences
from realm_lab.corpus.records import Document, Passage, Span
from realm_lab.corpus.salient_spans import MakeTagger, Tagger
from realm_lab.corpus.vocabulary import WordEncoder, encode_batch_plain

HELD_OUT_SHARE = 0.02  # of the sentences of file corpora: half for development, half for test
MIN_SENTENCE_WORDPIECES = 6
TOGETHER_CHARACTERS = 200_000  # of text encoded in one call: what the library returns takes 80 bytes a wordpiece
MISALIGNED_SPAN = "salient span that no wordpiece matches"
PARTS = ("sentences", "cloze_dev", "cloze_test")

Article = list[Document]  # neighbouring documents of one article
_BLANK = re.compile(r"[ \t\n\r]")  # what BERT takes for a blank, beyond doubt


class CutSettings(NamedTuple):
    """What decides how documents are cut; goes to each process."""

    tokenizer: str  # its JSON
    passage_length: int
    sentence_length: int
    make_tagger: MakeTagger


class Cut(NamedTuple):
    """A passage in wordpieces: its body is the tokens of its sentences, one after the other."""

    passage: Passage
    title: list[int]
    sentences: list[str]
    tokens: list[list[int]]
    spans: list[tuple[Span, ...]]  # of each sentence; none where they were not asked for

    @property
    def starts(self) -> list[int]:
        """First wordpiece of each sentence."""
        starts, place = [], 0
        for tokens in self.tokens:
            starts.append(place)
            place += len(tokens)
        return starts


class SentenceRow(NamedTuple):
    """A sentence to be stored: in which part, its wordpieces and flat wordpiece spans."""

    part: str
    tokens: list[int]
    spans: list[int]


class Cutter:
    """Cuts, tags and tokenises. What it makes of an article depends on nothing but the article and the settings."""

    def __init__(self, settings: CutSettings):
        self._settings = settings
        self.tokenizer = Tokenizer.from_str(settings.tokenizer)
        self._encoder = WordEncoder(self.tokenizer)

    @cached_property
    def _tagger(self) -> Tagger:
        return self._settings.make_tagger()

    def passages(self, articles: Iterable[Article], dropped: Counter[str], *, tagged: bool) -> Iterator[Cut]:
        """The passages of the articles, in order; salient spans only where they are asked for with `tagged`."""
        for group in _together(articles):
            documents = [document for article in group for document in article]
            offsets = [split_sentences(document.text) for document in documents]
            texts = [d.text[start:end] for d, found in zip(documents, offsets, strict=True) for start, end in found]
            tokens = self._encoder.encode([document.title for document in documents] + texts)
            titles, tokens = tokens[: len(documents)], tokens[len(documents) :]
            spans: list[tuple[Span, ...]] = [()] * len(texts)
            if tagged:
                spans = self._spans(group, offsets, texts)
            place = 0
            for document, found, title in zip(documents, offsets, titles, strict=True):
                own = slice(place, place + len(found))
                place += len(found)
                cut = cut_counted(
                    document, found, len(title), [*map(len, tokens[own])], self._settings.passage_length, dropped
                )
                for passage, first, last in cut:
                    inside = slice(own.start + first, own.start + last)
                    pieces = tokens[inside]
                    if not _are_apart(document.text, found[first:last]):
                        pieces = self._pieces(passage.body, found[first:last])
                    yield Cut(passage, title, texts[inside], pieces, spans[inside])

    def sentences(self, articles: Iterable[Article], dropped: Counter[str]) -> Iterator[SentenceRow]:
        """The sentences of a corpus that is not searched; the same sentence is always in the same part."""
        for group in _together(articles):
            offsets = [split_sentences(document.text) for article in group for document in article]
            documents = [document for article in group for document in article]
            texts = [d.text[start:end] for d, found in zip(documents, offsets, strict=True) for start, end in found]
            tokens = self._encoder.encode(texts)
            spans = self._spans(group, offsets, texts)
            for row in self._rows(texts, tokens, spans, texts, dropped):
                if row is not None:
                    yield row

    def sentences_of(self, cuts: Sequence[Cut], dropped: Counter[str]) -> Iterator[tuple[int, SentenceRow]]:
        """The sentences of passages that are also text to learn from, each with the place of its passage in `cuts`."""
        places = [place for place, cut in enumerate(cuts) for _ in cut.sentences]
        identities = [f"{cut.passage.id}:{number}" for cut in cuts for number in range(len(cut.sentences))]
        texts = [text for cut in cuts for text in cut.sentences]
        tokens = [pieces for cut in cuts for pieces in cut.tokens]
        spans = [found for cut in cuts for found in cut.spans]
        rows = self._rows(texts, tokens, spans, identities, dropped)
        yield from ((place, row) for place, row in zip(places, rows, strict=True) if row is not None)

    def _rows(
        self,
        texts: Sequence[str],
        tokens: Sequence[list[int]],
        spans: Sequence[tuple[Span, ...]],
        identities: Sequence[str],
        dropped: Counter[str],
    ) -> Iterator[SentenceRow | None]:
        known = {
            number: self._encoder.encode_spans(texts[number], [span[:2] for span in found])
            for number, found in enumerate(spans)
            if found
        }
        rest = [number for number, row in known.items() if row is None]
        encoded = dict(zip(rest, encode_batch_plain(self.tokenizer, [texts[number] for number in rest]), strict=True))
        for number, (found, identity) in enumerate(zip(spans, identities, strict=True)):
            row = known.get(number)
            if row is None and number in encoded:
                row = encoded[number].ids, token_spans(found, encoded[number], 0, dropped)
            yield self._row(*(row or (tokens[number], [])), identity, dropped)

    def _row(self, tokens: list[int], spans: list[int], identity: str, dropped: Counter[str]) -> SentenceRow | None:
        place = derive_seed(0, "held-out", identity) / 2**63
        held_out = place < HELD_OUT_SHARE
        reason = unfit(len(tokens), bool(spans), self._settings.sentence_length, needs_span=held_out)
        if reason is not None:
            dropped[reason] += 1
            return None
        if not held_out:
            return SentenceRow("sentences", tokens, spans)
        chosen = 2 * (derive_seed(0, "held-out-span", identity) % (len(spans) // 2))
        part = "cloze_dev" if place < HELD_OUT_SHARE / 2 else "cloze_test"
        return SentenceRow(part, tokens, spans[chosen : chosen + 2])

    def _spans(
        self, group: Sequence[Article], offsets: Sequence[Sequence[tuple[int, int]]], texts: Sequence[str]
    ) -> list[tuple[Span, ...]]:
        """The spans of each sentence, whose context is its article."""
        counts = iter(map(len, offsets))
        contexts: list[str] = []
        for article in group:
            context = "\n".join(document.text for document in article)
            contexts += [context] * sum(next(counts) for _ in article)
        return list(self._tagger.tag_batch(texts, contexts))

    def _pieces(self, body: str, offsets: Sequence[tuple[int, int]]) -> list[list[int]]:
        """The wordpieces of a body, cut at its sentences: for bodies in which a word may reach over that cut."""
        [encoding] = encode_batch_plain(self.tokenizer, [body])
        first = offsets[0][0]
        starts = [start for start, _ in encoding.offsets]
        bounds = [sum(place < offset - first for place in starts) for offset, _ in offsets]
        return [encoding.ids[a:b] for a, b in zip(bounds, [*bounds[1:], len(starts)], strict=True)]


def unfit(tokens: int, has_span: bool, sentence_length: int, *, needs_span: bool) -> str | None:
    """Why a sentence cannot be a query; None if it can."""
    if tokens > sentence_length - 2:  # [CLS] and [SEP]
        return "sentence longer than corpus.sentence_length"
    if tokens < MIN_SENTENCE_WORDPIECES:
        return f"sentence shorter than {MIN_SENTENCE_WORDPIECES} wordpieces"
    return "sentence without a salient span" if needs_span and not has_span else None


def token_spans(spans: Iterable[Span], encoding: Encoding, first: int, dropped: Counter[str]) -> list[int]:
    """Wordpiece spans [start, end), relative to wordpiece `first`, flat; what does not align is counted."""
    flat: list[int] = []
    for span in spans:
        start, last = encoding.char_to_token(span.start), encoding.char_to_token(span.end - 1)
        if start is None or last is None:
            dropped[MISALIGNED_SPAN] += 1
        else:
            flat += [start - first, last + 1 - first]
    return flat


class RaggedBuffer:
    """Lists of integers, one after the other, in 4 bytes each."""

    def __init__(self) -> None:
        self.values, self.lengths = array("i"), array("i")

    def add(self, row: Sequence[int]) -> None:
        """Append one list."""
        self.values.extend(row)
        self.lengths.append(len(row))


def _together(articles: Iterable[Article]) -> Iterator[list[Article]]:
    """Articles of about TOGETHER_CHARACTERS."""
    group: list[Article] = []
    size = 0
    for article in articles:
        group.append(article)
        size += sum(len(document.text) for document in article)
        if size >= TOGETHER_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _are_apart(text: str, offsets: Sequence[tuple[int, int]]) -> bool:
    """Whether there is a blank between all sentences, so that each is tokenised as it is when alone."""
    return all(_BLANK.search(text, end, start) for (_, end), (start, _) in pairwise(offsets))
