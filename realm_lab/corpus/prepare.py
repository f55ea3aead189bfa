"""The prepare stage: read, cut, tag salient spans, tokenise, store memory-mapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer

from realm_lab.core.files import atomic_directory, digest, digest_file, write_json
from realm_lab.core.seeding import derive_seed
from realm_lab.corpus.answers import holds_answer, normalise_answer
from realm_lab.corpus.files_corpus import FilesCorpus, Split
from realm_lab.corpus.records import Passage, Question, Sentence, Span
from realm_lab.corpus.store import (
    NO_ROW,
    Manifest,
    Passages,
    Questions,
    RaggedWriter,
    TextTableWriter,
    question_row,
    token_dtype,
)
from realm_lab.corpus.toy_world import SPLITS, ToyWorld
from realm_lab.corpus.vocabulary import (
    encode_batch_plain,
    load_tokenizer,
    save_tokenizer,
    tokenizer_digest,
    train_wordpiece,
    wordpiece_from_vocabulary,
)
from realm_lab.errors import UserError
from realm_lab.parameters import Params

FORMAT = 2  # of a prepared folder: raised when the same text is stored in another way, so that no old folder is taken
BATCH = 4096
HELD_OUT_SHARE = 0.02  # of the sentences of file corpora: half for development, half for test
MIN_SENTENCE_WORDPIECES = 6
Progress = Callable[[str, int], None]
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
        wanted_documents: set[str] | None = None,
        on_sentences: Callable[[TaggedPassage, int, Encoding], None] | None = None,
    ) -> dict[str, list[int]]:
        """Write a knowledge corpus; returns the rows of each wanted document."""
        folder = self.folder / name
        titles, bodies = RaggedWriter(folder, "titles", self.dtype), RaggedWriter(folder, "bodies", self.dtype)
        starts = RaggedWriter(folder, "sentence_starts", np.int32)
        text = TextTableWriter(folder / "text.arrow", Passages.SCHEMA)
        numbers: dict[str, int] = {}
        document_rows: dict[str, list[int]] = {}
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
                    if wanted_documents is not None and item.passage.document in wanted_documents:
                        document_rows.setdefault(item.passage.document, []).append(row)
                    if on_sentences is not None:
                        on_sentences(item, row, encoding)
                    row += 1
                self.progress(name, row)
        for part in (titles, bodies, starts, text):
            part.close()
        self.counts[name] = row
        return document_rows

    def questions(self, split: str, stream: Iterable[tuple[Question, tuple[str, ...], list[int]]]) -> None:
        """Write questions with their second-edition answers and gold rows."""
        name = f"questions_{split}"
        folder = self.folder / name
        tokens, gold = RaggedWriter(folder, "tokens", self.dtype), RaggedWriter(folder, "gold", np.int32)
        text = TextTableWriter(folder / "text.arrow", Questions.SCHEMA)
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
        self._longest = writer.params.corpus.sentence_length - 2  # [CLS] and [SEP]
        self._waiting: list[SentenceRow] = []

    def add(self, tokens: list[int], spans: list[int], origin: int, gold: int) -> None:
        """Add one sentence: wordpieces, flat wordpiece spans, the passage it is from, the passage that answers it."""
        dropped = self._writer.dropped
        if len(tokens) > self._longest:
            dropped["sentence longer than corpus.sentence_length"] += 1
        elif len(tokens) < MIN_SENTENCE_WORDPIECES:
            dropped[f"sentence shorter than {MIN_SENTENCE_WORDPIECES} wordpieces"] += 1
        elif not spans and self._needs_span:
            dropped["sentence without a salient span"] += 1
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


def corpus_inputs(params: Params, seed: int) -> dict[str, object]:
    """What a prepared corpus depends on; its digest names the folder. File corpora do not depend on the seed."""
    corpus = params.corpus.model_dump(mode="json")
    tokenizer = params.tokenizer.model_dump(mode="json")
    described: dict[str, object] = {"format": FORMAT, "corpus": corpus, "tokenizer": tokenizer}
    if params.tokenizer.checkpoint is not None:
        described["tokenizer_files"] = _folder_digest(Path(params.tokenizer.checkpoint))
    if params.corpus.source == "toy":
        del corpus["files"]
        if not params.corpus.toy.restate_facts:  # came later: worlds without it keep their keys
            del corpus["toy"]["restate_facts"]
        world_seed = params.corpus.toy.world_seed
        described["seed"] = seed if world_seed is None else world_seed
    else:
        del corpus["toy"]
        files = params.corpus.files.model_dump()
        paths = sorted({path for paths in files.values() if isinstance(paths, list) for path in paths})
        described["files"] = {path: digest_file(Path(path)) for path in paths}
    return described


def prepare(params: Params, folder: Path, seed: int, progress: Progress = lambda name, count: None) -> Manifest:
    """Prepare the corpus into `folder`, which appears only when everything is written."""
    inputs = corpus_inputs(params, seed)
    key = digest(inputs)
    with atomic_directory(folder) as scratch:
        if params.corpus.source == "toy":
            writer = _prepare_toy(params, scratch, int(str(inputs["seed"])), progress)
        else:
            writer = _prepare_files(params, scratch, progress)
        if not writer.counts["passages"] or not writer.counts["sentences"]:
            raise UserError(
                f"prepare: {writer.counts['passages']} passages and {writer.counts['sentences']} sentences were kept "
                f"(dropped: {dict(writer.dropped)}); check corpus.files and corpus.sentence_length"
            )
        save_tokenizer(writer.tokenizer, scratch / "tokenizer")
        tokens = tokenizer_digest(writer.tokenizer)
        bodies = digest_file(scratch / "passages" / "bodies.bin")
        manifest = Manifest(
            key=key,
            digest=digest({"key": key, "bodies": bodies, "tokenizer": tokens}),
            tokenizer_digest=tokens,
            vocabulary_size=writer.tokenizer.get_vocab_size(),
            counts=dict(sorted(writer.counts.items())),
            dropped=dict(sorted(writer.dropped.items())),
        )
        write_json(scratch / "manifest.json", manifest._asdict())
    return manifest


def _prepare_toy(params: Params, folder: Path, seed: int, progress: Progress) -> Writer:
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


def _prepare_files(params: Params, folder: Path, progress: Progress) -> Writer:
    source = FilesCorpus(params.corpus.files, params.corpus, _files_tokenizer(params))
    writer = Writer(folder, params, source.tokenizer, progress)
    in_train = SentenceWriter(writer, "sentences", needs_span=False)
    held_out = {split: SentenceWriter(writer, f"cloze_{split}", needs_span=True) for split in ("dev", "test")}
    separate = None if params.corpus.pretrain_corpus == "same" else source.pretrain_sentences()

    def add(tokens: list[int], spans: list[int], origin: int, identity: str) -> None:
        place = derive_seed(0, "held-out", identity) / 2**63
        if place >= HELD_OUT_SHARE:
            in_train.add(tokens, spans, origin, NO_ROW)
            return
        chosen = 2 * (derive_seed(0, "held-out-span", identity) % max(1, len(spans) // 2))
        held_out["dev" if place < HELD_OUT_SHARE / 2 else "test"].add(
            tokens, spans[chosen : chosen + 2], origin, NO_ROW
        )

    def collect(item: TaggedPassage, row: int, encoding: Encoding) -> None:
        for number, (tokens, spans) in enumerate(sentences_of(item, encoding, writer.dropped)):
            add(tokens, spans, row, f"{item.passage.id}:{number}")

    splits: tuple[Split, ...] = ("train", "dev", "test")
    asked = {split: list(source.questions(split)) for split in splits}
    wanted = {question.document for questions in asked.values() for question in questions if question.document}
    stream = (TaggedPassage(*pair) for pair in source.passages())
    rows = writer.passages("passages", stream, wanted, collect if separate is None else None)
    if separate is not None:
        for batch in batched(separate, BATCH):
            encoded = encode_batch_plain(writer.tokenizer, [sentence.text for sentence in batch])
            for number, (sentence, encoding) in enumerate(zip(batch, encoded, strict=True)):
                spans = token_spans(sentence.spans, encoding, 0, writer.dropped)
                add(encoding.ids, spans, NO_ROW, f"{sentence.text}:{number}")
    if params.corpus.files.knowledge_updated:
        later = FilesCorpus(params.corpus.files, params.corpus, source.tokenizer, updated=True)
        writer.passages("passages_updated", (TaggedPassage(*pair) for pair in later.passages()))
    for part in (in_train, *held_out.values()):
        part.close()
    stored = Passages(folder / "passages", writer.dtype)
    for split, questions in asked.items():
        writer.questions(split, ((q, q.answers, gold_rows(q, rows, stored)) for q in questions))
    writer.dropped.update(source.dropped)
    return writer


def _files_tokenizer(params: Params) -> Tokenizer:
    if params.tokenizer.checkpoint is not None:
        return load_tokenizer(Path(params.tokenizer.checkpoint))
    texts = FilesCorpus(params.corpus.files, params.corpus, None).documents()
    return train_wordpiece((document.text for document in texts), params.tokenizer.vocabulary_size)


def gold_rows(question: Question, document_rows: dict[str, list[int]], passages: Passages) -> list[int]:
    """Rows of the gold document's passages that hold an answer."""
    rows = document_rows.get(question.document or "", [])
    return [row for row in rows if holds_answer(normalise_answer(passages.text.row(row)["body"]), question.answers)]


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


def token_spans(spans: Iterable[Span], encoding: Encoding, first: int, dropped: Counter[str]) -> list[int]:
    """Wordpiece spans [start, end), relative to wordpiece `first`, flat; what does not align is counted."""
    flat: list[int] = []
    for span in spans:
        start, last = encoding.char_to_token(span.start), encoding.char_to_token(span.end - 1)
        if start is None or last is None:
            dropped["salient span that no wordpiece matches"] += 1
        else:
            flat += [start - first, last + 1 - first]
    return flat


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of up to `size` items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _folder_digest(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; set tokenizer.checkpoint to a Hugging Face folder")
    names = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
    return {name: digest_file(folder / name) for name in names if (folder / name).exists()}
