"""The retriever's gradient over all passages, and the estimates of it that training uses.

At fixed weights, log p(y|x) = log sum_z p(y|z,x) p(z|x) over every passage and the null document has the gradient
r(z) = p(z|y,x) - p(z|x) in the score f(x,z) (Guu et al. 2020, Appendix A). An estimate considers fewer passages, or
maximises another objective; its r(z) is 0 for passages that it leaves out. From r(z) follow the gradients in the query
vectors, g(x) = sum_z r(z) Embed_doc(z), and in all weights of the retriever, sum_x sum_z r(z) grad f(x,z).
"""

# Shapes: S sentences, N passages, C = N + 1 columns with the null document first, K candidates, R draws, D embedding
# size, W weights

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm_lab.contrib.gradients.operations import StepOperations
from realm_lab.engine.core.seeding import derive_seed
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import passage_reader
from realm_lab.engine.models.encoder import evaluating
from realm_lab.engine.models.objectives import Objective, marginal
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.models.realm import candidate_log_probs
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.candidate_sources import PassageSearch, QueryBatch
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import ABSENT, NO_SCORE, NULL

PASSAGES_AT_ONCE = 256  # read for a sentence, or embedded for the gradient in the weights
Find = Callable[[int], np.ndarray]  # number of the draw -> rows of each sentence, [S, K], with NULL and ABSENT


class Scores(NamedTuple):
    """Scores and log-likelihoods of some sentences under every passage, at fixed weights, float64, on the CPU."""

    masked: Sequence[MaskedSentence]
    score_SC: Tensor  # f(x,z); NO_SCORE for a passage that its sentence must not find
    log_reader_SC: Tensor  # log p(y|z,x), nats
    document_CD: Tensor


class Estimate(NamedTuple):
    """A way to estimate the gradient: the rows that it considers, and the objective that it maximises over them."""

    name: str
    rows: Find
    objective: Objective = marginal
    draws: int = 1  # more than 1: it is random
    log_reader_SC: Tensor | None = None  # of a reward, in place of the reader's


class Quality(NamedTuple):
    """Distance of an estimate from the exact gradient. `bias` of the mean over the draws, `variance` around this mean,
    and `error`, their sum, are squared norms in the query vectors, as shares of the exact gradient's."""

    name: str
    cosine: float  # of the gradient in the query vectors of all sentences together, mean over the draws
    bias: float
    variance: float
    error: float
    weights_cosine: float  # of the gradient in the retriever's weights, summed over the sentences, mean over the draws
    weights_bias: float
    gflop: float  # of a step on these sentences: embedding, reading and the backward pass


@torch.no_grad()
def scores_of(
    params: Params,
    retriever: Retriever,
    reader: Reader,
    masked: Sequence[MaskedSentence],
    origins_S: np.ndarray,
    note: Callable[[str], None] = lambda text: None,
) -> Scores:
    """Score and read every passage for every sentence, without dropout; `note` gets a line of progress."""
    policy, count = CandidatePolicy.of(params.pretrain), len(retriever.passages)
    columns = np.arange(-1, count)  # NULL is -1
    assert NULL == -1
    candidate_reader = passage_reader(params, reader, retriever.passages, retriever.inputs.special)
    with evaluating(retriever.embedder, reader):
        query_SD = retriever.embed_queries([sentence.query for sentence in masked])
        vectors = [retriever.embed_documents(part) for part in _parts(columns)]
        document_CD = torch.cat(vectors).double().cpu()
        score_SC = query_SD.double().cpu() @ document_CD.T
        score_SC[:, 0] += retriever.null_offset
        read = np.empty((len(masked), count + 1))
        for number, sentence in enumerate(masked):
            pieces = [candidate_reader.read([sentence], part[None]).log_probs_BK[0] for part in _parts(columns)]
            read[number] = torch.cat(pieces).double().cpu().numpy()
            note(f"sentence {number + 1} of {len(masked)}: read {count} passages")
    exclude = policy.exclusion(retriever, origins_S)
    search = PassageSearch(retriever, [sentence.query for sentence in masked], query_SD, 0, exclude)
    forbidden_SC = ~search.allowed(np.tile(columns, (len(masked), 1)))
    forbidden_SC[:, 0] = not policy.null
    score_SC[torch.from_numpy(forbidden_SC)] = NO_SCORE
    return Scores(masked, score_SC, torch.from_numpy(read), document_CD)


def exact(scores: Scores) -> Tensor:
    """Return r(z) over every passage, [S, C]."""
    rows_SC = np.tile(np.arange(-1, scores.score_SC.shape[1] - 1), (len(scores.masked), 1))
    rows_SC[(scores.score_SC <= NO_SCORE).numpy()] = ABSENT
    return in_scores(scores, rows_SC, marginal)


def in_scores(scores: Scores, rows_SK: np.ndarray, objective: Objective, log_reader_SC: Tensor | None = None) -> Tensor:
    """Return the gradient of an objective over the candidates `rows_SK` with respect to all scores f(x,z), [S, C]."""
    absent_SK = torch.from_numpy(rows_SK == ABSENT)
    column_SK = torch.from_numpy(np.where(rows_SK == ABSENT, NULL, rows_SK) + 1)
    read_SC = scores.log_reader_SC if log_reader_SC is None else log_reader_SC
    score_SC = scores.score_SC.clone().requires_grad_()
    score_SK = score_SC.gather(1, column_SK).masked_fill(absent_SK, NO_SCORE)
    value_S = objective(candidate_log_probs(score_SK), read_SC.gather(1, column_SK))
    (gradient_SC,) = torch.autograd.grad(value_S.sum(), score_SC)
    return gradient_SC


def top_k(scores: Scores, k: int, null: bool, found_SN: Tensor | None = None) -> np.ndarray:
    """Return the best k candidates of each sentence, [S, k], including the null document if `null`. `found_SN`: scores
    from another index, which rank the passages instead."""
    score_SN = scores.score_SC[:, 1:] if found_SN is None else found_SN
    score_SN = score_SN.masked_fill(scores.score_SC[:, 1:] <= NO_SCORE, NO_SCORE)
    best = score_SN.sort(dim=1, descending=True, stable=True)
    rows_SK = best.indices[:, : k - int(null)].numpy()
    rows_SK = np.where(best.values[:, : k - int(null)].numpy() <= NO_SCORE, ABSENT, rows_SK)
    return np.concatenate([np.full((len(rows_SK), int(null)), NULL, np.int64), rows_SK], axis=1)


def drawn_from(
    source: Callable[[PassageSearch, QueryBatch], np.ndarray],
    search: PassageSearch,
    batch: Callable[[int], QueryBatch],
    null: bool,
) -> Find:
    """Return a function: number of a draw -> rows that a candidate source finds, after the null document if `null`."""

    def rows(draw: int) -> np.ndarray:
        with torch.no_grad():
            found_SK = source(search, batch(draw))
        found_SK = np.where(search.allowed(found_SK), found_SK, ABSENT)
        return np.concatenate([np.full((len(found_SK), int(null)), NULL, np.int64), found_SK], axis=1)

    return rows


class ExactGradient:
    """The exact gradient of some sentences at a retriever's weights; measures how far estimates are from it."""

    def __init__(self, params: Params, retriever: Retriever, reader: Reader, scores: Scores, seed: int):
        self._retriever, self._scores, self._seed = retriever, scores, seed
        shapes = reader.encoder.shape, retriever.embedder.document_encoder.shape
        self._operations = StepOperations(params, retriever.passages, *shapes)
        self._trained = [each for each in retriever.embedder.parameters() if each.requires_grad]
        self._exact_SC = exact(scores)
        self._query_SD = self._exact_SC @ scores.document_CD
        self._weights_W = self.in_weights(self._exact_SC)

    @property
    def exact_gflop(self) -> float:
        """Return the operations of a step that considers every passage, in GFLOP."""
        sentences, columns = self._exact_SC.shape
        return 1e-9 * self._operations(self._scores.masked, np.tile(np.arange(-1, columns - 1), (sentences, 1)))

    def quality(self, estimate: Estimate) -> Quality:
        """Measure an estimate over all of its draws."""
        queries, weights = [], []
        operations = 0.0
        for draw in range(estimate.draws):
            rows_SK = estimate.rows(draw)
            torch.manual_seed(derive_seed(self._seed, "gradients", estimate.name, draw))
            r_SC = in_scores(self._scores, rows_SK, estimate.objective, estimate.log_reader_SC)
            queries.append(r_SC @ self._scores.document_CD)
            weights.append(self.in_weights(r_SC))
            operations += 1e-9 * self._operations(self._scores.masked, rows_SK) / estimate.draws
        bias, variance, error = parts_of_error(torch.stack(queries), self._query_SD)
        mean_W = torch.stack(weights).mean(0)
        return Quality(
            estimate.name,
            float(np.mean([cosine(each, self._query_SD) for each in queries])),
            bias,
            variance,
            error,
            float(np.mean([cosine(each, self._weights_W) for each in weights])),
            float((mean_W - self._weights_W).square().sum() / self._weights_W.square().sum()),
            operations,
        )

    def in_weights(self, r_SC: Tensor) -> Tensor:
        """Return sum_x sum_z r(z) grad f(x,z) in all trained weights of the retriever, without dropout, float64 [W]."""
        retriever, columns = self._retriever, r_SC.any(0).nonzero()[:, 0].numpy()
        total = [torch.zeros_like(each, dtype=torch.float64) for each in self._trained]

        def add(value: Tensor) -> None:
            found = torch.autograd.grad(value, self._trained, allow_unused=True)
            for sum_, each in zip(total, found, strict=True):
                if each is not None:
                    sum_ += each

        with evaluating(retriever.embedder):
            query_SD = retriever.embed_queries([sentence.query for sentence in self._scores.masked])
            gradient_SD = (r_SC @ self._scores.document_CD).to(query_SD)
            add((query_SD * gradient_SD).sum())
            fixed_SD = query_SD.detach().double().cpu()
            for part in _parts(columns):
                document_cD = retriever.embed_documents(part - 1)
                gradient_cD = (r_SC[:, torch.from_numpy(part)].T @ fixed_SD).to(document_cD)
                add((document_cD * gradient_cD).sum())
        return torch.cat([each.flatten().cpu() for each in total])


def parts_of_error(estimate_RSD: Tensor, exact_SD: Tensor) -> tuple[float, float, float]:
    """Return squared bias, variance and mean squared error, as shares of the exact gradient's square; the first two
    add up to the third."""
    size = exact_SD.square().sum()
    mean_SD = estimate_RSD.mean(0)
    bias = (mean_SD - exact_SD).square().sum() / size
    variance = (estimate_RSD - mean_SD).square().sum((1, 2)).mean() / size
    error = (estimate_RSD - exact_SD).square().sum((1, 2)).mean() / size
    return bias.item(), variance.item(), error.item()


def cosine(one: Tensor, other: Tensor) -> float:
    """Cosine of two gradients; 0 if one of them is 0."""
    length = one.norm() * other.norm()
    return float((one * other).sum() / length) if length else 0.0


def _parts(columns: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(columns), PASSAGES_AT_ONCE):
        yield columns[start : start + PASSAGES_AT_ONCE]
