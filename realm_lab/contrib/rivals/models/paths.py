"""Score and search paths of passages step by step (Asai et al. 2020, "Learning to Retrieve Reasoning Paths ...").

A passage's vector w is the [CLS] of the question with it; a state h summarises the passages so far. Each step scores
every candidate by P(p | h) = sigmoid(w . h + b), and also the end of the evidence, a learned vector; a path's
probability is the product of its steps. h' = g a / |a| with a = W [h; w] and a learned g (section 3.1; the released
code has no other non-linearity).
"""

# Shapes: P passages, T passages of a path, D hidden size, C candidates

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from realm_lab.models.encoder import Block, Encoder

STAYING = 2  # candidates of the step before that are so again (released code)


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
        """Return the vector for the end of the evidence, [D]: through BERT's last LayerNorm, as every passage is."""
        last = self.encoder.blocks[-1]
        assert isinstance(last, Block)
        end_D: Tensor = last.output_norm(self.end)
        return end_D

    def next_state(self, state_D: Tensor, vector_D: Tensor) -> Tensor:
        """Return the state after one more passage, of length `gain`."""
        return self.gain * functional.normalize(self.transition(torch.cat([state_D, vector_D])), dim=0)

    def logits(self, state_D: Tensor, vectors_CD: Tensor) -> Tensor:
        """Return the logit of each candidate of a step, [C]."""
        return vectors_CD @ functional.dropout(state_D, self._dropout, self.training) + self.bias

    def loss(self, vectors_PD: Tensor, length: int) -> Tensor:
        """Return the binary cross-entropy of a gold path, whose passages are the first `length`: at each of its steps
        against the other passages and the end, then the end against them; the mean over steps and candidates."""
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
