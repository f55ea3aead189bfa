"""Text files as a prepared corpus: documents are cut by several processes, and written here, in order.

What is held in memory does not grow with the text, but for 64-bit hashes of what must be known again: some 100
bytes for each document, article and passage. Questions are held, and the words where a vocabulary is learned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from realm_lab.corpus.answers import holds_answer, normalise_answer
from realm_lab.corpus.cutting import PARTS, Cut, Kind
from realm_lab.corpus.files_corpus import SPLITS, FilesCorpus, text_hash
from realm_lab.corpus.pool import cut_all
from realm_lab.corpus.records import Question
from realm_lab.corpus.regex_answers import Patterns
from realm_lab.corpus.store import INT, PartWriter, Passages, Sentences
from realm_lab.corpus.vocabulary import load_tokenizer, train_wordpiece
from realm_lab.corpus.writing import Prepared, write_questions
from realm_lab.params.parameters import Params

DUPLICATE_PASSAGE = "passage: same title and text as an earlier one"
DUPLICATE_SENTENCE = "sentence of a duplicate passage"
PASSAGE_WORDPIECES = "wordpieces of passages"
SECOND_EDITION = " (second edition)"

Progress = Callable[[str, int], None]  # (part, records of it that are written)


def prepare_files(params: Params, folder: Path, progress: Progress, workers: int) -> Prepared:
    """Prepare the files of `corpus.files` into `folder`."""
    files, same = params.corpus.files, params.corpus.pretrain_corpus == "same"
    prepared = Prepared(folder, _tokenizer(params))
    source = FilesCorpus(files, params.corpus, prepared.tokenizer)
    settings = source.cut_settings()
    dtype = prepared.dtype
    passages = PassageAssembly(folder / "passages", dtype, source.asked_documents())
    sentences = SentenceAssembly(folder, dtype, prepared.dropped)
    kind: Kind = "passages and sentences" if same else "passages"
    for cut in cut_all(settings, source.articles(), kind, workers):
        rows = passages.add(cut, prepared.dropped)
        sentences.add(cut, rows)
        prepared.dropped.update(cut.dropped)
        progress("passages", passages.writer.rows)
    passages.writer.close()
    for cut in () if same else cut_all(settings, source.pretrain_articles(), "sentences", workers):
        sentences.add(cut, None)
        prepared.dropped.update(cut.dropped)
        progress("sentences", sentences.writers["sentences"].rows)
    prepared.counts |= {"passages": passages.writer.rows, PASSAGE_WORDPIECES: passages.wordpieces}
    prepared.counts |= sentences.close()
    if files.knowledge_updated:
        _second_edition(params, prepared, workers, progress)
    stored, patterns = Passages(folder / "passages", dtype), Patterns()
    for split in SPLITS:
        questions = source.questions(split, passages.document_rows.keys())
        rows_of = ((q, q.answers_updated or q.answers, passages.gold_rows(q, stored, patterns)) for q in questions)
        write_questions(prepared, split, list(rows_of))
    prepared.dropped.update(source.dropped)
    return prepared


def _second_edition(params: Params, prepared: Prepared, workers: int, progress: Progress) -> None:
    """Its passages alone."""
    later = FilesCorpus(params.corpus.files, params.corpus, prepared.tokenizer, updated=True)
    passages = PassageAssembly(prepared.folder / "passages_updated", prepared.dtype, frozenset())
    dropped: Counter[str] = Counter()
    for cut in cut_all(later.cut_settings(), later.articles(), "passages", workers):
        passages.add(cut, dropped)
        dropped.update(cut.dropped)
        progress("passages_updated", passages.writer.rows)
    passages.writer.close()
    dropped.update(later.dropped)
    prepared.counts["passages_updated"] = passages.writer.rows
    prepared.dropped.update({reason + SECOND_EDITION: count for reason, count in dropped.items()})


class PassageAssembly:
    """Writes a knowledge corpus. Of passages with the same title and text the first is kept."""

    def __init__(self, folder: Path, dtype: Any, asked: Set[str]):
        self.writer = PartWriter(folder, Passages.COLUMNS, dtype)
        self.wordpieces = 0
        self.document_rows: dict[str, list[int]] = {}  # of the documents that are asked about
        self._asked = asked
        self._articles: dict[int, int] = {}  # hash -> number
        self._contents: dict[int, int] = {}  # hash of title and text -> row

    def add(self, cut: Cut, dropped: Counter[str]) -> list[tuple[int, bool]]:
        """Append passages: the row of each (a duplicate's is that of the first), and whether it is new."""
        batch = cut.passages
        next_row = self.writer.rows
        rows = []
        for title, body, document in zip(
            *(batch.column(n).to_pylist() for n in ("title", "body", "document")), strict=True
        ):
            row = self._contents.setdefault(text_hash(title, body), next_row)
            rows.append((row, row == next_row))
            next_row += row == next_row
            if document in self._asked:
                self.document_rows.setdefault(document, []).append(row)
        if next_row < self.writer.rows + len(rows):
            dropped[DUPLICATE_PASSAGE] += self.writer.rows + len(rows) - next_row
            batch = batch.filter(pa.array([is_new for _, is_new in rows], pa.bool_()))
        hashes = map(text_hash, batch.column("article").to_pylist())
        numbers = [self._articles.setdefault(found, len(self._articles)) for found in hashes]
        self.wordpieces += len(batch.column("bodies").flatten())
        self.writer.append(batch.append_column("articles", pa.array(numbers, INT)))
        return rows

    def gold_rows(self, question: Question, passages: Passages, patterns: Patterns) -> list[int]:
        """Rows of the gold document's passages that hold an answer."""
        rows = dict.fromkeys(self.document_rows.get(question.document or "", []))
        bodies = {row: passages.text.row(row)["body"] for row in rows}
        if question.answer_kind == "regex":
            return [row for row, body in bodies.items() if patterns.found_in(body, question.answers, question.id)]
        return [row for row, body in bodies.items() if holds_answer(normalise_answer(body), question.answers)]


class SentenceAssembly:
    """Writes the sentences to learn from and the held-out ones."""

    def __init__(self, folder: Path, dtype: Any, dropped: Counter[str]):
        self.writers = {part: PartWriter(folder / part, Sentences.COLUMNS, dtype) for part in PARTS}
        self._dropped = dropped
        self._with_span = 0

    def add(self, cut: Cut, passages: list[tuple[int, bool]] | None) -> None:
        """Append sentences; `passages` says what became of the passages that they come from, where there are any."""
        for part, batch in cut.sentences.items():
            if passages is not None:
                origins = batch.column("origins").to_pylist()
                is_kept = [passages[origin][1] for origin in origins]
                rows = pa.array([passages[origin][0] for origin in origins], INT)
                batch = batch.set_column(2, "origins", rows).filter(pa.array(is_kept, pa.bool_()))
                self._dropped[DUPLICATE_SENTENCE] += len(is_kept) - batch.num_rows
            self.writers[part].append(batch)
            if part == "sentences":
                self._with_span += pc.sum(pc.greater(batch.column("spans").value_lengths(), 0)).as_py() or 0

    def close(self) -> dict[str, int]:
        """Finish the files; the rows of each part."""
        for writer in self.writers.values():
            writer.close()
        rows = {part: writer.rows for part, writer in self.writers.items()}
        return rows | {"sentences with a salient span": self._with_span}


def _tokenizer(params: Params) -> Tokenizer:
    if params.tokenizer.checkpoint is not None:
        return load_tokenizer(Path(params.tokenizer.checkpoint))
    texts: Iterator[str] = (d.text for d in FilesCorpus(params.corpus.files, params.corpus, None).documents())
    return train_wordpiece(texts, params.tokenizer.vocabulary_size)
