"""Answering questions: the best span of the best passage (section 3.2 at inference)."""

# Shapes: B questions, K passages, N = B * K pairs, L positions, W span widths

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.config import Params
from realm_lab.core.process import autocast
from realm_lab.corpus.vocabulary import SpecialIds, encode_batch_plain
from realm_lab.models.inputs import join
from realm_lab.models.reader import Reader
from realm_lab.models.realm import candidate_log_probs
from realm_lab.models.spans import span_log_probs
from realm_lab.retrieval.retriever import Retriever

QUESTIONS_AT_ONCE = 32


class Candidate(NamedTuple):
    """One passage and its best span."""

    row: int
    log_prior: float  # log p(z|x)
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
    """Read the top passages of each question; the answer is the span of largest p(z|x) p(s|z,x)."""
    reader.eval()
    retriever.embedder.eval()
    answers = []
    for start in range(0, len(queries), QUESTIONS_AT_ONCE):
        part = queries[start : start + QUESTIONS_AT_ONCE]
        query_BD = retriever.embed_queries(part)
        rows_BK = retriever.find(query_BD, params.finetune.candidates, null=False)
        log_prior_BK = candidate_log_probs(retriever.indexed_score(query_BD, rows_BK)).cpu()
        for number, query in enumerate(part):
            rows = [int(row) for row in rows_BK[number] if row >= 0]
            log_spans, places = _best_spans(params, reader, special, query, rows, retriever)
            candidates = _cut_out(rows, log_prior_BK[number].tolist(), log_spans, places, retriever, tokenizer)
            joint = [candidate.log_prior + candidate.log_span for candidate in candidates]
            best = int(np.argmax(joint))
            answers.append(Answer(candidates[best].text, best, candidates))
    return answers


def _best_spans(
    params: Params, reader: Reader, special: SpecialIds, query: np.ndarray, rows: list[int], retriever: Retriever
) -> tuple[list[float], list[tuple[int, int]]]:
    """Of each passage, the best span's log p(s|z,x) and (first wordpiece of the body, end)."""
    device = next(reader.parameters()).device
    longest = params.corpus.sentence_length + params.corpus.passage_length
    batch = join([query] * len(rows), [retriever.passages.bodies[row] for row in rows], special, longest).to(device)
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
    return best.tolist(), places


def _cut_out(
    rows: list[int],
    log_prior: list[float],
    log_spans: list[float],
    places: list[tuple[int, int]],
    retriever: Retriever,
    tokenizer: Tokenizer,
) -> list[Candidate]:
    bodies = [retriever.passages.text.row(row)["body"] for row in rows]
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
