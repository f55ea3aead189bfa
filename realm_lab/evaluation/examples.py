"""Worked examples (the paper's Table 3): no retrieval, each document, and the marginal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds, encode_batch_plain
from realm_lab.evaluation.answers import Answer
from realm_lab.evaluation.utility import ClozeResult, evenly_spaced
from realm_lab.models.realm import marginal_log_likelihood
from realm_lab.models.spans import find_answer
from realm_lab.retrieval.retriever import NULL


def cloze_examples(
    passages: Passages, tokenizer: Tokenizer, special: SpecialIds, result: ClozeResult, when: str, count: int
) -> list[dict[str, Any]]:
    """Masked sentences with every candidate's p(z|x), log p(y|z,x) and utility."""
    marginal_B = marginal_log_likelihood(result.log_prior_BK, result.log_reader_BK)
    examples = []
    for number in evenly_spaced(len(result.masked), count) if count else []:
        masked = result.masked[int(number)]
        candidates = [
            {
                **_passage(passages, row, tokenizer, masked.targets),
                "probability": float(result.log_prior_BK[number, place].exp()),
                "reader_log_likelihood": float(result.log_reader_BK[number, place]),
                "utility": float(result.utility_BK[number, place]),
                "is_gold": bool(row >= 0 and row == result.gold_B[number]),
            }
            for place, row in enumerate(result.rows_BK[number].tolist())
            if row >= NULL
        ]
        examples.append(
            {
                "kind": "cloze",
                "when": when,
                "text": show_masked(tokenizer, special, masked.tokens),
                "answer": tokenizer.decode(masked.targets.tolist()),
                "null_log_likelihood": float(result.log_reader_BK[number, 0]),
                "marginal_log_likelihood": float(marginal_B[number]),
                "candidates": sorted(candidates, key=lambda c: -c["probability"]),
            }
        )
    return examples


def question_examples(
    passages: Passages,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    references: Sequence[Sequence[str]],
    gold_rows: Sequence[np.ndarray],
    answers: Sequence[Answer],
    count: int,
) -> list[dict[str, Any]]:
    """Questions with the span that each passage offers."""
    examples = []
    for number in evenly_spaced(len(texts), count).tolist() if count else []:
        answer, gold = answers[number], set(np.asarray(gold_rows[number]).tolist())
        joint = [candidate.log_prior + candidate.log_span for candidate in answer.candidates]
        candidates = [
            {
                **_passage(passages, candidate.row, tokenizer, np.empty(0)),
                "span": list(candidate.span),
                "probability": float(np.exp(candidate.log_prior)),
                "reader_log_likelihood": candidate.log_span,
                "utility": None,
                "is_gold": candidate.row in gold,
            }
            for candidate in answer.candidates
        ]
        examples.append(
            {
                "kind": "question",
                "when": "end",
                "text": texts[number],
                "answer": " / ".join(references[number]),
                "prediction": answer.text,
                "null_log_likelihood": None,
                "marginal_log_likelihood": float(np.logaddexp.reduce(joint)) if joint else None,
                "candidates": candidates,
            }
        )
    return examples


def show_masked(tokenizer: Tokenizer, special: SpecialIds, tokens: np.ndarray) -> str:
    """A masked sentence as text, neighbouring masks as one [MASK]."""
    pieces: list[int] = []
    for token in tokens.tolist():
        if token != special.mask or not pieces or pieces[-1] != special.mask:
            pieces.append(token)
    return tokenizer.decode(pieces, skip_special_tokens=False)


def _passage(passages: Passages, row: int, tokenizer: Tokenizer, answer: np.ndarray) -> dict[str, Any]:
    """A passage's text, with the characters at which the answer's wordpieces stand first."""
    if row < 0:
        return {"passage_id": None, "title": "", "body": "", "span": None, "is_null": True}
    text = passages.text.row(row)
    span = None
    found = find_answer(np.asarray(passages.bodies[row]), [answer], len(answer)) if len(answer) else []
    if found:
        encoding = encode_batch_plain(tokenizer, [text["body"]])[0]
        first, width = found[0]
        span = [encoding.offsets[first][0], encoding.offsets[first + width][1]]
    return {"passage_id": text["id"], "title": text["title"], "body": text["body"], "span": span, "is_null": False}
