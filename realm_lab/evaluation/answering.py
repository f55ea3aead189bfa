"""Answering questions: the best span of the best passage (section 3.2 at inference)."""

# Shapes: B questions, K passages, N = B * K pairs, L positions, W span widths

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.core.process import autocast
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds, encode_batch_plain
from realm_lab.models.inputs import join
from realm_lab.models.reader import Reader
from realm_lab.models.spans import passage_log_probs, span_log_probs, span_logit_sums
from realm_lab.params.parameters import Params
from realm_lab.retrieval.retriever import Retriever

QUESTIONS_AT_ONCE = 32


class Candidate(NamedTuple):
    """One passage and its best span."""

    row: int
    log_prior: float  # log p(z|x): the retriever's, or z's share of the joint softmax
    log_span: float  # log p(s|z,x) of the best span
    span: tuple[int, int]  # characters of the body
    text: str
    wordpieces: tuple[int, ...]


class Answer(NamedTuple):
    """An answer with every passage that was read, best (z, s) pair first known by `best`."""

    text: str
    best: int
    candidates: list[Candidate]


@torch.no_grad()
def answer_questions(
    params: Params,
    retriever: Retriever,
    reader: Reader,
    tokenizer: Tokenizer,
    special: SpecialIds,
    queries: Sequence[np.ndarray],
) -> list[Answer]:
    """Read the top passages of each question; the answer is the span of largest p(z, s|x) = p(z|x) p(s|z,x).

    p(z|x) is as in fine-tuning (models/spans.py), so that with `finetune.softmax: joint` this is the largest
    h(s, z) + f(x, z).
    """
    retriever.embedder.eval()
    answers = []
    for start in range(0, len(queries), QUESTIONS_AT_ONCE):
        part = queries[start : start + QUESTIONS_AT_ONCE]
        query_BD = retriever.embed_queries(part)
        rows_BK = retriever.find(query_BD, params.finetune.candidates)
        score_BK = retriever.indexed_score(query_BD, rows_BK)
        answers += read_answers(params, retriever.passages, reader, tokenizer, special, part, rows_BK, score_BK)
    return answers


@torch.no_grad()
def read_answers(
    params: Params,
    passages: Passages,
    reader: Reader,
    tokenizer: Tokenizer,
    special: SpecialIds,
    queries: Sequence[np.ndarray],
    rows_BK: np.ndarray,
    score_BK: Tensor,
) -> list[Answer]:
    """Answers from passages that any retriever found: rows (negative beyond the corpus) and scores, best first."""
    reader.eval()
    answers = []
    for number, query in enumerate(queries):
        rows = [int(row) for row in rows_BK[number] if row >= 0]
        log_spans, places, span_logit_sum_K = _best_spans(params, reader, special, query, rows, passages)
        score_1K = score_BK[number : number + 1, : len(rows)]  # what a small corpus leaves empty stands last
        log_prior = passage_log_probs(score_1K, span_logit_sum_K[None], params.finetune.softmax)[0].tolist()
        candidates = _cut_out(rows, log_prior, log_spans, places, passages, tokenizer)
        joint = [candidate.log_prior + candidate.log_span for candidate in candidates]
        best = int(np.argmax(joint))
        answers.append(Answer(candidates[best].text, best, candidates))
    return answers


def _best_spans(
    params: Params, reader: Reader, special: SpecialIds, query: np.ndarray, rows: list[int], passages: Passages
) -> tuple[list[float], list[tuple[int, int]], Tensor]:
    """Of each passage, the best span's log p(s|z,x) and (first wordpiece of the body, end), and the log sum of all
    spans' logits [K]."""
    device = next(reader.parameters()).device
    longest = params.corpus.sentence_length + params.corpus.passage_length
    batch = join([query] * len(rows), [passages.bodies[row] for row in rows], special, longest).to(device)
    with autocast(device, params.model.precision):
        logits_NLW: Tensor = reader.span_logits(batch, params.finetune.max_span_wordpieces)
    log_probs_NLW = span_log_probs(logits_NLW)
    best, flat = log_probs_NLW.flatten(1).max(1)
    widths = log_probs_NLW.shape[2]
    offset = len(query) + 2
    places = []
    for place in flat.tolist():
        first, width = place // widths - offset, place % widths
        places.append((first, first + width + 1))
    return best.tolist(), places, span_logit_sums(logits_NLW)


def _cut_out(
    rows: list[int],
    log_prior: list[float],
    log_spans: list[float],
    places: list[tuple[int, int]],
    passages: Passages,
    tokenizer: Tokenizer,
) -> list[Candidate]:
    bodies = [passages.text.row(row)["body"] for row in rows]
    candidates = []
    for number, encoding in enumerate(encode_batch_plain(tokenizer, bodies)):
        first, end = places[number]
        offsets = encoding.offsets[first:end]
        span = (offsets[0][0], offsets[-1][1]) if offsets else (0, 0)
        text = bodies[number][span[0] : span[1]]
        candidates.append(
            Candidate(rows[number], log_prior[number], log_spans[number], span, text, tuple(encoding.ids[first:end]))
        )
    return candidates
