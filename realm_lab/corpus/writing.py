"""What both sources of a prepared corpus, toy world and files, write in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from tokenizers import Tokenizer

from realm_lab.corpus.records import Question
from realm_lab.corpus.store import PartWriter, Questions, token_dtype
from realm_lab.corpus.vocabulary import encode_batch_plain

BATCH = 4096
Item = TypeVar("Item")


class Prepared:
    """A corpus that is being prepared: where, with which wordpieces, and what was kept and dropped so far."""

    def __init__(self, folder: Path, tokenizer: Tokenizer):
        self.folder, self.tokenizer = folder, tokenizer
        self.dtype = token_dtype(tokenizer.get_vocab_size())
        self.counts: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()


def write_questions(
    prepared: Prepared, split: str, questions: Sequence[tuple[Question, Sequence[str], list[int]]]
) -> None:
    """Write questions with their second-edition answers and gold rows."""
    schema = Questions.COLUMNS
    if any(question.answer_kind != "text" for question, _, _ in questions):
        schema = schema.append(Questions.KIND)
    writer = PartWriter(prepared.folder / f"questions_{split}", schema, prepared.dtype)
    for batch in batched(questions, BATCH):
        encoded = encode_batch_plain(prepared.tokenizer, [question.question for question, _, _ in batch])
        rows = [
            {
                "tokens": encoding.ids,
                "gold": gold,
                "id": question.id,
                "question": question.question,
                "answers": question.answers,
                "answers_updated": updated,
                "answer_kind": question.answer_kind,
            }
            for (question, updated, gold), encoding in zip(batch, encoded, strict=True)
        ]
        writer.append(pa.RecordBatch.from_pylist(rows, schema))
    writer.close()
    prepared.counts[f"questions_{split}"] = writer.rows


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of up to `size` items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
