"""Answering questions by writing: from all passages at once, or from each with its probability (RAG)."""

# Shapes: B questions, K passages, C candidate answers, N = B * K, T wordpieces of a text

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.contrib.rivals.models.decoder import Example, Generator, Source, join_examples, write
from realm_lab.engine.core.process import autocast
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.evaluation.answers import Answer, Candidate
from realm_lab.engine.params.parameters import Params


class Written(NamedTuple):
    """An answer in wordpieces, and its log p(y|z,x) under each passage: one number if all are read together."""

    wordpieces: tuple[int, ...]
    log_reader_K: np.ndarray


@torch.no_grad()
def write_together(
    params: Params, model: Generator, special: SpecialIds, examples: Sequence[Example]
) -> Iterator[Written]:
    """Write greedy answers, each from all of its passages together, or only from the question."""
    passages = max(1, len(examples[0].seconds)) if examples else 1
    for _, source in _encoded(params, model, special, examples, passages):
        with autocast(source.mask_BS.device, params.model.precision):
            text_BT, total_B = write(model, source, special, params.finetune.max_span_wordpieces)
        for text_T, total in zip(text_BT, total_B.tolist(), strict=True):
            yield Written(_wordpieces(text_T, special), np.full(passages, total))


@torch.no_grad()
def write_marginal(
    params: Params,
    model: Generator,
    special: SpecialIds,
    examples: Sequence[Example],
    log_prior_QK: Tensor,
    marginal: str,
) -> Iterator[Written]:
    """Write RAG's answers. `sequence`: each passage gives a greedy answer, and the one of largest p(y|x) =
    sum_z p(z|x) p(y|z,x), over all passages, is chosen. `token`: one answer, greedy by the marginal of each word."""
    longest, passages = params.finetune.max_span_wordpieces, log_prior_QK.shape[1]
    for part, source in _encoded(params, model, special, examples, 1, passages):
        prior_BK = log_prior_QK[part]
        with autocast(source.mask_BS.device, params.model.precision):
            if marginal == "token":
                text_BT, _ = write(model, source, special, longest, prior_BK)
            else:
                own_NT, _ = write(model, source, special, longest)
                own_BCT = own_NT.view(*prior_BK.shape, -1)
                scored = [
                    (prior_BK + _scores(model, source, text_BT, special)).logsumexp(1) for text_BT in own_BCT.unbind(1)
                ]
                text_BT = own_BCT[torch.arange(len(own_BCT)), torch.stack(scored, 1).argmax(1)]
            log_reader_BK = _scores(model, source, text_BT, special)
        for text_T, log_reader_K in zip(text_BT, log_reader_BK, strict=True):
            yield Written(_wordpieces(text_T, special), log_reader_K.cpu().numpy())


def answer_of(
    tokenizer: Tokenizer, passages: Passages, written: Written, rows_K: np.ndarray, log_prior_K: np.ndarray
) -> Answer:
    """Return a written answer with its passages. Its source is the most likely passage that contains its text, else
    the most likely of all."""
    text, candidates = tokenizer.decode(list(written.wordpieces)), []
    for row, log_prior, log_reader in zip(rows_K.tolist(), log_prior_K, written.log_reader_K, strict=True):
        if row >= 0:
            at = passages.text.row(row)["body"].lower().find(text.lower())
            span, shown = ((at, at + len(text)), text) if at >= 0 else ((0, 0), "")
            candidates.append(Candidate(row, float(log_prior), float(log_reader), span, shown, written.wordpieces))
    worth = [(bool(candidate.text), candidate.log_prior + candidate.log_span) for candidate in candidates]
    return Answer(text, max(range(len(worth)), key=worth.__getitem__, default=0), candidates)


def _encoded(
    params: Params,
    model: Generator,
    special: SpecialIds,
    examples: Sequence[Example],
    joined: int,
    passages: int | None = None,
) -> Iterator[tuple[slice, Source]]:
    """Encode questions with their passages, at most launch.token_budget wordpieces at once. The states of every
    `joined` passages form one source."""
    longest = params.corpus.sentence_length + params.corpus.passage_length
    size = max(1, params.launch.token_budget // (longest * (passages or joined)))
    device = model.word_bias.device
    for start in range(0, len(examples), size):
        part = slice(start, start + size)
        batch = join_examples(examples[part], special, longest).to(device)
        with autocast(device, params.model.precision):
            source = model.encode(batch, joined)
        yield part, source


def _scores(model: Generator, source: Source, text_BT: Tensor, special: SpecialIds) -> Tensor:
    """Return log p(y|z,x) of one text for each question under each of its passages, [B, K]."""
    text_NT = text_BT.repeat_interleave(len(source.mask_BS) // len(text_BT), 0)
    log_probs_NT = model.target_log_probs(source, text_NT)
    return (log_probs_NT * (text_NT[:, 1:] != special.pad)).sum(1).view(len(text_BT), -1)


def _wordpieces(text_T: Tensor, special: SpecialIds) -> tuple[int, ...]:
    ids: list[int] = text_T[1:].tolist()
    return tuple(ids[: ids.index(special.sep)])
