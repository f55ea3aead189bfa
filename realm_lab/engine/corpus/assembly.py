"""Assemble a prepared corpus from its source; `store.py` describes the layout.

Memory grows with the text only by 64-bit hashes, 17 to 35 bytes for each document, article and passage, to recognise
copies and number articles. Questions stay in memory, and so do words if a vocabulary is learned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from realm_lab.engine.corpus.cutting import OF_UPDATE, PARTS, Asked, Cut
from realm_lab.engine.corpus.hash_numbers import HashNumbers
from realm_lab.engine.corpus.readers.registry import NUMBERED
from realm_lab.engine.corpus.records import SPLITS, Split, document_of, text_hash
from realm_lab.engine.corpus.sources import Source
from realm_lab.engine.corpus.store import (
    INT,
    PATCHES_FILE,
    Articles,
    PartWriter,
    Passages,
    Questions,
    Sentences,
    token_dtype,
)
from realm_lab.engine.corpus.vocabulary import encode_questions

DUPLICATE_PASSAGE = "passage: same title and text as an earlier one"
DUPLICATE_SENTENCE = "sentence of a duplicate passage"

Progress = Callable[[str, int], None]  # (part, number of its records written so far)


class Assembly:
    """Writes the records of a source into a folder, and counts the kept and the dropped ones."""

    def __init__(self, source: Source, sentence_length: int, folder: Path, progress: Progress):
        self._source, self._folder, self._progress = source, folder, progress
        self._sentence_length = sentence_length
        self._dtype = token_dtype(source.tokenizer.get_vocab_size(), source.patches is not None)
        self._patches = 0  # written so far
        self.counts: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    def write(self) -> Passages:
        """Write every part, and return the passages of the first version."""
        source = self._source
        self._write_patches(source.patches)
        parts = {part: PartWriter(self._folder / part, Sentences.COLUMNS, self._dtype) for part in PARTS}
        rows_of_documents = self._write_passages("passages", 0, parts)
        for cut in source.pretrain_cuts():
            self._write_sentences(cut, parts)
            self.dropped.update(cut.dropped)
            self._progress("sentences", parts["sentences"].rows)
        for part, writer in parts.items():
            self._close(part, writer)
        if source.versions == 2:
            self._write_passages("passages_updated", 1, {})
        passages = Passages(self._folder / "passages", self._dtype)
        for split in SPLITS:
            self._write_questions(split, list(source.asked(split, rows_of_documents, passages)))
        if (batches := source.article_batches()) is not None:
            articles = PartWriter(self._folder / "articles", Articles.COLUMNS, self._dtype)
            for batch in batches:
                articles.append(batch)
                self._progress("articles", articles.rows)
            self._close("articles", articles)
        self.dropped.update(source.dropped)
        return passages

    def _close(self, name: str, writer: PartWriter) -> None:
        writer.close()
        self.counts[name] = writer.rows

    def _write_passages(self, name: str, version: int, parts: dict[str, PartWriter]) -> dict[str, list[int]]:
        """Write the passages of one version of Z, and their sentences into `parts`, if any. Return document -> rows of
        its passages, for each document that questions name."""
        writer = PartWriter(self._folder / name, Passages.COLUMNS, self._dtype)
        rows_of_documents: dict[str, list[int]] = {document: [] for document in self._source.asked_documents()}
        articles = HashNumbers()  # hash of an article's name -> number
        contents = HashNumbers()  # hash of title and text -> row
        dropped: Counter[str] = Counter()
        for cut in self._source.cuts(version):
            batch, next_row = self._with_patches(cut), writer.rows
            rows = []  # (row, true if new) of each passage; a duplicate has the row of the first
            for title, body, document in zip(
                *(batch[n].to_pylist() for n in ("title", "body", "document")), strict=True
            ):
                is_single = not self._source.drops_duplicates
                row = next_row if is_single else contents.setdefault(text_hash(title, body or document), next_row)
                rows.append((row, row == next_row))
                next_row += row == next_row
                given = document if document in rows_of_documents else document_of(document, NUMBERED)
                if given in rows_of_documents:
                    rows_of_documents[given].append(row)
            batch = batch.filter(pa.array([is_new for _, is_new in rows], pa.bool_()))
            dropped[DUPLICATE_PASSAGE] += len(rows) - batch.num_rows
            hashes = map(text_hash, batch["article"].to_pylist())
            numbers = [articles.setdefault(found, len(articles)) for found in hashes]
            writer.append(batch.append_column("articles", pa.array(numbers, INT)))
            if version == 0:
                several = pc.sum(pc.greater(batch["sentence_starts"].value_lengths(), 1)).as_py() or 0
                self.counts["passages of two sentences or more"] += several
            self._write_sentences(cut, parts, rows)
            dropped.update(cut.dropped)
            self._progress(name, writer.rows)
        self._close(name, writer)
        self.dropped.update({reason + OF_UPDATE * version: count for reason, count in dropped.items()})
        return rows_of_documents

    def _write_patches(self, patches: np.ndarray | None) -> None:
        if patches is not None:
            with open(self._folder / PATCHES_FILE, "ab") as file:
                patches.tofile(file)
            self._patches += len(patches)

    def _with_patches(self, cut: Cut) -> pa.RecordBatch:
        """Append the patches of a cut to the file of patches. Return its passages, with the patches' ids there."""
        bodies, before = cut.passages["bodies"], self._patches
        if cut.patches is None:
            return cut.passages
        self._write_patches(cut.patches)
        ids = bodies.flatten().to_numpy()
        ids = np.where(ids >= self._source.tokenizer.get_vocab_size(), ids + before, ids).astype(np.uint32)
        moved = pa.ListArray.from_arrays(bodies.offsets, pa.array(ids))
        return cut.passages.set_column(cut.passages.schema.get_field_index("bodies"), "bodies", moved)

    def _write_sentences(self, cut: Cut, parts: dict[str, PartWriter], rows: Sequence[tuple[int, bool]] = ()) -> None:
        """Write the sentences of a cut. `rows`: (row, true if new) of each of its passages; empty if the sentences have
        no passage."""
        for part, writer in parts.items():
            batch = cut.sentences[part]
            if rows:
                found = [rows[origin] for origin in batch["origins"].to_pylist()]
                origins = pa.array([row for row, _ in found], INT)
                is_new = pa.array([is_new for _, is_new in found], pa.bool_())
                batch = batch.set_column(2, "origins", origins).filter(is_new)
                self.dropped[DUPLICATE_SENTENCE] += len(found) - batch.num_rows
            writer.append(batch)
            if part == "sentences":
                with_span = pc.sum(pc.greater(batch["spans"].value_lengths(), 0)).as_py() or 0
                self.counts["sentences with a salient span"] += with_span

    def _write_questions(self, split: Split, asked: Sequence[Asked]) -> None:
        schema = Questions.COLUMNS
        if any(question.answer_kind != "text" for question, _, _ in asked):
            schema = schema.append(Questions.KIND)
        if any(question.groups for question, _, _ in asked):
            schema = schema.append(Questions.GROUPS)
        if any(question.path for question, _, _ in asked):
            schema = schema.append(Questions.PATH)
        if any(question.relevance for question, _, _ in asked):
            schema = schema.append(Questions.JUDGED).append(Questions.RELEVANCE)
        if any(question.supporting for question, _, _ in asked):
            schema = schema.append(Questions.SUPPORTING)
        writer = PartWriter(self._folder / f"questions_{split}", schema, self._dtype)
        texts = [question.question for question, _, _ in asked]
        encoded = encode_questions(self._source.tokenizer, texts, self._sentence_length)
        rows = [
            question._asdict()
            | {"tokens": tokens, "gold": gold, "answers_updated": updated}
            | {"judged": [row for row, _ in question.relevance], "relevance": [of for _, of in question.relevance]}
            for (question, updated, gold), tokens in zip(asked, encoded, strict=True)
        ]
        writer.append(pa.RecordBatch.from_pylist(rows, schema))
        self._close(f"questions_{split}", writer)
