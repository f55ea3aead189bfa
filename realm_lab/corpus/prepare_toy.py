"""The toy world as a prepared corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pyarrow as pa

from realm_lab.corpus.cutting import is_fit, passage_row, place_spans
from realm_lab.corpus.prepare_files import Progress
from realm_lab.corpus.records import Sentence
from realm_lab.corpus.store import NO_ROW, Articles, PartWriter, Passages, Sentences
from realm_lab.corpus.toy_world import SPLITS, ToyWorld
from realm_lab.corpus.vocabulary import WordEncoder, load_tokenizer, wordpiece_from_vocabulary
from realm_lab.corpus.writing import BATCH, Prepared, batched, write_questions
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params


def prepare_toy(params: Params, folder: Path, seed: int, progress: Progress) -> Prepared:
    """Write the world of this seed into `folder`."""
    toy = params.corpus.toy
    world = ToyWorld(toy.entities, toy.fillers_per_entity, toy.changed_fraction, seed, toy.restate_facts)
    if params.tokenizer.checkpoint is not None:
        tokenizer = load_tokenizer(Path(params.tokenizer.checkpoint))
    else:
        tokenizer = wordpiece_from_vocabulary(world.vocabulary)
        if world.pieces_per_name > params.finetune.max_span_wordpieces:
            raise UserError(
                f"parameter 'finetune.max_span_wordpieces' is {params.finetune.max_span_wordpieces}, but names in a "
                f"world of {toy.entities:,} entities have {world.pieces_per_name} wordpieces; raise it"
            )
    prepared = Prepared(folder, tokenizer)
    encoder = WordEncoder(tokenizer)
    same = params.corpus.pretrain_corpus == "same"
    length = params.corpus.sentence_length
    in_train = SentencePart(prepared, encoder, "sentences", length)
    _write_passages(prepared, encoder, world, 0, in_train if same else None, progress)
    if toy.changed_fraction:
        _write_passages(prepared, encoder, world, 1, None, progress)
    for split in SPLITS:
        part = in_train if split == "train" else SentencePart(prepared, encoder, f"cloze_{split}", length)
        if split != "train" or not same:
            for batch in batched(world.sentences(split), BATCH):
                part.add((sentence, NO_ROW, gold) for sentence, gold in batch)
        part.close()
        questions = ((question, (new,), rows) for question, new, rows in world.questions(split))
        write_questions(prepared, split, list(questions))
    _write_articles(prepared, encoder, world, toy.articles, progress)
    return prepared


class SentencePart:
    """Writes one set of sentences. Held-out ones ask for the value of the fact alone, and have nothing else to mask."""

    def __init__(self, prepared: Prepared, encoder: WordEncoder, name: str, sentence_length: int):
        self._prepared, self._encoder, self._name, self._length = prepared, encoder, name, sentence_length
        self._writer = PartWriter(prepared.folder / name, Sentences.COLUMNS, prepared.dtype)
        self._held_out = name != "sentences"
        self._with_span = 0

    def add(self, sentences: Iterable[tuple[Sentence, int, int]]) -> None:
        """Append (sentence, row of the passage it is from, row of the passage that answers it)."""
        sentences, dropped = list(sentences), self._prepared.dropped
        encoded = self._encoder.encode([sentence.text for sentence, _, _ in sentences])
        rows = []
        for (sentence, origin, gold), tokens in zip(sentences, encoded, strict=True):
            wanted = [span for span in sentence.spans if span.label == "object" or not self._held_out]
            spans = place_spans(self._encoder, sentence.text, wanted, dropped)
            if is_fit(tokens, spans, self._length, dropped, needs_span=self._held_out):
                rows.append({"tokens": tokens, "spans": spans, "origins": origin, "gold": gold})
                self._with_span += bool(spans)
        self._writer.append(pa.RecordBatch.from_pylist(rows, Sentences.COLUMNS))

    def close(self) -> None:
        """Finish the files and count."""
        self._writer.close()
        self._prepared.counts[self._name] = self._writer.rows
        if not self._held_out:
            self._prepared.counts["sentences with a salient span"] = self._with_span


def _write_passages(
    prepared: Prepared,
    encoder: WordEncoder,
    world: ToyWorld,
    edition: int,
    sentences: SentencePart | None,
    progress: Progress,
) -> None:
    """An edition of Z; the sentences of training entities also go to `sentences` (X = Z)."""
    name = "passages_updated" if edition else "passages"
    writer = PartWriter(prepared.folder / name, Passages.COLUMNS, prepared.dtype)
    articles: dict[str, int] = {}
    for batch in batched(world.passages(edition), BATCH):
        titles = encoder.encode([passage.title for passage, _ in batch])
        pieces = iter(encoder.encode([sentence.text for _, inside in batch for sentence in inside]))
        rows = []
        for (passage, inside), title in zip(batch, titles, strict=True):
            tokens = [next(pieces) for _ in inside]  # the body is its sentences with blanks between
            starts = [sum(map(len, tokens[:number])) for number in range(len(tokens))]
            row = passage_row(passage, title, [*chain.from_iterable(tokens)], starts)
            rows.append(row | {"articles": articles.setdefault(passage.article, len(articles))})
        if sentences is not None:
            numbered = [(number, inside) for number, (_, inside) in enumerate(batch, writer.rows)]
            in_train = [pair for pair in numbered if world.split_of(pair[0] // world.passages_per_entity) == "train"]
            sentences.add((sentence, row, NO_ROW) for row, inside in in_train for sentence in inside)
        writer.append(pa.RecordBatch.from_pylist(rows, Passages.COLUMNS))
        progress(name, writer.rows)
    writer.close()
    prepared.counts[name] = writer.rows


def _write_articles(prepared: Prepared, encoder: WordEncoder, world: ToyWorld, count: int, progress: Progress) -> None:
    writer = PartWriter(prepared.folder / "articles", Articles.COLUMNS, prepared.dtype)
    dropped: Counter[str] = prepared.dropped
    for batch in batched(world.articles(count), BATCH):
        texts = [article.sentence.text for article in batch]
        columns = {
            "sentences": encoder.encode(texts),
            "spans": [
                place_spans(encoder, article.sentence.text, article.sentence.spans, dropped) for article in batch
            ],
            "restated": encoder.encode([article.restated for article in batch]),
            "other": encoder.encode([article.other for article in batch]),
        }
        writer.append(pa.RecordBatch.from_pydict(columns, Articles.COLUMNS))
        progress("articles", writer.rows)
    writer.close()
    prepared.counts["articles"] = writer.rows
