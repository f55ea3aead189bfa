"""The reader's probe: what the reader gains from passages that nobody had to retrieve, on held-out sentences."""

# Shapes: B sentences, K candidates, M masked positions, N pairs of sentence and passage

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from realm_lab.core.seeding import numpy_generator
from realm_lab.corpus.store import Passages, Sentences
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.evaluation.utility import mask_first_span, spread
from realm_lab.masking import MaskedSentence
from realm_lab.models.inputs import pad_positions
from realm_lab.models.marginal import read_candidates
from realm_lab.models.reader import Reader
from realm_lab.models.realm import candidate_log_probs, reader_log_probs, retrieval_utility
from realm_lab.params.parameters import Params
from realm_lab.retrieval.retriever import ABSENT, NULL, Retriever

PROBES = ("gold", "same_article", "random")


class ReaderProbe:
    """What the reader gains from passages that nobody had to retrieve, on a fixed set of held-out sentences.

    Each sentence has its first salient span masked, and is read with
      gold: the passage known to hold the answer (Sentences.gold); where none is known but the passage of origin is
        (X = Z), another passage of the article of origin that holds the answer - never the origin, which holds the
        sentence itself;
      same article: a passage of that article that holds the answer nowhere (as wordpieces), nor is the origin;
      random: any passage of another article.
    Choices among several are drawn from `seed`; a sentence without such a passage does not count there.
    """

    def __init__(self, params: Params, sentences: Sentences, passages: Passages, special: SpecialIds, seed: int):
        self._params, self._settings = params, params.pretrain
        self._passages, self._special = passages, special
        with_span = np.flatnonzero(np.asarray(sentences.spans.lengths) > 0)
        count = self._settings.watch.sentences if len(with_span) else 0
        self.numbers = with_span[spread(len(with_span), count)] if count else with_span[:0]
        self.masked = [mask_first_span(sentences, int(number), special.mask) for number in self.numbers]
        self._origins_B = np.asarray(sentences.origins[self.numbers], np.int64)
        golds = np.asarray(sentences.gold[self.numbers], np.int64)
        articles = np.asarray(passages.articles)
        self.rows: dict[str, np.ndarray] = {name: np.full(len(self.masked), ABSENT, np.int64) for name in PROBES}
        for place, (sentence, origin, gold) in enumerate(zip(self.masked, self._origins_B, golds, strict=True)):
            generator = numpy_generator(seed, "reader-probe", int(self.numbers[place]))
            for name, choices in self._choices(sentence, int(origin), int(gold), articles).items():
                if len(choices):
                    self.rows[name][place] = generator.choice(choices)

    def _choices(self, sentence: MaskedSentence, origin: int, gold: int, articles: np.ndarray) -> dict[str, np.ndarray]:
        known = gold if gold >= 0 else origin
        article = int(articles[known]) if known >= 0 else None
        nobody = np.empty(0, np.int64)
        if article is None:
            return {"gold": nobody, "same_article": nobody, "random": np.arange(len(articles))}
        others = np.setdiff1d(np.flatnonzero(articles == article), [origin, gold])
        holds = np.array([holds_wordpieces(self._passages.bodies[row], sentence.targets) for row in others], bool)
        return {
            "gold": np.array([gold]) if gold >= 0 else others[holds],
            "same_article": others[~holds],
            "random": np.flatnonzero(articles != article),
        }

    @torch.no_grad()
    def measure(self, reader: Reader) -> dict[str, float]:
        """`probe_gold_utility`, `probe_same_article_utility`, `probe_random_utility`: nats per masked wordpiece.

        log p(y|z,x) - log p(y|null,x), summed over the sentences that have such a passage and divided by their
        masked wordpieces; left out where no sentence has one.
        """
        pairs = [(place, row) for name in PROBES for place, row in enumerate(self.rows[name]) if row >= 0]
        size = len(self.masked)
        owners = np.array([*range(size), *(place for place, _ in pairs)], np.int64)
        rows_N = np.array([*[NULL] * size, *(row for _, row in pairs)], np.int64)
        if not pairs:
            return {}
        with evaluating(reader):
            log_reader_N = self._read(reader, owners, rows_N[:, None])[:, 0].double().cpu().numpy()
        utility = log_reader_N[size:] - log_reader_N[owners[size:]]
        words_B = np.array([len(sentence.positions) for sentence in self.masked])
        values, start = {}, 0
        for name in PROBES:
            there = self.rows[name] >= 0
            if there.any():
                part = utility[start : start + int(there.sum())]
                values[f"probe_{name}_utility"] = float(part.sum() / words_B[there].sum())
                start += len(part)
        return values

    @torch.no_grad()
    def retrieved_utility(self, retriever: Retriever, reader: Reader) -> float:
        """Mean over the sentences of sum_z p(z|x) RU(z|x), nats per span, with the retriever as it is.

        Candidates are found as in training (index, count, trivial candidate); without a null document among them,
        one is read for comparison only. Zero without sentences.
        """
        settings, null = self._settings, self._settings.null_document != "off"
        if not self.masked:
            return 0.0
        queries = [sentence.tokens for sentence in self.masked]
        trivial = None if settings.exclude_trivial == "off" else self._origins_B
        with evaluating(reader, retriever.embedder):
            query_BD = retriever.embed_queries(queries)
            search_BD = query_BD if settings.search_query == "fresh" else retriever.search_queries(queries)
            wanted = max(settings.candidates, settings.over_retrieve + int(null))
            by_article = settings.exclude_trivial == "article"
            rows_BK = retriever.find(search_BD, wanted, null=null, trivial=trivial, by_article=by_article)
            if settings.over_retrieve:
                rows_BK = retriever.rerank(query_BD, rows_BK, settings.candidates)
            prior_BK = candidate_log_probs(retriever.score(query_BD, rows_BK)).exp()
            nulls_B1 = np.full((len(queries), 0 if null else 1), NULL, np.int64)
            read_BK = np.concatenate([nulls_B1, rows_BK], axis=1)
            log_reader_BK = self._read(reader, np.arange(len(queries)), read_BK)
        utility_BK = retrieval_utility(log_reader_BK, log_reader_BK[:, 0])[:, nulls_B1.shape[1] :]
        return float((prior_BK * utility_BK).sum(1).mean())

    def _read(self, reader: Reader, owners: np.ndarray, rows_NK: np.ndarray) -> Tensor:
        """log p(y|z,x) of the sentences `owners`, each with its row of passages, [N, K]."""
        chosen = [self.masked[owner] for owner in owners]
        at_NM, is_masked_NM = pad_positions([sentence.positions for sentence in chosen])
        targets_NM, _ = pad_positions([sentence.targets for sentence in chosen])
        corpus = self._params.corpus
        token_NKM = read_candidates(
            reader,
            [sentence.tokens for sentence in chosen],
            at_NM,
            targets_NM,
            rows_NK,
            self._passages,
            self._special,
            max_length=corpus.sentence_length + corpus.passage_length,
            token_budget=self._params.launch.token_budget,
            precision=self._params.model.precision,
        )
        return reader_log_probs(token_NKM, is_masked_NM.to(token_NKM.device))


def holds_wordpieces(body: np.ndarray, answer: Sequence[int] | np.ndarray) -> bool:
    """Whether the wordpieces of `answer` stand in `body`, one after the other."""
    if len(body) < len(answer):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(body), len(answer))
    return bool((windows == np.asarray(answer)).all(1).any())


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards every part as it was."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
