"""Text files as a prepared corpus: shards are made by several processes, and put together here, in order.

What is held in memory does not grow with the text: some shards, and 12 bytes a slot for each passage, article and
document that must be known again (first_seen.py). Questions are held, and the words of the corpus where a vocabulary is
learned from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from realm_lab.corpus.answers import holds_answer, normalise_answer
from realm_lab.corpus.cutting import PARTS
from realm_lab.corpus.files_corpus import SPLITS, FilesCorpus
from realm_lab.corpus.first_seen import FirstSeen
from realm_lab.corpus.records import Question
from realm_lab.corpus.regex_answers import Patterns
from realm_lab.corpus.shard_pool import ShardPool
from realm_lab.corpus.shards import NO_PASSAGE, Kind, Shard, identity
from realm_lab.corpus.store import NO_ROW, Passages, RaggedWriter, TextTableWriter
from realm_lab.corpus.vocabulary import load_tokenizer, train_wordpiece
from realm_lab.corpus.writers import Progress, Writer
from realm_lab.params.parameters import Params

DUPLICATE_PASSAGE = "passage: same title and text as an earlier one"
DUPLICATE_SENTENCE = "sentence of a duplicate passage"
SECOND_EDITION = " (second edition)"


class ShardPlace(NamedTuple):
    """Where shards are kept, how many processes make them, and the counts of how they were come by."""

    folder: Path
    workers: int
    counts: Counter[str] | None


def prepare_files(params: Params, folder: Path, tagger: object, place: ShardPlace, progress: Progress) -> Writer:
    """Prepare the files of `corpus.files` into `folder`; `tagger` describes the tagger for the names of shards."""
    files, same = params.corpus.files, params.corpus.pretrain_corpus == "same"
    source = FilesCorpus(files, params.corpus, _tokenizer(params))
    writer = Writer(folder, params, source.tokenizer, progress)
    settings = source.cut_settings()
    asked = source.asked_documents()
    sentences = SentenceAssembly(writer)
    kind: Kind = "passages and sentences" if same else "passages"
    with ShardPool(settings, identity(settings, tagger), place.folder, place.workers) as pool:
        passages = PassageAssembly(writer, "passages", asked, files.drop_duplicate_passages)
        for shard in pool.shards(source.articles(), kind):
            rows_N, is_kept_N = passages.add(shard)
            if same:
                sentences.add(shard, rows_N, is_kept_N)
            writer.dropped.update(shard.dropped)
        passages.close()
        separate = None if same else source.pretrain_articles()
        if separate is not None:
            for shard in pool.shards(separate, "sentences"):
                sentences.add(shard)
                writer.dropped.update(shard.dropped)
                progress("sentences", writer.counts["sentences"])
        sentences.close()
        if files.knowledge_updated:
            _second_edition(params, writer, source.tokenizer, pool, kind)
        if place.counts is not None:
            place.counts.update(pool.counts)
    stored = Passages(folder / "passages", writer.dtype)
    patterns = Patterns()
    for split in SPLITS:
        questions = list(source.questions(split, passages.document_rows.keys()))
        with_kinds = any(question.answer_kind != "text" for question in questions)
        rows = ((q, q.answers_updated or q.answers, passages.gold_rows(q, stored, patterns)) for q in questions)
        writer.questions(split, rows, with_kinds=with_kinds)
    writer.dropped.update(source.dropped)
    return writer


def _second_edition(params: Params, writer: Writer, tokenizer: Tokenizer, pool: ShardPool, kind: Kind) -> None:
    """Its passages alone; shards that it shares with the first edition are not made again."""
    later = FilesCorpus(params.corpus.files, params.corpus, tokenizer, updated=True)
    passages = PassageAssembly(writer, "passages_updated", frozenset(), params.corpus.files.drop_duplicate_passages)
    dropped: Counter[str] = Counter()
    for shard in pool.shards(later.articles(), kind):
        passages.add(shard, dropped)
        dropped.update({reason: count for reason, count in shard.dropped.items() if reason.startswith("passage")})
    passages.close()
    dropped.update(later.dropped)
    writer.dropped.update({reason + SECOND_EDITION: count for reason, count in dropped.items()})


class PassageAssembly:
    """A knowledge corpus out of shards."""

    def __init__(self, writer: Writer, name: str, asked: Set[str], drop_duplicates: bool):
        self._writer, self._name, self._asked = writer, name, asked
        folder = writer.folder / name
        types = {"titles": writer.dtype, "bodies": writer.dtype, "starts": np.int32}
        files = {"titles": "titles", "bodies": "bodies", "starts": "sentence_starts"}
        self._ragged = {part: RaggedWriter(folder, files[part], dtype) for part, dtype in types.items()}
        self._text = TextTableWriter(folder / "text.arrow", Passages.SCHEMA)
        self._articles = open(folder / "articles.bin", "wb")
        self._article_numbers = FirstSeen()
        self._contents = FirstSeen() if drop_duplicates else None
        self._rows = 0
        self.document_rows: dict[str, list[int]] = {}  # of the documents that are asked about

    def add(self, shard: Shard, dropped: Counter[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Append a shard: the row of each of its passages (a duplicate's is that of the first), and which are new."""
        arrays, count = shard.arrays, len(shard.arrays["articles"])
        if self._contents is None:
            rows_N, is_kept_N = self._rows + np.arange(count), np.ones(count, bool)
        else:
            rows_N, is_kept_N = self._contents.add(arrays["contents"])
        batch = shard.text()
        if self._asked:
            for document, row in zip(batch.column("document").to_pylist(), rows_N.tolist(), strict=True):
                if document in self._asked:
                    self.document_rows.setdefault(document, []).append(row)
        kept = int(is_kept_N.sum())
        if kept < count:
            (self._writer.dropped if dropped is None else dropped)[DUPLICATE_PASSAGE] += count - kept
            batch = batch.filter(pa.array(is_kept_N))
        for part, ragged in self._ragged.items():
            ragged.append_arrays(*chosen_rows(arrays, part, is_kept_N))
        self._text.append_batch(batch)
        self._article_numbers.add(arrays["articles"][is_kept_N]).number_N.astype(np.int32).tofile(self._articles)
        self._rows += kept
        self._writer.progress(self._name, self._rows)
        return rows_N, is_kept_N

    def close(self) -> None:
        """Finish the files."""
        for ragged in self._ragged.values():
            ragged.close()
        self._text.close()
        self._articles.close()
        self._writer.counts[self._name] = self._rows

    def gold_rows(self, question: Question, passages: Passages, patterns: Patterns) -> list[int]:
        """Rows of the gold document's passages that hold an answer."""
        rows = dict.fromkeys(self.document_rows.get(question.document or "", []))
        bodies = {row: passages.text.row(row)["body"] for row in rows}
        if question.answer_kind == "regex":
            return [row for row, body in bodies.items() if patterns.found_in(body, question.answers, question.id)]
        return [row for row, body in bodies.items() if holds_answer(normalise_answer(body), question.answers)]


class SentenceAssembly:
    """The sentences to learn from and the held-out ones, out of shards."""

    def __init__(self, writer: Writer):
        self._writer = writer
        self._ragged = {
            f"{part}.{name}": RaggedWriter(writer.folder / part, name, dtype)
            for part in PARTS
            for name, dtype in (("tokens", writer.dtype), ("spans", np.int32))
        }
        self._columns = {
            f"{part}.{name}": open(writer.folder / part / f"{name}.bin", "wb")
            for part in PARTS
            for name in ("origins", "gold")
        }

    def add(self, shard: Shard, rows_N: np.ndarray | None = None, is_kept_N: np.ndarray | None = None) -> None:
        """Append a shard; `rows_N` and `is_kept_N` say what became of its passages, where it has any."""
        arrays, counts = shard.arrays, self._writer.counts
        for part in PARTS:
            origin_S = arrays[f"{part}.origins"]
            is_kept_S = np.ones(len(origin_S), bool)
            if rows_N is not None and is_kept_N is not None:
                is_kept_S = is_kept_N[origin_S]
                origin_S = rows_N[origin_S[is_kept_S]]
                dropped = len(is_kept_S) - len(origin_S)
                if dropped:
                    self._writer.dropped[DUPLICATE_SENTENCE] += dropped
            else:
                assert (origin_S == NO_PASSAGE).all(), "a sentence of a passage that is not there"
            for name in ("tokens", "spans"):
                values, lengths = chosen_rows(arrays, f"{part}.{name}", is_kept_S)
                self._ragged[f"{part}.{name}"].append_arrays(values, lengths)
            origin_S.astype(np.int32).tofile(self._columns[f"{part}.origins"])
            np.full(len(origin_S), NO_ROW, np.int32).tofile(self._columns[f"{part}.gold"])
            counts[part] += len(origin_S)
            if part == "sentences":
                counts["sentences with a salient span"] += int((lengths > 0).sum())

    def close(self) -> None:
        """Finish the files."""
        for ragged in self._ragged.values():
            ragged.close()
        for column in self._columns.values():
            column.close()


def chosen_rows(arrays: dict[str, np.ndarray], name: str, chosen_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(values, lengths) of some rows of a ragged array of a shard."""
    values, lengths = arrays[f"{name}.values"], arrays[f"{name}.lengths"]
    if chosen_N.all():
        return values, lengths
    return values[np.repeat(chosen_N, lengths)], lengths[chosen_N]


def _tokenizer(params: Params) -> Tokenizer:
    if params.tokenizer.checkpoint is not None:
        return load_tokenizer(Path(params.tokenizer.checkpoint))
    texts = FilesCorpus(params.corpus.files, params.corpus, None).documents()
    return train_wordpiece((document.text for document in texts), params.tokenizer.vocabulary_size)
