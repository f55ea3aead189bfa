"""Retrieval utility (Eq. 2) and likelihood on held-out masked sentences."""

# Shapes: B sentences, K candidates with the null document first, M masked positions

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm_lab.corpus.store import Sentences
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.masking import MaskedSentence, mask
from realm_lab.models.candidate_reader import CandidateReader
from realm_lab.models.reader import Reader
from realm_lab.models.realm import marginal_log_likelihood, retrieval_utility
from realm_lab.params.parameters import Params
from realm_lab.retrieval.candidates import CandidatePolicy
from realm_lab.retrieval.retriever import NULL, Retriever

SENTENCES_AT_ONCE = 32


class ClozeResult(NamedTuple):
    """Per sentence, on the CPU. Column 0 is the null document."""

    masked: list[MaskedSentence]
    rows_BK: np.ndarray
    log_prior_BK: Tensor  # log p(z|x); about -1e4 for a null document that is only diagnostic
    log_reader_BK: Tensor  # log p(y|z,x), nats per span
    utility_BK: Tensor  # RU(z|x)
    top1_correct_B: Tensor  # all masked wordpieces right, read with the top passage
    gold_B: np.ndarray


@torch.no_grad()
def run_cloze(
    params: Params, retriever: Retriever, reader: Reader, sentences: Sentences, special: SpecialIds, count: int
) -> ClozeResult:
    """Read the first `count` held-out sentences, each with its one span masked, under every candidate.

    Candidates are found and ranked as in pre-training, and p(z|x) is over the same ones, but the null document is
    always read and the passage a sentence was taken from never is, so that utility is comparable between runs.
    """
    reader.eval()
    retriever.embedder.eval()
    policy = CandidatePolicy.of(params.pretrain)
    candidate_reader = CandidateReader(params, reader, retriever.passages, special)
    numbers = evenly_spaced(len(sentences), count)
    masked = [mask_first_span(sentences, int(number), special.mask) for number in numbers]
    origins = np.asarray(sentences.origins[numbers], np.int64)
    rows, priors, readers, right = [], [], [], []
    for start in range(0, len(masked), SENTENCES_AT_ONCE):
        part = masked[start : start + SENTENCES_AT_ONCE]
        exclude = policy.exclusion(retriever, origins[start : start + SENTENCES_AT_ONCE], always=True)
        found = policy.retrieve(retriever, [sentence.tokens for sentence in part], exclude, compare_null=True)
        rows.append(found.rows_BK)
        priors.append(found.log_prior_BK.cpu())
        readers.append(candidate_reader.read(part, found.rows_BK).log_probs_BK.cpu())
        right.append(candidate_reader.restores(part, found.rows_BK[:, 1]))
    log_reader_BK = torch.cat(readers)
    return ClozeResult(
        masked,
        np.concatenate(rows),
        torch.cat(priors),
        log_reader_BK,
        retrieval_utility(log_reader_BK, log_reader_BK[:, 0]),
        torch.cat(right),
        np.asarray(sentences.gold[numbers]),
    )


def mask_first_span(sentences: Sentences, number: int, mask_id: int) -> MaskedSentence:
    """A held-out sentence with its (only) span masked."""
    first, end = sentences.salient_spans(number)[0]
    return mask(sentences.tokens[number], np.arange(first, end), mask_id)


def evenly_spaced(total: int, count: int) -> np.ndarray:
    """Up to `count` numbers from 0 to total - 1, evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(np.int64))


def cloze_metrics(result: ClozeResult) -> dict[str, float]:
    """Means over the sentences; utilities in nats per span, but for the one per token, a mean over masked tokens."""
    prior_BK = result.log_prior_BK.exp()
    is_real_BK = torch.from_numpy(result.rows_BK[:, 1:] >= 0)
    top = result.log_prior_BK[:, 1:].argmax(1, keepdim=True)
    utility_B = (prior_BK * result.utility_BK).sum(1)
    values = {
        "retrieval_utility": utility_B.mean().item(),
        "retrieval_utility_per_token": utility_B.sum().item() / sum(len(each.positions) for each in result.masked),
        "retrieval_utility_top1": result.utility_BK[:, 1:].gather(1, top).mean().item(),
        "retrieval_utility_best": result.utility_BK[:, 1:]
        .masked_fill(~is_real_BK, -torch.inf)
        .max(1)
        .values.mean()
        .item(),
        "cloze_log_likelihood": marginal_log_likelihood(result.log_prior_BK, result.log_reader_BK).mean().item(),
        "cloze_exact_match": result.top1_correct_B.float().mean().item(),
        "cloze_entropy": -(prior_BK * result.log_prior_BK).sum(1).mean().item(),
        "cloze_null_probability": prior_BK[:, result.rows_BK[0] == NULL].sum(1).mean().item(),
    }
    if (result.gold_B >= 0).any():
        known = result.gold_B >= 0
        values["cloze_gold_among_candidates"] = float((result.rows_BK == result.gold_B[:, None]).any(1)[known].mean())
        values["cloze_gold_known"] = float(known.sum())
    return values
