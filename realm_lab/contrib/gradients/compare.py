"""Gradients of a finished run: the exact one at its weights, and every estimate that realm_lab can train with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from realm_lab.contrib import candidate_sources, objectives  # noqa: F401  # they register the estimates
from realm_lab.contrib.gradients.exact import Estimate, ExactGradient, Quality, drawn_from, scores_of, top_k
from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.corpus.vocabulary import wordpieces_by_id
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import RewardReader
from realm_lab.engine.models.objectives import COMPARES_NULL, OBJECTIVES, training_objective
from realm_lab.engine.models.rewards import training_reward
from realm_lab.engine.retrieval.candidate_sources import CANDIDATE_SOURCES, PassageSearch, QueryBatch
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.initial import initial_state
from realm_lab.engine.training.query_stream import QueryStream
from realm_lab.errors import UserError
from realm_lab.records.plugins import Choice

RANDOM = {"reinforce": {"draws": 1}, "jsa": {"draws": 16}}  # objectives that draw passages, with their options
SOURCES = ("batch", "random", "oracle")


class Gradients(NamedTuple):
    """Estimates of the retriever's gradient, compared with the exact gradient over all passages."""

    stage: str
    sentences: int
    passages: int
    exact_gflop: float
    estimates: list[Quality]
    left_out: dict[str, str]  # estimate -> reason


def compare_gradients(
    context: Context,
    stage: str,
    count: int,
    draws: int,
    ks: Sequence[int],
    note: Callable[[str], None] = lambda text: None,
) -> Gradients:
    """Compare estimates at the weights after `stage`, for the first `count` sentences of training. A random estimate
    has `draws` draws; `ks` are numbers of candidates, the null document included. UserError: the run has no such stage,
    or a causal language model as its reader."""
    params, device = context.params, context.device
    if stage not in context.run.stages:
        raise UserError(f"--stage {stage}: a {context.run.system} run has {', '.join(context.run.stages)}")
    if params.pretrain.causal_checkpoint is not None:
        raise UserError("gradients needs a trained reader; this run reads with a frozen causal language model")
    reader = context.load_reader(stage).to(device)
    embedder, null_offset = context.load_embedder(stage)
    retriever = context.retriever(embedder.to(device).eval(), null_offset)
    sentences, special, seed = context.sentences(), context.special, context.run.seed
    stream = QueryStream(params.pretrain, sentences, special.mask, seed, wordpieces_by_id(context.tokenizer))
    rows = stream.rows(0, min(count, len(stream)))
    masked = [stream.masked(int(row), numpy_generator(seed, "gradients", int(row))) for row in rows]
    origins, golds = np.asarray(sentences.origins[rows]), np.asarray(sentences.gold[rows])
    scores = scores_of(params, retriever, reader, masked, origins, note)
    exact_gradient = ExactGradient(params, retriever, reader, scores, seed)
    policy, left_out = CandidatePolicy.of(params.pretrain), dict[str, str]()

    def estimates() -> Iterator[Estimate]:
        for k in ks:
            yield Estimate(f"top {k}", partial(_always, top_k(scores, k, policy.null)))
        standard = top_k(scores, policy.count, policy.null)
        if stage == "pretrain":
            first = initial_state(context, "pretrain").embedder
            stale = context.retriever(first)
            with torch.no_grad():
                asked_by = first if params.pretrain.search_query == "stale" else embedder
                query_SD = retriever.embed_queries([one.query for one in masked], asked_by.eval()).double().cpu()
                assert stale.index is not None
                document_ND = stale.index.embeddings_ND[torch.arange(len(retriever.passages))].double().cpu()
            yield Estimate(
                f"top {policy.count}, index of the start",
                partial(_always, top_k(scores, policy.count, policy.null, query_SD @ document_ND.T)),
            )
        for name in OBJECTIVES:
            if name == "marginal":
                continue
            if name in COMPARES_NULL and not policy.null:
                left_out[name] = "it needs the null document among the candidates"
                continue
            choice = Choice(name, RANDOM.get(name, {}))
            objective = training_objective("pretrain.objective", choice)
            title = " ".join([name, *(f"{option} {value}" for option, value in choice.options.items())])
            yield Estimate(title, partial(_always, standard), objective, draws if name in RANDOM else 1)
        passages_U = np.unique(np.where(origins >= 0, origins, golds))
        for name in SOURCES:
            if name != "random" and not (passages_U >= 0).any():
                left_out[name] = "no sentence has a known passage"
                continue
            yield Estimate(
                name,
                drawn_from(
                    CANDIDATE_SOURCES[name].load(),
                    search,
                    lambda draw: QueryBatch(
                        passages_U[passages_U >= 0],
                        golds,
                        lambda number: numpy_generator(seed, "gradients", draw, number),
                    ),
                    policy.null,
                ),
                draws=1 if name == "batch" else draws,
            )
        yield Estimate("containment", partial(_always, standard), log_reader_SC=rewarded(context, masked))

    with torch.no_grad():
        queries = [one.query for one in masked]
        query_SD = retriever.embed_queries(queries)
        search = PassageSearch(retriever, queries, query_SD, policy.passages, policy.exclusion(retriever, origins))
    found = []
    for estimate in estimates():
        note(f"{estimate.name}: {estimate.draws} draw{'s' * (estimate.draws > 1)}")
        found.append(exact_gradient.quality(estimate))
    return Gradients(stage, len(masked), len(retriever.passages), exact_gradient.exact_gflop, found, left_out)


def _always(rows_SK: np.ndarray, draw: int) -> np.ndarray:
    return rows_SK


def rewarded(context: Context, masked: Sequence[MaskedSentence]) -> torch.Tensor:
    """Return log p(y|z,x) of the reward `containment` for the null document and every passage, [S, C]."""
    reward = training_reward(Choice("containment"))
    reader = RewardReader(reward, context.passages, context.special, torch.device("cpu"))
    rows_SC = np.tile(np.arange(-1, len(context.passages)), (len(masked), 1))
    return reader.read(masked, rows_SC).log_probs_BK.double()
