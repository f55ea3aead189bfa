"""The toy world as the source of a prepared corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from realm_lab.engine.corpus.cutting import PARTS, PASSAGE_COLUMNS, Asked, Cut, is_fit, passage_row, place_spans
from realm_lab.engine.corpus.records import SPLITS, Sentence, Split
from realm_lab.engine.corpus.sources import SourceRequest
from realm_lab.engine.corpus.store import NO_ROW, Articles, Passages, Sentences
from realm_lab.engine.corpus.vocabulary import WordEncoder, load_tokenizer, wordpiece_from_vocabulary
from realm_lab.engine.params.corpus import Corpus
from realm_lab.engine.params.sections import identity_values
from realm_lab.engine.worlds.settings import WorldOptions
from realm_lab.engine.worlds.world import ToyWorld
from realm_lab.errors import UserError

BATCH = 4096
Item = TypeVar("Item")


class ToySource:
    """The texts of a toy world. A held-out sentence has one span to mask, never the subject of a fact."""

    drops_duplicates = False  # passages with the same title and text are all kept

    patches: np.ndarray | None = None

    def __init__(self, request: SourceRequest, options: WorldOptions, world: ToyWorld | None = None):
        """`world`: used instead of the world of the options."""
        self.world = world or ToyWorld(options, request.seed)
        self._articles, self._length = options.articles, request.corpus.sentence_length
        self._is_same = request.corpus.pretrain_corpus == "same"
        self.versions = 2 if options.changed_fraction else 1
        self.dropped: Counter[str] = Counter()
        if request.tokenizer.checkpoint is not None:
            self.tokenizer = load_tokenizer(Path(request.tokenizer.checkpoint))
        else:
            self.tokenizer = wordpiece_from_vocabulary(self.world.vocabulary)
            if self.world.pieces_per_name > (longest := request.longest_answer):
                raise UserError(
                    f"parameter 'finetune.max_span_wordpieces' is {longest}, but names in a world of "
                    f"{options.entities:,} entities have {self.world.pieces_per_name} wordpieces; raise it"
                )
        self.encoder = WordEncoder(self.tokenizer)

    @classmethod
    def identity(cls, corpus: Corpus, options: WorldOptions, seed: int) -> dict[str, Any]:
        """The options, and the seed of the world."""
        world_seed = seed if options.world_seed is None else options.world_seed
        return {"corpus": {"toy": identity_values(options)}, "seed": world_seed}

    def asked_documents(self) -> tuple[str, ...]:
        """Return nothing, since the world knows the rows of its gold passages."""
        return ()

    def cuts(self, version: int) -> Iterator[Cut]:
        """Yield a version of Z; if X = Z, with the sentences about training entities."""
        world, first = self.world, 0
        for batch in batched(world.passages(version)):
            titles = self.encoder.encode([passage.title for passage, _ in batch])
            pieces = iter(self.parts([sentence.text for _, inside in batch for sentence in inside]))
            rows, items = [], []
            for number, ((passage, inside), title) in enumerate(zip(batch, titles, strict=True)):
                # the body is its sentences with blanks between, or the rows of a picture
                tokens = [part for _ in inside for part in next(pieces)]
                rows.append(passage_row(passage, title, tokens))
                entity, position = divmod(first + number, world.passages_per_entity)
                if self._is_same and world.split_of(entity) == "train":
                    gold = world.other_statement(entity, position)
                    items += [(sentence, number, gold if sentence.spans else NO_ROW) for sentence in inside]
            yield self._cut(rows, "sentences", items)
            first += len(batch)

    def parts(self, texts: Sequence[str]) -> list[list[list[int]]]:
        """Return the wordpieces of each text as a list of parts; here each text is one part."""
        return [[tokens] for tokens in self.encoder.encode(texts)]

    def pretrain_cuts(self) -> Iterator[Cut]:
        """Yield news, each sentence with a row that states the same fact. If X = Z, yield only held-out news, and the
        held-out facts in the wordings of Z, since training sentences have these wordings."""
        for split in SPLITS[1:] if self._is_same else SPLITS:
            for batch in batched(self.sentences(split)):
                part = "sentences" if split == "train" else f"cloze_{split}"
                yield self._cut([], part, [(sentence, NO_ROW, gold) for sentence, gold in batch])
            if self._is_same:
                for items in batched(self.world.encyclopedia_clozes(split)):
                    yield self._cut([], f"cloze_{split}", items)

    def sentences(self, split: Split) -> Iterator[tuple[Sentence, int]]:
        """The news of a split."""
        return self.world.sentences(split)

    def _cut(self, passages: list[dict[str, object]], part: str, items: Sequence[tuple[Sentence, int, int]]) -> Cut:
        """Return a Cut of passages and of sentences of one part. `items`: (sentence, origin: a row of `passages`, or of
        Z if these are empty, gold row)."""
        dropped: Counter[str] = Counter()
        held_out = part != "sentences"
        encoded = self.encoder.encode([sentence.text for sentence, _, _ in items])
        rows = []
        for (sentence, origin, gold), tokens in zip(items, encoded, strict=True):
            wanted = [span for span in sentence.spans if span.label != "subject" or not held_out]
            placed = place_spans(self.encoder, sentence.text, wanted, dropped)
            if is_fit(tokens, placed.spans, self._length, dropped, needs_span=held_out):
                row = {"tokens": tokens, "origins": origin, "gold": gold, "text": sentence.text}
                rows.append(row | placed.columns())
        batches = {name: pa.RecordBatch.from_pylist(rows if name == part else [], Sentences.COLUMNS) for name in PARTS}
        return Cut(pa.RecordBatch.from_pylist(passages, PASSAGE_COLUMNS), batches, dropped)

    def asked(self, split: Split, rows: dict[str, list[int]], passages: Passages) -> Iterator[Asked]:
        """The questions of a split."""
        return ((question, self.world.written(new), gold) for question, new, gold in self.world.questions(split))

    def article_batches(self) -> Iterator[pa.RecordBatch]:
        """Return filler articles for the reader's warm start."""
        for batch in batched(self.world.articles(self._articles)):
            sentences = [article.sentence for article in batch]
            columns = {
                "sentences": self.encoder.encode([sentence.text for sentence in sentences]),
                "spans": [place_spans(self.encoder, each.text, each.spans, self.dropped).spans for each in sentences],
                "restated": [[*chain(*parts)] for parts in self.parts([article.restated for article in batch])],
                "other": [[*chain(*parts)] for parts in self.parts([article.other for article in batch])],
            }
            yield pa.RecordBatch.from_pydict(columns, Articles.COLUMNS)


def batched(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Lists of up to BATCH items."""
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH)):
        yield batch
