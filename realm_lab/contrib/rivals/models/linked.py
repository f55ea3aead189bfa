"""Models that judge the linked passages of a question together: one Transformer gives the vector of [CLS] for each
[CLS] x [SEP] z [SEP], and a graph or a path is computed from these vectors.

GraphModel (Min et al. 2019, "Knowledge Guided Text Retrieval ..."): a layer is z' = relu(W_0 z + sum over relations r
of the mean of W_r z_j over the passages j in relation r to z); a passage is chosen by the softmax of w . z. Without
layers each passage is judged separately, and chosen among all (the paper's ParReader++).

PathModel (Asai et al. 2020, "Learning to Retrieve Reasoning Paths ..."): a state h summarises the passages so far. Each
step scores every candidate p by P(p | h) = sigmoid(w . h + b), with w the vector of p, and the end of the evidence with
a learned w. A path's probability is the product of its steps. h' = g a / |a| with a = W [h; w] + c and learned g
(section 3.1; the released code has no other non-linearity).
"""

# Shapes: N pairs (question, passage) or passages of a question, P passages, T passages of a path, R relations,
# D hidden size, C candidates

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from realm_lab.engine.core.flop import computed
from realm_lab.engine.core.process import autocast
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.encoder import Block, Encoder
from realm_lab.engine.models.inputs import Batch, join, length_groups
from realm_lab.engine.params.parameters import Params

RELATIONS = 3  # links to, is linked from, has the same title (links.py)
STAYING = 2  # best candidates of a step that remain candidates in the next (released code)


class PairEncoder:
    """An encoder with the passages that it reads, without their titles, as the readers do."""

    def __init__(self, params: Params, encoder: Encoder, passages: Passages, special: SpecialIds):
        self.encoder, self._passages, self._special = encoder, passages, special
        self._longest = params.corpus.sentence_length + params.corpus.passage_length
        self._launch, self._precision = params.launch, params.model.precision
        self._device = next(encoder.parameters()).device

    def vectors(self, queries: Sequence[np.ndarray], rows: Sequence[int]) -> Tensor:
        """Return the vector of each question with its passage, float32 [N, D]; differentiable."""
        bodies = [self._passages.bodies[row] for row in rows]
        lengths = [min(self._longest, len(q) + len(body) + 3) for q, body in zip(queries, bodies, strict=True)]
        groups, parts = length_groups(lengths, self._launch.token_budget), []
        for group in groups:
            batch = join([queries[i] for i in group], [bodies[i] for i in group], self._special, self._longest)
            parts.append(computed(self._launch.recompute, self._first, batch.to(self._device)))
        return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate(groups))).to(self._device)]

    def _first(self, batch: Batch) -> Tensor:
        with autocast(self._device, self._precision):
            at_N1 = torch.zeros(len(batch.tokens_BL), 1, dtype=torch.int64, device=self._device)
            hidden_N1D: Tensor = self.encoder(*batch, at_N1)
            return hidden_N1D[:, 0].float()


class GraphModel(nn.Module):
    """The encoder of questions with passages, and the layers over their relations."""

    def __init__(self, encoder: Encoder, layers: int, generator: torch.Generator):
        super().__init__()
        size = encoder.shape.hidden_size
        self.encoder = encoder
        self.own = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))
        self.related = nn.ModuleList(nn.Linear(size, RELATIONS * size, bias=False) for _ in range(layers))
        self.chosen = nn.Linear(size, 1)
        for linear in (*self.own, *self.related, self.chosen):
            assert isinstance(linear, nn.Linear)
            nn.init.normal_(linear.weight, 0.0, linear.in_features**-0.5, generator=generator)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, vectors_ND: Tensor, relations_RNN: Tensor) -> Tensor:
        """Return the logit of each passage of a question, [N]; `relations_RNN[r, i, j]`: j is in relation r to i."""
        mean_RNN = relations_RNN.float() / relations_RNN.sum(2, keepdim=True).clamp(min=1)
        for own, related in zip(self.own, self.related, strict=True):
            sent_RND = torch.stack(related(vectors_ND).chunk(RELATIONS, dim=1))
            vectors_ND = torch.relu(own(vectors_ND) + (mean_RNN @ sent_RND).sum(0))
        chosen_N1: Tensor = self.chosen(vectors_ND)
        return chosen_N1[:, 0]

    def loss(self, vectors_ND: Tensor, relations_RNN: Tensor, positive_N: Tensor) -> Tensor:
        """Return -log of the probability that a passage with the answer is chosen."""
        log_prob_N: Tensor = self(vectors_ND, relations_RNN).log_softmax(0)
        return -log_prob_N[positive_N].logsumexp(0)


class Path(NamedTuple):
    """Passages in the order in which they are read, and the log-probability of the path, its end included."""

    rows: tuple[int, ...]
    log_prob: float


class PathModel(nn.Module):
    """The encoder of questions with passages, and the recurrent state."""

    def __init__(self, encoder: Encoder, generator: torch.Generator):
        super().__init__()
        size = encoder.shape.hidden_size
        self.encoder, self._dropout = encoder, encoder.shape.dropout
        self.start = nn.Parameter(torch.empty(size).uniform_(-0.1, 0.1, generator=generator))
        self.end = nn.Parameter(torch.empty(size).uniform_(-0.1, 0.1, generator=generator))
        self.transition = nn.Linear(2 * size, size)
        nn.init.normal_(self.transition.weight, 0.0, (2 * size) ** -0.5, generator=generator)
        nn.init.zeros_(self.transition.bias)
        self.gain, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def end_vector(self) -> Tensor:
        """Return the vector for the end of the evidence, [D]: through BERT's last LayerNorm, like a passage's."""
        last = self.encoder.blocks[-1]
        assert isinstance(last, Block)
        end_D: Tensor = last.output_norm(self.end)
        return end_D

    def next_state(self, state_D: Tensor, vector_D: Tensor) -> Tensor:
        """Return the state after one more passage, a vector of length `gain`."""
        return self.gain * functional.normalize(self.transition(torch.cat([state_D, vector_D])), dim=0)

    def logits(self, state_D: Tensor, vectors_CD: Tensor) -> Tensor:
        """Return the logit of each candidate of a step, [C]."""
        return vectors_CD @ functional.dropout(state_D, self._dropout, self.training) + self.bias

    def loss(self, vectors_PD: Tensor, length: int) -> Tensor:
        """Return the binary cross-entropy of a gold path, the first `length` passages: each of them against the other
        passages (not of the path) and the end, then the end against these passages. Mean over steps and candidates."""
        candidates_CD = torch.cat([vectors_PD, self.end_vector()[None]])
        states: list[Tensor] = [self.start]
        wanted = [*range(length), len(vectors_PD)]
        for vector_D in vectors_PD[:length]:
            states.append(self.next_state(states[-1], vector_D))
        logits_TC = torch.stack([self.logits(state_D, candidates_CD) for state_D in states])
        target_TC = functional.one_hot(torch.tensor(wanted, device=logits_TC.device), len(candidates_CD)).float()
        counts_TC = target_TC.bool() | (torch.arange(len(candidates_CD), device=logits_TC.device) >= length)
        return functional.binary_cross_entropy_with_logits(logits_TC[counts_TC], target_TC[counts_TC])


class _Open(NamedTuple):
    """A path that has not ended."""

    rows: tuple[int, ...]
    log_prob: float
    state_D: Tensor
    candidates: list[int]  # of its next step


@torch.no_grad()
def best_paths(
    model: PathModel,
    encode: Callable[[Sequence[int]], Tensor],
    first: Sequence[int],
    linked: Callable[[int], Sequence[int]],
    beam: int,
    longest: int,
) -> list[Path]:
    """Search the paths of largest probability with a beam, best first, at most `beam`.

    A path starts with one of `first`; it continues with passages linked from its last one or with the best two of the
    step before, or ends. With `longest` passages it can only end. `encode` gives the vectors of passages, [C, D].
    """
    vectors: dict[int, Tensor] = {}
    end_D, ended = model.end_vector(), list[Path]()
    open_paths = [_Open((), 0.0, model.start, list(dict.fromkeys(first)))]
    while open_paths:
        new = sorted({row for path in open_paths for row in path.candidates} - vectors.keys())
        vectors |= dict(zip(new, encode(new), strict=True)) if new else {}
        found: list[Path | _Open] = list(ended)
        for path in open_paths:
            states = [*(vectors[row] for row in path.candidates), end_D]
            scores = functional.logsigmoid(model.logits(path.state_D, torch.stack(states))).tolist()
            steps = sorted(zip(scores, path.candidates, strict=False), reverse=True)
            stay = [row for _, row in steps[:STAYING]]
            for score, row in steps[:beam]:
                rows = (*path.rows, row)
                after = [] if len(rows) == longest else list(dict.fromkeys([*linked(row), *stay]))
                state_D = model.next_state(path.state_D, vectors[row])
                left = [other for other in after if other not in rows]
                found.append(_Open(rows, path.log_prob + score, state_D, left))
            if path.rows:
                found.append(Path(path.rows, path.log_prob + scores[-1]))
        found = sorted(found, key=lambda path: -path.log_prob)[:beam]
        ended = [path for path in found if isinstance(path, Path)]
        open_paths = [path for path in found if isinstance(path, _Open)]
    return ended
