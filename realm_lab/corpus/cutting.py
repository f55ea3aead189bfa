"""Articles into passages with tagged, tokenised sentences: what every process of prepare does with its documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

import pyarrow as pa
from tokenizers import Tokenizer

from realm_lab.core.seeding import derive_seed
from realm_lab.corpus.chunking import cut_passages, split_sentences
from realm_lab.corpus.records import Document, Passage, Span
from realm_lab.corpus.salient_spans import MakeTagger, Tagger
from realm_lab.corpus.store import NO_ROW, Passages, Sentences
from realm_lab.corpus.vocabulary import WordEncoder

HELD_OUT_SHARE = 0.02  # of the sentences of file corpora: half for development, half for test
MIN_SENTENCE_WORDPIECES = 6
MISALIGNED_SPAN = "salient span that no wordpiece matches"
PARTS = ("sentences", "cloze_dev", "cloze_test")

Article = list[Document]  # neighbouring documents of one article
Kind = Literal["passages", "passages and sentences", "sentences"]
PASSAGE_COLUMNS = pa.schema([field for field in Passages.COLUMNS if field.name != "articles"])


class CutSettings(NamedTuple):
    """What decides how documents are cut; goes to each process."""

    tokenizer: str  # its JSON
    passage_length: int
    sentence_length: int
    make_tagger: MakeTagger


class Cut(NamedTuple):
    """Some articles, cut: rows as they are stored, but for `articles` of the passages."""

    passages: pa.RecordBatch  # PASSAGE_COLUMNS; empty where only sentences were asked for
    sentences: dict[str, pa.RecordBatch]  # of each of PARTS; `origins` are rows of `passages`, or NO_ROW
    dropped: Counter[str]


class Cutter:
    """Cuts, tags and tokenises. What it makes of some articles depends on nothing but them and the settings."""

    def __init__(self, settings: CutSettings):
        self._settings = settings
        self._encoder = WordEncoder(Tokenizer.from_str(settings.tokenizer))

    @cached_property
    def _tagger(self) -> Tagger:
        return self._settings.make_tagger()

    def cut(self, articles: Sequence[Article], kind: Kind) -> Cut:
        """The passages of the articles, their sentences, or both, in order."""
        dropped: Counter[str] = Counter()
        documents = [document for article in articles for document in article]
        offsets = [split_sentences(document.text) for document in documents]
        texts = [d.text[start:end] for d, found in zip(documents, offsets, strict=True) for start, end in found]
        encoded = self._encoder.encode([document.title for document in documents] + texts)
        titles, tokens = encoded[: len(documents)], encoded[len(documents) :]
        passages: list[dict[str, object]] = []
        origins, identities = [NO_ROW] * len(texts), texts  # the same sentence is always in the same part
        if kind != "sentences":
            passages, ranges = self._passages(documents, offsets, titles, tokens, dropped)
            origins, identities = [NO_ROW] * len(texts), [""] * len(texts)
            for row, (first, last) in enumerate(ranges):
                origins[first:last] = [row] * (last - first)
                identities[first:last] = [f"{passages[row]['id']}:{number}" for number in range(last - first)]
        sentences: dict[str, list[dict[str, object]]] = {part: [] for part in PARTS}
        if kind != "passages":
            contexts = ["\n".join(document.text for document in article) for article in articles for _ in article]
            around = [context for context, found in zip(contexts, offsets, strict=True) for _ in found]
            spans = self._tagger.tag_batch(texts, around)  # the context of a sentence is its article
            for text, ids, found, origin, identity in zip(texts, tokens, spans, origins, identities, strict=True):
                if kind == "sentences" or origin != NO_ROW:
                    placed = self._part(ids, place_spans(self._encoder, text, found, dropped), identity, dropped)
                    if placed is not None:
                        part, flat = placed
                        sentences[part].append({"tokens": ids, "spans": flat, "origins": origin, "gold": NO_ROW})
        rows = {part: pa.RecordBatch.from_pylist(found, Sentences.COLUMNS) for part, found in sentences.items()}
        return Cut(pa.RecordBatch.from_pylist(passages, PASSAGE_COLUMNS), rows, dropped)

    def _passages(
        self,
        documents: Sequence[Document],
        offsets: Sequence[Sequence[tuple[int, int]]],
        titles: Sequence[list[int]],
        tokens: Sequence[list[int]],
        dropped: Counter[str],
    ) -> tuple[list[dict[str, object]], list[tuple[int, int]]]:
        """Rows of passages, and the range [first, last) of the sentences of each among all of them."""
        rows: list[dict[str, object]] = []
        ranges = []
        place = 0
        for document, found, title in zip(documents, offsets, titles, strict=True):
            counts = [*map(len, tokens[place : place + len(found)])]
            for passage, first, last in cut_passages(
                document, found, len(title), counts, self._settings.passage_length, dropped
            ):
                starts = [sum(counts[first:number]) for number in range(first, last)]
                body = [*chain.from_iterable(tokens[place + first : place + last])]
                rows.append(passage_row(passage, title, body, starts))
                ranges.append((place + first, place + last))
            place += len(found)
        return rows, ranges

    def _part(
        self, ids: list[int], spans: list[int], identity: str, dropped: Counter[str]
    ) -> tuple[str, list[int]] | None:
        """The part that a sentence belongs to, and its spans there; None where it cannot be a query."""
        place = derive_seed(0, "held-out", identity) / 2**63
        held_out = place < HELD_OUT_SHARE
        if not is_fit(ids, spans, self._settings.sentence_length, dropped, needs_span=held_out):
            return None
        if not held_out:
            return "sentences", spans
        chosen = 2 * (derive_seed(0, "held-out-span", identity) % (len(spans) // 2))
        return "cloze_dev" if place < HELD_OUT_SHARE / 2 else "cloze_test", spans[chosen : chosen + 2]


def passage_row(passage: Passage, title: list[int], body: list[int], starts: list[int]) -> dict[str, object]:
    """A passage with its wordpieces and the first wordpiece of each sentence, as it is stored."""
    return {"titles": title, "bodies": body, "sentence_starts": starts, **passage._asdict()}


def is_fit(
    tokens: Sequence[int], spans: Sequence[int], sentence_length: int, dropped: Counter[str], *, needs_span: bool
) -> bool:
    """Whether a sentence can be a query; one that cannot is counted."""
    if len(tokens) > sentence_length - 2:  # [CLS] and [SEP]
        dropped["sentence longer than corpus.sentence_length"] += 1
    elif len(tokens) < MIN_SENTENCE_WORDPIECES:
        dropped[f"sentence shorter than {MIN_SENTENCE_WORDPIECES} wordpieces"] += 1
    elif needs_span and not spans:
        dropped["sentence without a salient span"] += 1
    else:
        return True
    return False


def place_spans(encoder: WordEncoder, text: str, spans: Iterable[Span], dropped: Counter[str]) -> list[int]:
    """Wordpiece spans [start, end) of a text that was just encoded, flat; what does not align is counted."""
    if not spans:
        return []
    placed = encoder.place_spans(text, [(span.start, span.end) for span in spans])
    dropped[MISALIGNED_SPAN] += placed.count(None)
    return [place for pair in placed if pair is not None for place in pair]
