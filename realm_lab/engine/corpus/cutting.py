"""Cut articles into passages with tagged, tokenised sentences: the work of each process that prepares text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from realm_lab.engine.core.seeding import derive_seed
from realm_lab.engine.corpus.chunking import SPECIAL_TOKENS, cut_passages, split_sentences
from realm_lab.engine.corpus.pictures import PICTURE_SIZE, SIDE, cut_patches, read_picture
from realm_lab.engine.corpus.records import Document, Passage, Question, Span
from realm_lab.engine.corpus.salient_spans import MakeTagger, Tagger
from realm_lab.engine.corpus.store import LABEL_SEPARATOR, NO_ROW, Passages, Sentences
from realm_lab.engine.corpus.vocabulary import WordEncoder, blank_kind, encode_batch_plain
from realm_lab.errors import UserError

HELD_OUT_SHARE = 0.02  # of the sentences of a TextSource: half for development, half for test
MIN_SENTENCE_WORDPIECES = 6
MISALIGNED_SPAN = "salient span that no wordpiece matches"
CROSSING_SPAN = "salient span across the end of a sentence"
PARTS = ("sentences", "cloze_dev", "cloze_test")
OF_UPDATE = " (second version)"  # end of the reasons for dropping in a corpus update

Article = list[Document]  # neighbouring documents of one article
Asked = tuple[Question, Sequence[str], list[int]]  # a question, its answers after the corpus update, its gold rows
Kind = Literal["passages", "passages and sentences", "sentences"]
PASSAGE_COLUMNS = pa.schema([field for field in Passages.COLUMNS if field.name != "articles"])


class Cut(NamedTuple):
    """Passages and sentences cut from some articles: the columns of the store, without `articles` of the passages."""

    passages: pa.RecordBatch  # PASSAGE_COLUMNS; empty if only sentences were asked for
    sentences: dict[str, pa.RecordBatch]  # by part (PARTS); `origins`: rows of `passages` (of Z if empty), or NO_ROW
    dropped: Counter[str]
    patches: np.ndarray | None = None  # of the pictures; their ids here start at the vocabulary's size


class PlacedSpans(NamedTuple):
    """The salient spans of a tokenised sentence."""

    spans: list[int]  # wordpieces [start, end), flat
    labels: list[str]  # of each span

    def columns(self) -> dict[str, object]:
        """Return the columns `spans` and `labels` of store.Sentences."""
        labels = [label.replace(LABEL_SEPARATOR, " ") for label in self.labels]
        return {"spans": self.spans, "labels": LABEL_SEPARATOR.join(labels)}


class _RawSentence(NamedTuple):
    """A cut sentence that is not stored yet."""

    text: str
    tokens: list[int]
    origin: int  # row of its passage, or NO_ROW
    identity: str  # decides whether it is held out
    context: str  # the text of its article
    given: tuple[Span, ...] | None  # its salient spans, if the document names them


class Cutter:
    """Cuts articles into passages and sentences, tokenises both and tags the sentences. The result depends only on the
    articles and the arguments. `tokenizer`: a tokenizer as JSON."""

    def __init__(self, tokenizer: str, passage_length: int, sentence_length: int, make_tagger: MakeTagger):
        self._tokenizer = Tokenizer.from_str(tokenizer)
        self._encoder = WordEncoder(self._tokenizer)
        self._passage_length, self._sentence_length, self._make_tagger = passage_length, sentence_length, make_tagger

    @cached_property
    def _tagger(self) -> Tagger:
        return self._make_tagger()

    def cut(self, articles: Sequence[Article], kind: Kind) -> Cut:
        """Cut articles into passages, sentences, or both, in order."""
        dropped: Counter[str] = Counter()
        documents = [document for article in articles for document in article]
        joined = ("\n".join(document.text for document in article) for article in articles)
        contexts = [context for context, article in zip(joined, articles, strict=True) for _ in article]
        offsets = [split_sentences(document.text) for document in documents]
        texts = [d.text[start:end] for d, found in zip(documents, offsets, strict=True) for start, end in found]
        encoded = self._encoder.encode([document.title for document in documents] + texts)
        titles, pairs = encoded[: len(documents)], zip(texts, encoded[len(documents) :], strict=True)
        passages: list[dict[str, object]] = []
        raw_sentences: list[_RawSentence] = []
        patches: list[np.ndarray] = []
        for document, context, found, title in zip(documents, contexts, offsets, titles, strict=True):
            own = list(islice(pairs, len(found)))
            given = [_inside(document.spans, *bounds) for bounds in found]
            dropped[CROSSING_SPAN] += len(document.spans or ()) - sum(len(spans or ()) for spans in given)
            if document.picture is not None:
                passages.append(self._picture(document, title, patches))
                continue
            if kind == "sentences":  # the identity is the text, so that equal sentences are in the same part
                raw_sentences += [
                    _RawSentence(text, ids, NO_ROW, text, context, spans)
                    for (text, ids), spans in zip(own, given, strict=True)
                ]
                continue
            lengths = [len(ids) for _, ids in own]
            cuts = cut_passages(document, found, len(title), lengths, self._passage_length, dropped)
            for passage, first, last in cuts:
                for number, (text, ids) in enumerate(own[first:last]):
                    raw_sentences.append(
                        _RawSentence(text, ids, len(passages), f"{passage.id}:{number}", context, given[first + number])
                    )
                passages.append(passage_row(passage, title, [ids for _, ids in own[first:last]]))
        sentences: dict[str, list[dict[str, object]]] = {part: [] for part in PARTS}
        if kind != "passages":
            for each, tagged in zip(raw_sentences, self._spans(raw_sentences), strict=True):
                placed = place_spans(self._encoder, each.text, tagged, dropped)
                part = self._part(each.tokens, placed, each.identity, dropped)
                if part is not None:
                    row = {"tokens": each.tokens, "origins": each.origin, "gold": NO_ROW, "text": each.text} | part[
                        1
                    ].columns()
                    sentences[part[0]].append(row)
        rows = {part: pa.RecordBatch.from_pylist(found, Sentences.COLUMNS) for part, found in sentences.items()}
        cut = pa.RecordBatch.from_pylist(passages, PASSAGE_COLUMNS)
        return Cut(cut, rows, dropped, np.concatenate(patches) if patches else None)

    def _spans(self, raw_sentences: Sequence[_RawSentence]) -> list[tuple[Span, ...]]:
        """The salient spans of sentences: those that their documents list, else those that the tagger finds."""
        untagged = [each for each in raw_sentences if each.given is None]
        found = iter(self._tagger.tag_batch([each.text for each in untagged], [each.context for each in untagged]))
        return [next(found) if each.given is None else each.given for each in raw_sentences]

    def _picture(self, document: Document, title: list[int], patches: list[np.ndarray]) -> dict[str, object]:
        """Return the passage of a picture, and append its patches to `patches`."""
        assert document.picture is not None
        columns = PICTURE_SIZE // SIDE
        if len(title) + columns**2 + SPECIAL_TOKENS > self._passage_length:
            raise UserError(
                f"{document.picture}: its {columns**2} patches with a title of {len(title)} wordpieces are more than a "
                "passage holds; raise corpus.passage_length"
            )
        first = self._tokenizer.get_vocab_size() + len(patches) * columns**2
        patches.append(cut_patches(read_picture(Path(document.picture), PICTURE_SIZE)))
        rows = [[*range(start, start + columns)] for start in range(first, first + columns**2, columns)]
        of_document = document.id, document.article, document.form
        return passage_row(Passage(f"{document.id}/0", document.title, "", *of_document), title, rows)

    def _part(
        self, ids: list[int], placed: PlacedSpans, identity: str, dropped: Counter[str]
    ) -> tuple[str, PlacedSpans] | None:
        """Return a sentence's part and spans, one span if it is held out; None if the sentence cannot be a query."""
        share = derive_seed(0, "held-out", identity) / 2**63
        held_out = share < HELD_OUT_SHARE
        if not is_fit(ids, placed.spans, self._sentence_length, dropped, needs_span=held_out):
            return None
        if not held_out:
            return "sentences", placed
        chosen = derive_seed(0, "held-out-span", identity) % len(placed.labels)
        only = PlacedSpans(placed.spans[2 * chosen : 2 * chosen + 2], placed.labels[chosen : chosen + 1])
        return "cloze_dev" if share < HELD_OUT_SHARE / 2 else "cloze_test", only


def _inside(spans: Sequence[Span] | None, start: int, end: int) -> tuple[Span, ...] | None:
    """The spans that lie within a sentence, as offsets in it."""
    if spans is None:
        return None
    return tuple(Span(s - start, e - start, label) for s, e, label in spans if start <= s and e <= end)


def passage_row(passage: Passage, title: list[int], sentences: Sequence[list[int]]) -> dict[str, object]:
    """A passage with its wordpieces and the first wordpiece of each sentence, as it is stored."""
    starts = [*accumulate(map(len, sentences[:-1]), initial=0)]
    return {
        "titles": title,
        "bodies": [*chain.from_iterable(sentences)],
        "sentence_starts": starts,
        **passage._asdict(),
    }


def is_fit(
    tokens: Sequence[int], spans: Sequence[int], sentence_length: int, dropped: Counter[str], *, needs_span: bool
) -> bool:
    """True if a sentence can be a query; otherwise `dropped` counts the reason."""
    if len(tokens) > sentence_length - 2:  # [CLS] and [SEP]
        dropped["sentence longer than corpus.sentence_length"] += 1
    elif len(tokens) < MIN_SENTENCE_WORDPIECES:
        dropped[f"sentence shorter than {MIN_SENTENCE_WORDPIECES} wordpieces"] += 1
    elif needs_span and not spans:
        dropped["sentence without a salient span"] += 1
    else:
        return True
    return False


def encode_bodies(tokenizer: Tokenizer, bodies: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Return the ids and the character offsets of the wordpieces of passages. A tokenizer that marks blanks gets each
    sentence separately, as in cutting: inside a body, a sentence without a blank before it would get other ids."""
    if blank_kind(tokenizer) is None:
        return [(encoding.ids, encoding.offsets) for encoding in encode_batch_plain(tokenizer, bodies)]
    found = []
    for body in bodies:
        bounds = split_sentences(body)
        encodings = encode_batch_plain(tokenizer, [body[start:end] for start, end in bounds])
        pairs = [(start, encoding) for (start, _), encoding in zip(bounds, encodings, strict=True)]
        ids = [number for _, encoding in pairs for number in encoding.ids]
        found.append((ids, [(first + a, first + b) for first, encoding in pairs for a, b in encoding.offsets]))
    return found


def place_spans(encoder: WordEncoder, text: str, spans: Sequence[Span], dropped: Counter[str]) -> PlacedSpans:
    """Return the spans of a text as spans of wordpieces; `dropped` counts those that match no wordpiece. The text was
    in the last call of `encoder.encode`."""
    if not spans:
        return PlacedSpans([], [])
    placed = encoder.place_spans(text, [(span.start, span.end) for span in spans])
    dropped[MISALIGNED_SPAN] += placed.count(None)
    kept = [(pair, span.label) for pair, span in zip(placed, spans, strict=True) if pair is not None]
    return PlacedSpans([position for pair, _ in kept for position in pair], [label for _, label in kept])
