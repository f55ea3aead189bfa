"""DrQA's document reader (Chen et al. 2017, section 3.2): LSTMs over passage and question, bilinear starts and ends."""

# Shapes: N pairs of a question and a passage, L positions of the joined sequence, P positions of the passage, Q of the
# question, E word vector, H output of an encoder, W span widths

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from realm_lab.engine.models.inputs import Batch
from realm_lab.engine.models.reader import NO_SPAN


class Segment(NamedTuple):
    """One of the two segments of a joined batch, without [CLS] and [SEP]."""

    tokens_NP: Tensor
    mask_NP: Tensor
    at_NP: Tensor  # position of each in the joined sequence


class Endpoints(NamedTuple):
    """Unnormalised scores of every position of a passage as the start and as the end, NO_SPAN outside it."""

    start_NP: Tensor
    end_NP: Tensor
    passage: Segment


class StackedLstm(nn.Module):
    """Stacked bidirectional LSTMs; the output concatenates all of them."""

    def __init__(self, input_size: int, hidden_size: int, layers: int, dropout: float):
        super().__init__()
        sizes = [input_size, *[2 * hidden_size] * (layers - 1)]
        self.layers = nn.ModuleList(nn.LSTM(s, hidden_size, batch_first=True, bidirectional=True) for s in sizes)
        self.dropout = dropout

    def forward(self, states_NPE: Tensor, mask_NP: Tensor) -> Tensor:
        lengths_N = mask_NP.sum(1).clamp(min=1).cpu()
        # without instructions for bfloat16, oneDNN has no LSTM in it
        is_float32 = states_NPE.is_cpu and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        outputs = []
        for lstm in self.layers:
            dropped_NPE = functional.dropout(states_NPE, self.dropout, self.training)
            packed = pack_padded_sequence(dropped_NPE, lengths_N, batch_first=True, enforce_sorted=False)
            with torch.autocast("cpu", enabled=False) if is_float32 else nullcontext():
                states_NPE = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=mask_NP.shape[1])[0]
            outputs.append(states_NPE)
        return functional.dropout(torch.cat(outputs, 2), self.dropout, self.training)


class DocumentReader(nn.Module):
    """Finds start and end of an answer, in pairs joined as [CLS] x [SEP] z [SEP].

    The input of a passage's wordpiece is its vector, the question aligned to it, a flag for wordpieces of the question,
    and its frequency in the passage.
    """

    LAYERS = 3

    def __init__(self, vocabulary_size: int, embedding_size: int, hidden_size: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.words = nn.Embedding(vocabulary_size, embedding_size)
        self.align = nn.Linear(embedding_size, embedding_size)
        self.passage_encoder = StackedLstm(2 * embedding_size + 2, hidden_size, self.LAYERS, dropout)
        self.question_encoder = StackedLstm(embedding_size, hidden_size, self.LAYERS, dropout)
        size = 2 * hidden_size * self.LAYERS
        self.question_attention = nn.Linear(size, 1)
        self.start, self.end = nn.Linear(size, size), nn.Linear(size, size)

    def endpoints(self, batch: Batch) -> Endpoints:
        """Return scores of starts and ends; p(start) and p(end) are their softmax over a passage."""
        question, passage = _segment(batch, 0), _segment(batch, 1)
        question_NQE, passage_NPE = (
            functional.dropout(self.words(part.tokens_NP), self.dropout, self.training) for part in (question, passage)
        )
        aligned_NPE = self._aligned(passage_NPE, question_NQE, question.mask_NP)
        features = passage_NPE, aligned_NPE, _counted(passage, question)
        passage_NPH = self.passage_encoder(torch.cat(features, 2), passage.mask_NP)
        question_NQH = self.question_encoder(question_NQE, question.mask_NP)
        weight_NQ = self.question_attention(question_NQH)[:, :, 0].masked_fill(~question.mask_NP, NO_SPAN).softmax(1)
        question_NH = torch.einsum("nq,nqh->nh", weight_NQ, question_NQH)
        start_NP, end_NP = (
            torch.einsum("nph,nh->np", passage_NPH, score(question_NH)).float().masked_fill(~passage.mask_NP, NO_SPAN)
            for score in (self.start, self.end)
        )
        return Endpoints(start_NP, end_NP, passage)

    def span_logits(self, batch: Batch, max_width: int) -> Tensor:
        """Return start plus end of every span inside the passage, float32 [N, L, W], laid out as
        `Reader.span_logits`."""
        start_NP, end_NP, passage = self.endpoints(batch)
        logits_NLW = start_NP.new_full((*batch.tokens_BL.shape, max_width), NO_SPAN)
        for width in range(min(max_width, start_NP.shape[1])):
            size = start_NP.shape[1] - width
            inside = passage.mask_NP[:, width:]
            pairs, positions = inside.nonzero(as_tuple=True)
            spans_NP = start_NP[:, :size] + end_NP[:, width:]
            logits_NLW[pairs, passage.at_NP[pairs, positions], width] = spans_NP[inside]
        return logits_NLW

    def _aligned(self, passage_NPE: Tensor, question_NQE: Tensor, mask_NQ: Tensor) -> Tensor:
        """Return the mean of the question's words for each word of the passage, weighted by its attention to them."""
        score_NPQ: Tensor = self.align(passage_NPE).relu() @ self.align(question_NQE).relu().transpose(1, 2)
        return score_NPQ.masked_fill(~mask_NQ[:, None], NO_SPAN).softmax(2) @ question_NQE


def _segment(batch: Batch, number: int) -> Segment:
    inside_NL = (batch.types_BL == number) & batch.mask_BL
    size_N = inside_NL.sum(1) - (2 - number)  # [CLS] x [SEP], z [SEP]
    first_N = inside_NL.int().argmax(1) + (1 - number)
    at_NP = first_N[:, None] + torch.arange(max(1, int(size_N.max())), device=size_N.device)
    mask_NP = at_NP < (first_N + size_N)[:, None]
    at_NP = at_NP.clamp(max=inside_NL.shape[1] - 1)
    return Segment(batch.tokens_BL.gather(1, at_NP), mask_NP, at_NP)


def _counted(passage: Segment, question: Segment) -> Tensor:
    """Return, per wordpiece of the passage, a flag for those in the question, and its frequency, [N, P, 2]."""
    shared, own = (
        (passage.tokens_NP[:, :, None] == part.tokens_NP[:, None]) & part.mask_NP[:, None]
        for part in (question, passage)
    )
    size_N1 = passage.mask_NP.sum(1, keepdim=True).clamp(min=1)
    return torch.stack([shared.any(2).float(), own.float().sum(2) / size_N1], 2)
