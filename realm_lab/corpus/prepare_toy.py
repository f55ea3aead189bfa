"""The toy world as a prepared corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Encoding

from realm_lab.corpus.cutting import token_spans
from realm_lab.corpus.store import NO_ROW, RaggedWriter
from realm_lab.corpus.toy_world import SPLITS, ToyWorld
from realm_lab.corpus.vocabulary import encode_batch_plain, load_tokenizer, wordpiece_from_vocabulary
from realm_lab.corpus.writers import BATCH, Progress, SentenceWriter, TaggedPassage, Writer, batched, sentences_of
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params


def prepare_toy(params: Params, folder: Path, seed: int, progress: Progress) -> Writer:
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
    writer = Writer(folder, params, tokenizer, progress)
    in_train = SentenceWriter(writer, "sentences", needs_span=False)
    same = params.corpus.pretrain_corpus == "same"

    def collect(item: TaggedPassage, row: int, encoding: Encoding) -> None:
        if same and world.split_of(row // world.passages_per_entity) == "train":
            for tokens, spans in sentences_of(item, encoding, writer.dropped):
                in_train.add(tokens, spans, row, NO_ROW)

    writer.passages("passages", (TaggedPassage(*pair) for pair in world.passages()), on_sentences=collect)
    if toy.changed_fraction:
        writer.passages("passages_updated", (TaggedPassage(*pair) for pair in world.passages(edition=1)))
    for split in SPLITS:
        target = in_train if split == "train" else SentenceWriter(writer, f"cloze_{split}", needs_span=True)
        if split != "train" or not same:
            kept = None if split == "train" else "object"  # held-out clozes ask for the value of the fact
            for batch in batched(world.sentences(split), BATCH):
                encoded = encode_batch_plain(tokenizer, [sentence.text for sentence, _ in batch])
                for (sentence, row), encoding in zip(batch, encoded, strict=True):
                    spans = [span for span in sentence.spans if kept is None or span.label == kept]
                    target.add(encoding.ids, token_spans(spans, encoding, 0, writer.dropped), NO_ROW, row)
        target.close()
        questions = ((question, (new,), rows) for question, new, rows in world.questions(split))
        writer.questions(split, questions)
    _write_articles(writer, world, toy.articles)
    return writer


def _write_articles(writer: Writer, world: ToyWorld, count: int) -> None:
    folder = writer.folder / "articles"
    names = ("sentences", "restated", "other")
    parts = {name: RaggedWriter(folder, name, writer.dtype) for name in names}
    spans = RaggedWriter(folder, "spans", np.int32)
    for batch in batched(world.articles(count), BATCH):
        encoded = encode_batch_plain(writer.tokenizer, [article.sentence.text for article in batch])
        parts["sentences"].append(e.ids for e in encoded)
        spans.append(
            token_spans(article.sentence.spans, encoding, 0, writer.dropped)
            for article, encoding in zip(batch, encoded, strict=True)
        )
        parts["restated"].append(e.ids for e in encode_batch_plain(writer.tokenizer, [a.restated for a in batch]))
        parts["other"].append(e.ids for e in encode_batch_plain(writer.tokenizer, [a.other for a in batch]))
        writer.counts["articles"] += len(batch)
        writer.progress("articles", writer.counts["articles"])
    for part in (*parts.values(), spans):
        part.close()
