"""Answer questions with the best span of the best passage (section 3.2 at inference)."""

# Shapes: B questions, K passages, N pairs of a question and a passage, G pairs read at once, L positions, W span widths

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.core.process import autocast
from realm_lab.corpus.cutting import encode_bodies
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.evaluation.answers import Answer, Candidate
from realm_lab.models.inputs import join, length_groups
from realm_lab.models.spans import SpanModel, passage_log_probs, read_logits, span_log_probs
from realm_lab.params.parameters import Params

QUESTIONS_AT_ONCE = 256


@torch.no_grad()
def read_answers(
    params: Params,
    passages: Passages,
    reader: SpanModel,
    tokenizer: Tokenizer,
    special: SpecialIds,
    queries: Sequence[np.ndarray],
    rows_BK: np.ndarray,
    score_BK: Tensor,
) -> list[Answer]:
    """Read the passages of each question; the answer is the span of largest p(z, s|x) = p(z|x) p(s|z,x).

    The passages come from any retriever: rows (negative beyond the corpus) and scores, best first. p(z|x) is as in
    fine-tuning (models/spans.py), so that with `finetune.softmax: joint` this is the largest h(s, z) + f(x, z). With
    `selected` it is the best span of the passage of largest p(z|x) (Karpukhin et al. 2020, section 6.1). Without any
    passage it is empty.
    """
    reader.eval()
    softmax, answers = params.finetune.softmax, []
    for start in range(0, len(queries), QUESTIONS_AT_ONCE):
        part = slice(start, start + QUESTIONS_AT_ONCE)
        rows = [[int(row) for row in rows_K if row >= 0] for rows_K in rows_BK[part]]
        # Every pair is read once, every body encoded once.
        owners = [(number, row) for number, own in enumerate(rows) for row in own]
        log_span_N, place_N2, logit_N = _best_spans(params, reader, special, passages, queries[part], owners)
        bodies = {row: passages.text.row(row)["body"] for _, row in owners}
        encodings = dict(zip(bodies, encode_bodies(tokenizer, list(bodies.values())), strict=True))
        # Missing passages of a small corpus come last, so that the scores of the passages come first.
        first = 0
        for scores_K, own in zip(score_BK[part], rows, strict=True):
            pairs = slice(first, first + len(own))
            first += len(own)
            log_prior_1K = passage_log_probs(scores_K[None, : len(own)], logit_N[None, pairs], softmax)
            candidates = []
            for place, row in enumerate(own):
                begin, end = place_N2[pairs][place].tolist()
                ids, offsets = encodings[row]
                inside = offsets[begin:end]
                span = (inside[0][0], inside[-1][1]) if inside else (0, 0)
                log_probs = float(log_prior_1K[0, place]), float(log_span_N[pairs][place])
                pieces = tuple(ids[begin:end])
                candidates.append(Candidate(row, *log_probs, span, bodies[row][slice(*span)], pieces))
            worth = [each.log_prior + (softmax != "selected") * each.log_span for each in candidates]
            best = int(np.argmax(worth)) if worth else 0
            answers.append(Answer(candidates[best].text if worth else "", best, candidates))
    return answers


def _best_spans(
    params: Params,
    reader: SpanModel,
    special: SpecialIds,
    passages: Passages,
    queries: Sequence[np.ndarray],
    owners: Sequence[tuple[int, int]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best span of each pair (question, row): log p(s|z,x) [N], its first and last wordpiece + 1 in the body
    [N, 2]; and the reader's logit of the passage [N]."""
    device = next(reader.parameters()).device
    longest = params.corpus.sentence_length + params.corpus.passage_length
    firsts, bodies = [queries[number] for number, _ in owners], [passages.bodies[row] for _, row in owners]
    lengths = [min(longest, len(query) + len(body) + 3) for query, body in zip(firsts, bodies, strict=True)]
    best_N, logit_N = torch.empty(len(owners), device=device), torch.empty(len(owners), device=device)
    place_N2 = torch.empty(len(owners), 2, dtype=torch.int64, device=device)
    for group in length_groups(lengths, params.launch.token_budget):
        batch = join([firsts[i] for i in group], [bodies[i] for i in group], special, longest).to(device)
        with autocast(device, params.model.precision):
            settings = params.finetune
            logits_GLW, logit_G = read_logits(reader, batch, settings.max_span_wordpieces, settings.softmax)
        at_G = torch.from_numpy(group).to(device)
        best_N[at_G], flat_G = span_log_probs(logits_GLW).flatten(1).max(1)
        logit_N[at_G] = logit_G
        offset_G = torch.tensor([len(firsts[i]) + 2 for i in group], device=device)
        first_G, width_G = flat_G // logits_GLW.shape[2] - offset_G, flat_G % logits_GLW.shape[2]
        place_N2[at_G] = torch.stack([first_G, first_G + width_G + 1], 1)
    return best_N, place_N2, logit_N
