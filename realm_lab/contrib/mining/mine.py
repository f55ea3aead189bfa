"""`realm-lab mine`: questions with their positives and mined hard negatives, as DPR's training files have them."""

# Shapes: Q questions, K passages

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from realm_lab.engine.corpus.answers import passage_holds
from realm_lab.engine.corpus.records import Split
from realm_lab.engine.corpus.regex_answers import Patterns
from realm_lab.engine.corpus.store import NO_ROW
from realm_lab.engine.evaluation.judged import is_question
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.registry import Retrieved
from realm_lab.errors import UserError
from realm_lab.records.files import atomic_write

DEPTH = 100  # passages retrieved per question, at least (as in DPR)
QUESTIONS_AT_ONCE = 256
POSITIVE_SCORE = 1000  # of passages that annotators chose, in DPR's files


def mine(context: Context, path: Path, split: Split, retriever: str, count: int) -> tuple[int, int]:
    """Write the questions of a split with at most `count` hard negatives each: the best passages of BM25 (`bm25`) or of
    the finished run (`run`) that hold no answer, are not judged relevant and are not the question itself. The
    positives are the gold passages, else the best passage with an answer. Returns how many questions were written, and
    how many were left out because they have no positive. UserError: nothing would be written, or the run is not
    finished.
    """
    total = len(context.corpus.questions(split))
    if not total:
        raise UserError(f"no {split} questions in the prepared corpus; name them in corpus.files.questions_{split}")
    search = context.bm25.search if retriever == "bm25" else context.system.retrieve
    written = 0
    with atomic_write(path) as file:
        for record in _examples(context, search, split, f"{retriever} {split}", count):
            file.write((",\n " if written else "[\n ") + json.dumps(record, ensure_ascii=False))
            written += 1
        if not written:
            raise UserError(
                f"no {split} question has a passage with its answer; name other questions, or more passages"
            )
        file.write("\n]\n")
    return written, total - written


def _examples(
    context: Context, search: Callable[[Sequence[str], int], Retrieved], split: Split, dataset: str, count: int
) -> Iterator[dict[str, Any]]:
    questions, passages, patterns = context.corpus.questions(split), context.passages, Patterns()
    depth = min(max(DEPTH, 2 * count), len(passages))

    def passage(row: int, score: float) -> dict[str, Any]:
        text = passages.text.row(row)
        named = {"title": text["title"], "text": text["body"], "score": score, "title_score": 0}
        return named | {"passage_id": passages.id_of(row)}

    for start in range(0, len(questions), QUESTIONS_AT_ONCE):
        found = search(questions.texts[start : start + QUESTIONS_AT_ONCE], depth)
        for number, (rows_K, scores_K) in enumerate(zip(*found, strict=True), start):
            asked = questions.answers[number], questions.answer_kinds[number], patterns, questions.ids[number]
            judged, relevance = questions.judged[number], questions.relevance[number]
            relevant = {*questions.gold[number].tolist(), *judged[(relevance > 0) & (judged != NO_ROW)].tolist()}
            positives = [passage(row, POSITIVE_SCORE) for row in questions.gold[number].tolist()]
            negatives: list[dict[str, Any]] = []
            for row, score in zip(rows_K.tolist(), np.asarray(scores_K, np.float64).tolist(), strict=True):
                if row < 0 or row in relevant:
                    continue
                text = passages.text.row(row)
                if is_question(text, questions.ids[number], questions.texts[number]):
                    continue
                if passage_holds(text["body"], *asked):
                    positives = positives or [passage(row, score)]
                elif len(negatives) < count:
                    negatives.append(passage(row, score))
            if positives:
                named = {"dataset": dataset, "id": questions.ids[number], "question": questions.texts[number]}
                lists = {"positive_ctxs": positives, "negative_ctxs": [], "hard_negative_ctxs": negatives}
                yield named | {"answers": questions.answers[number]} | lists
