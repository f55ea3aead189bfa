"""Answer questions with the best span of the passages read, or with the most likely text (section 3.2 at inference)."""

# Shapes: B questions, K passages, N pairs of a question and a passage, G pairs read at once, L positions (P of a body),
# W span widths

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.engine.core.process import autocast
from realm_lab.engine.corpus.cutting import encode_bodies
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.evaluation.answers import Answer, Candidate
from realm_lab.engine.models.inputs import join, length_groups
from realm_lab.engine.models.spans import SpanModel, passage_log_probs, read_logits, span_log_probs
from realm_lab.engine.params.parameters import Params

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
    """Read the passages of each question, and return its answer: the span of largest p(z, s|x) = p(z|x) p(s|z,x). With
    `finetune.answer_by: string` it is the text of largest p(y|x) (`best_text`), at its span of largest p(z, s|x).

    Rows (negative beyond the corpus) and scores of the passages come from any retriever, best first. p(z|x) is as in
    fine-tuning (models/spans.py). With `finetune.softmax: joint`, the span of largest p(z, s|x) has the largest h(s, z)
    + f(x, z). With `selected`, the answer is instead the best span of the passage of largest p(z|x) (Karpukhin et al.
    2020, section 6.1). The answer to a question without passages is empty.
    """
    reader.eval()
    softmax, answers, by_text = params.finetune.softmax, list[Answer](), params.finetune.answer_by == "string"
    for start in range(0, len(queries), QUESTIONS_AT_ONCE):
        part = slice(start, start + QUESTIONS_AT_ONCE)
        rows = [[int(row) for row in rows_K if row >= 0] for rows_K in rows_BK[part]]
        # Every pair is read once, every body encoded once.
        owners = [(number, row) for number, own in enumerate(rows) for row in own]
        best_N, place_N2, logit_N, all_N = _spans(params, reader, special, passages, queries[part], owners)
        bodies = {row: passages.text.row(row)["body"] for _, row in owners}
        encodings = dict(zip(bodies, encode_bodies(tokenizer, list(bodies.values())), strict=True))
        # Rows beyond a small corpus come last, so the first scores belong to the passages that exist.
        first = 0
        for scores_K, own in zip(score_BK[part], rows, strict=True):
            pairs = slice(first, first + len(own))
            first += len(own)
            log_prior_K = passage_log_probs(scores_K[None, : len(own)], logit_N[None, pairs], softmax)[0].tolist()
            log_span_K, places_K2 = best_N[pairs].tolist(), place_N2[pairs].tolist()
            if by_text and own:
                best, *places_K2[best] = best_text([passages.bodies[row] for row in own], log_prior_K, all_N[pairs])
                begin, end = places_K2[best]
                log_span_K[best] = float(all_N[pairs][best][begin, end - begin - 1])
            else:
                worth_K = np.array(log_prior_K) + (softmax != "selected") * np.array(log_span_K)
                best = int(worth_K.argmax()) if own else 0
            candidates = []
            for row, log_prior, log_span, (begin, end) in zip(own, log_prior_K, log_span_K, places_K2, strict=True):
                ids, offsets = encodings[row]
                inside = offsets[begin:end]
                span = (inside[0][0], inside[-1][1]) if inside else (0, 0)
                pieces = tuple(ids[begin:end])
                candidates.append(Candidate(row, log_prior, log_span, span, bodies[row][slice(*span)], pieces))
            answers.append(Answer(candidates[best].text if own else "", best, candidates))
    return answers


def best_text(
    bodies: Sequence[np.ndarray], log_prior_K: Sequence[float], log_spans: Sequence[np.ndarray]
) -> tuple[int, int, int]:
    """Find the text y of largest p(y|x) = sum_z p(z|x) sum_{s in S(z, y)} p(s|z,x) (Eq. 1), and return its span of
    largest p(z, s|x): the passage, the first wordpiece and the last + 1.

    S(z, y) are the spans with the wordpieces of y. `log_spans` is log p(s|z,x) of each body as far as it was read, [P,
    W].
    """
    total, best = defaultdict[tuple[int, ...], float](float), dict[tuple[int, ...], tuple[float, int, int, int]]()
    for number, (body, log_prior, log_span_PW) in enumerate(zip(bodies, log_prior_K, log_spans, strict=True)):
        pieces, joint_PW = body.tolist(), np.exp(log_prior + log_span_PW).tolist()
        for begin, joint_W in enumerate(joint_PW):
            for end, joint in enumerate(joint_W[: len(joint_PW) - begin], begin + 1):
                text = tuple(pieces[begin:end])
                total[text] += joint
                best[text] = max(best.get(text, (-1.0, 0, 0, 0)), (joint, number, begin, end))
    return best[max(total, key=total.__getitem__)][1:]


def _spans(
    params: Params,
    reader: SpanModel,
    special: SpecialIds,
    passages: Passages,
    queries: Sequence[np.ndarray],
    owners: Sequence[tuple[int, int]],
) -> tuple[Tensor, Tensor, Tensor, list[np.ndarray]]:
    """Read each pair (question, row). Return log p(s|z,x) of the pair's best span [N], the wordpieces [first, end) of
    this span in the body [N, 2], and the reader's logit of the passage [N]. Return also log p(s|z,x) of all spans of
    each pair, [P, W], if `finetune.answer_by` needs it."""
    device = next(reader.parameters()).device
    longest = params.corpus.sentence_length + params.corpus.passage_length
    firsts, bodies = [queries[number] for number, _ in owners], [passages.bodies[row] for _, row in owners]
    lengths = [min(longest, len(query) + len(body) + 3) for query, body in zip(firsts, bodies, strict=True)]
    best_N, logit_N = torch.empty(len(owners), device=device), torch.empty(len(owners), device=device)
    place_N2 = torch.empty(len(owners), 2, dtype=torch.int64, device=device)
    log_spans = [np.empty(0)] * len(owners)
    for group in length_groups(lengths, params.launch.token_budget):
        batch = join([firsts[i] for i in group], [bodies[i] for i in group], special, longest).to(device)
        with autocast(device, params.model.precision):
            settings = params.finetune
            logits_GLW, logit_G = read_logits(reader, batch, settings.max_span_wordpieces, settings.softmax)
        at_G = torch.from_numpy(group).to(device)
        log_probs_GLW = span_log_probs(logits_GLW)
        best_N[at_G], flat_G = log_probs_GLW.flatten(1).max(1)
        logit_N[at_G] = logit_G
        offset_G = torch.tensor([len(firsts[i]) + 2 for i in group], device=device)
        first_G, width_G = flat_G // logits_GLW.shape[2] - offset_G, flat_G % logits_GLW.shape[2]
        place_N2[at_G] = torch.stack([first_G, first_G + width_G + 1], 1)
        for row, i in enumerate(group.tolist() if settings.answer_by == "string" else ()):
            log_spans[i] = log_probs_GLW[row, len(firsts[i]) + 2 : lengths[i] - 1].double().cpu().numpy()
    return best_N, place_N2, logit_N, log_spans
