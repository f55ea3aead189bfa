"""Worked examples for the report's explorer and its version of Table 3: the effect of each passage on an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from realm_lab.engine.corpus.cutting import encode_bodies
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.evaluation.answers import Answer
from realm_lab.engine.evaluation.utility import ClozeResult, evenly_spaced
from realm_lab.engine.models.realm import marginal_log_likelihood
from realm_lab.engine.models.spans import find_answer
from realm_lab.engine.retrieval.rows import NULL

Example = dict[str, Any]
EXAMPLES = 12  # cloze examples, and question examples


def cloze_examples(
    passages: Passages, tokenizer: Tokenizer, special: SpecialIds, result: ClozeResult, when: str
) -> list[Example]:
    """Return masked sentences with every candidate's p(z|x), log p(y|z,x) and utility."""
    marginal_B = marginal_log_likelihood(result.log_prior_BK, result.log_reader_BK)
    examples = []
    for number in evenly_spaced(len(result.masked), EXAMPLES).tolist():
        masked = result.masked[number]
        candidates = [
            {
                **_passage(passages, row, _find(passages, row, tokenizer, masked.targets)),
                "probability": float(result.log_prior_BK[number, rank].exp()),
                "reader_log_likelihood": float(result.log_reader_BK[number, rank]),
                "utility": float(result.utility_BK[number, rank]),
                "is_gold": row >= 0 and row == int(result.gold_B[number]),
            }
            for rank, row in enumerate(result.rows_BK[number].tolist())
            if row >= NULL
        ]
        likelihoods = {
            "null_log_likelihood": float(result.log_reader_BK[number, 0]),
            "marginal_log_likelihood": float(marginal_B[number]),
        }
        text, answer = _show(tokenizer, special, masked.tokens), tokenizer.decode(masked.targets.tolist())
        candidates.sort(key=lambda candidate: -candidate["probability"])
        examples.append(
            {"kind": "cloze", "when": when, "text": text, "answer": answer, **likelihoods, "candidates": candidates}
        )
    return examples


def question_examples(
    passages: Passages,
    texts: Sequence[str],
    references: Sequence[Sequence[str]],
    gold_rows: Sequence[np.ndarray],
    answers: Sequence[Answer],
) -> list[Example]:
    """Return questions with the span that each passage offers."""
    examples = []
    for number in evenly_spaced(len(texts), EXAMPLES).tolist():
        answer, gold = answers[number], set(gold_rows[number].tolist())
        joint = [candidate.log_prior + candidate.log_span for candidate in answer.candidates]
        candidates = [
            {
                **_passage(passages, candidate.row, candidate.span),
                "probability": float(np.exp(candidate.log_prior)),
                "reader_log_likelihood": candidate.log_span,
                "utility": None,
                "is_gold": candidate.row in gold,
            }
            for candidate in answer.candidates
        ]
        example = {"kind": "question", "when": "end", "text": texts[number], "answer": " / ".join(references[number])}
        likelihood = float(np.logaddexp.reduce(joint)) if joint else None
        example |= {"prediction": answer.text, "null_log_likelihood": None, "marginal_log_likelihood": likelihood}
        examples.append(example | {"candidates": candidates})
    return examples


def _show(tokenizer: Tokenizer, special: SpecialIds, tokens: np.ndarray) -> str:
    """Return a masked sentence as text, neighbouring masks as one [MASK]."""
    ids = tokens.tolist()
    kept = [token for before, token in zip([None, *ids], ids, strict=False) if {before, token} != {special.mask}]
    return tokenizer.decode(kept, skip_special_tokens=False)


def _find(passages: Passages, row: int, tokenizer: Tokenizer, answer: np.ndarray) -> tuple[int, int] | None:
    """Return the characters of a passage's body where the answer's wordpieces first occur; None if they do not."""
    found = find_answer(np.asarray(passages.bodies[row]), [answer], len(answer)) if row >= 0 else []
    if not found:
        return None
    _, offsets = encode_bodies(tokenizer, [passages.text.row(row)["body"]])[0]
    first, width = found[0]
    return offsets[first][0], offsets[first + width][1]


def _passage(passages: Passages, row: int, span: tuple[int, int] | None) -> Example:
    """Return a passage's text, and the characters of its body that are the answer; the null document has neither."""
    text = passages.text.row(row) if row >= 0 else {"title": "", "body": ""}
    shown = {"passage_id": passages.id_of(row) if row >= 0 else None, "title": text["title"], "body": text["body"]}
    shown["picture"] = passages.picture(row) if row >= 0 else None
    return shown | {"span": span and list(span), "is_null": row < 0}
