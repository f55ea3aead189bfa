"""Two probes of pre-training: the reader's gain from given passages on fixed held-out sentences, and the distance of
the current index from a fresh one for fixed training queries."""

# Shapes: B queries or sentences, K candidates, M masked positions, N pairs of sentence and passage, P pool of passages,
# D embedding size

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.process import to_device
from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.corpus.store import Passages, Sentences
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.evaluation.utility import MAIN_KIND, evenly_spaced, mask_first_span
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import AnyReader, passage_reader
from realm_lab.engine.models.encoder import evaluating
from realm_lab.engine.models.spans import holds_answer
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.retrieval.exact import ExactSearch
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import ABSENT, NO_SCORE, NULL
from realm_lab.engine.retrieval.search import Exclusion, true_scores
from realm_lab.engine.retrieval.staleness import drift

READER_SENTENCES = 32
PROBES = ("gold", "same_article", "random")
# `StalenessProbe.sampled` embeds SAMPLED_PASSAGES random passages, and the index's best DEPTH * K for each query.
SAMPLED_PASSAGES = 128
DEPTH = 2


class ReaderProbe:
    """Measures the reader's gain from given passages, without retrieval, on a fixed set of held-out sentences.

    If any gold passage is known, only sentences that have one and whose first span is of MAIN_KIND are used. Each
    sentence has its first salient span masked, and is read with
      gold: the passage known to contain the answer (Sentences.gold); if none is known but the passage of origin is
        (X = Z), another passage of the article of origin that contains the answer - never the origin, which contains
        the sentence itself;
      same article: a passage of the gold passage's article (or the origin's) without the answer (as wordpieces), and
        not the origin;
      random: any passage of another article.
    Choices among several are drawn from `seed`. A sentence that lacks one of the three is left out of the mean for it.
    """

    def __init__(self, params: Params, sentences: Sentences, passages: Passages, special: SpecialIds, seed: int):
        self._params, self._passages, self._special = params, passages, special
        asks_for_fact = (np.asarray(sentences.gold) >= 0) & (sentences.kinds() == MAIN_KIND)
        has_span = np.asarray(sentences.spans.lengths) > 0
        with_span = np.flatnonzero(asks_for_fact if asks_for_fact.any() else has_span)
        self.numbers = with_span[evenly_spaced(len(with_span), READER_SENTENCES)]
        self.masked = [mask_first_span(sentences, int(number), special.mask) for number in self.numbers]
        origins = np.asarray(sentences.origins[self.numbers], np.int64)
        golds = np.asarray(sentences.gold[self.numbers], np.int64)
        self.rows: dict[str, np.ndarray] = {name: np.full(len(self.masked), ABSENT, np.int64) for name in PROBES}
        for index, (sentence, origin, gold) in enumerate(zip(self.masked, origins, golds, strict=True)):
            generator = numpy_generator(seed, "reader-probe", int(self.numbers[index]))
            for name, choices in self._choices(sentence, int(origin), int(gold)).items():
                if len(choices):
                    self.rows[name][index] = generator.choice(choices)

    def _choices(self, sentence: MaskedSentence, origin: int, gold: int) -> dict[str, np.ndarray]:
        articles = np.asarray(self._passages.articles)
        known = gold if gold >= 0 else origin
        if known < 0:
            nobody = np.empty(0, np.int64)
            return {"gold": nobody, "same_article": nobody, "random": np.arange(len(articles))}
        others = np.setdiff1d(np.flatnonzero(articles == articles[known]), [origin, gold])
        if self._special.unk in sentence.targets:  # unknown words cannot be compared
            others = others[:0]
        holds = holds_answer(self._passages.bodies, others, [sentence.targets])
        return {
            "gold": np.array([gold]) if gold >= 0 else others[holds],
            "same_article": others[~holds],
            "random": np.flatnonzero(articles != articles[known]),
        }

    @torch.no_grad()
    def measure(self, reader: AnyReader) -> dict[str, float]:
        """Return `probe_gold_utility`, `probe_same_article_utility`, `probe_random_utility`: nats per masked wordpiece.

        log p(y|z,x) - log p(y|null,x), summed over the sentences that have such a passage and divided by their
        masked wordpieces; left out if no sentence has one.
        """
        size, rows_PB = len(self.masked), np.stack([self.rows[name] for name in PROBES])
        there_PB = rows_PB >= 0
        if not there_PB.any():
            return {}
        owners = np.concatenate([np.arange(size), there_PB.nonzero()[1]])
        rows_N = np.concatenate([np.full(size, NULL), rows_PB[there_PB]])
        with evaluating(reader):
            candidate_reader = passage_reader(self._params, reader, self._passages, self._special)
            reading = candidate_reader.read([self.masked[owner] for owner in owners], rows_N[:, None])
        log_reader_N = reading.log_probs_BK[:, 0].double().cpu().numpy()
        utility_PB = np.zeros(there_PB.shape)
        utility_PB[there_PB] = log_reader_N[size:] - log_reader_N[owners[size:]]
        words_B = np.array([len(sentence.positions) for sentence in self.masked])
        return {
            f"probe_{name}_utility": float(utility_B[there_B].sum() / words_B[there_B].sum())
            for name, utility_B, there_B in zip(PROBES, utility_PB, there_PB, strict=True)
            if there_B.any()
        }


class StalenessProbe:
    """Compares the current index with a fresh one for fixed queries.

    `origins` are the passages that the queries come from, which are excluded as in training.
    """

    def __init__(
        self, policy: CandidatePolicy, queries: Sequence[np.ndarray], origins: np.ndarray, passages: int, seed: int
    ):
        self._policy, self._queries, self._origins = policy, queries, origins
        self._places = max(1, policy.passages)
        generator = numpy_generator(seed, "staleness-probe")
        self._sample = np.sort(generator.permutation(passages)[:SAMPLED_PASSAGES])

    @torch.no_grad()
    def exact(self, retriever: Retriever, fresh: Retriever) -> dict[str, float]:
        """Return the drift of the index of `retriever` from the index of `fresh`, made by the current weights."""
        with evaluating(retriever.embedder):
            query_BD = retriever.embed_queries(self._queries)
            fresh_BK = self._find(fresh, query_BD, self._places)
            assert fresh.index is not None
            fresh_ND = fresh.index.embeddings_ND
            return self._drift(retriever, query_BD, fresh_BK, lambda rows: fresh_ND[torch.from_numpy(rows)])

    @torch.no_grad()
    def sampled(self, retriever: Retriever) -> tuple[dict[str, float], np.ndarray]:
        """Return the drift estimated from few fresh vectors, and the rows that are embedded for it, [P]: a fixed sample
        and the top results of the index. The estimate assumes that a fresh index finds only these rows, so its overlap
        is at least the exact one, and grows if fewer passages are embedded."""
        with evaluating(retriever.embedder):
            query_BD = retriever.embed_queries(self._queries)
            searched_BD = retriever.search_queries(self._queries, query_BD)
            deep_BK = self._find(retriever, searched_BD, self._places * DEPTH)
            pool_P = np.union1d(self._sample, deep_BK[deep_BK >= 0])
            fresh_PD = retriever.embed_passages(pool_P)

            def fresh_vectors(rows: np.ndarray) -> Tensor:
                return fresh_PD[torch.from_numpy(np.searchsorted(pool_P, rows))]

            search, exclude = ExactSearch(fresh_PD, torch.float32), self._exclusion(retriever, pool_P)
            place_BK = search.search(query_BD, self._places, exclude).rows_BK.cpu().numpy()
            fresh_BK = np.where(place_BK >= 0, pool_P[place_BK], ABSENT)
            found = self._drift(retriever, query_BD, fresh_BK, fresh_vectors)
            return {f"{name}_sampled": value for name, value in found.items()}, pool_P

    def _exclusion(self, retriever: Retriever, pool_P: np.ndarray | None = None) -> Exclusion | None:
        """Return the rows that each query must not find, when searching the whole corpus or the passages `pool_P`."""
        exclude = self._policy.exclusion(retriever, self._origins)
        if exclude is None or pool_P is None:
            return exclude
        pool = to_device(pool_P, retriever.device)
        return exclude._replace(group_N=pool if exclude.group_N is None else exclude.group_N[pool])

    def _find(self, retriever: Retriever, query_BD: Tensor, count: int) -> np.ndarray:
        return retriever.find(query_BD, count, self._exclusion(retriever), exactly=True)  # search errors are no drift

    def _drift(
        self, retriever: Retriever, query_BD: Tensor, fresh_BK: np.ndarray, fresh: Callable[[np.ndarray], Tensor]
    ) -> dict[str, float]:
        stale_BK = self._find(retriever, retriever.search_queries(self._queries, query_BD), self._places)
        return drift(stale_BK, fresh_BK, _scores(query_BD, stale_BK, fresh), _scores(query_BD, fresh_BK, fresh))


def _scores(query_BD: Tensor, rows_BK: np.ndarray, vectors: Callable[[np.ndarray], Tensor]) -> Tensor:
    """Return f(x, z), [B, K]; NO_SCORE for negative rows."""
    there_BK = rows_BK >= 0
    query_M = to_device(np.nonzero(there_BK)[0], query_BD.device)
    vectors_MD = vectors(rows_BK[there_BK]).to(query_BD)
    score_M = true_scores(query_BD, vectors_MD, query_M, torch.arange(len(vectors_MD), device=query_BD.device))
    score_BK = torch.full(rows_BK.shape, NO_SCORE, device=query_BD.device)
    score_BK[to_device(there_BK, query_BD.device)] = score_M
    return score_BK
