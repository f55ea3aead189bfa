"""Linked passages: paths and their beam search against all paths, and graphs against a loop over neighbours."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib.rivals.models.linked import RELATIONS, GraphModel, Path, PathModel, best_paths
from realm_lab.engine.models.encoder import Encoder, EncoderShape
from tests.tiny_system import scramble

SIZE, PASSAGES = 8, 7
LINKS = {0: [3, 4], 1: [4, 5], 2: [0], 3: [6], 4: [2, 6], 5: [], 6: [1]}
FIRST = [0, 1, 2]


@pytest.fixture(scope="module")
def model() -> PathModel:
    generator = torch.Generator().manual_seed(0)
    made = PathModel(Encoder(EncoderShape(10, SIZE, 1, 2, 16, 64)), generator).eval()
    scramble(made, 1, 0.5)
    return made


@pytest.fixture(scope="module")
def vectors_PD() -> Tensor:
    return torch.randn(PASSAGES, SIZE, generator=torch.Generator().manual_seed(2))


class ByHand:
    """The equations in float64, one passage at a time."""

    def __init__(self, model: PathModel, vectors_PD: Tensor):
        state = {name: value.detach().double().numpy() for name, value in model.state_dict().items()}
        self.vectors = vectors_PD.double().numpy()
        self._state = state
        norm = [state[f"encoder.blocks.0.output_norm.{part}"] for part in ("weight", "bias")]
        end = state["end"]
        self.end = (end - end.mean()) / math.sqrt(end.var() + 1e-12) * norm[0] + norm[1]

    def states(self, rows: Sequence[int]) -> list[np.ndarray]:
        found = [self._state["start"]]
        for row in rows:
            both = np.concatenate([found[-1], self.vectors[row]])
            linear = self._state["transition.weight"] @ both + self._state["transition.bias"]
            found.append(self._state["gain"] * linear / np.linalg.norm(linear))
        return found

    def probability(self, state: np.ndarray, vector: np.ndarray) -> float:
        return float(1 / (1 + np.exp(-(state @ vector + self._state["bias"][0]))))

    def path(self, rows: Sequence[int]) -> float:
        """The probability of a path with its end."""
        states = self.states(rows)
        steps = [self.probability(state, self.vectors[row]) for state, row in zip(states, rows, strict=False)]
        return math.prod(steps) * self.probability(states[-1], self.end)


def test_the_loss_is_the_binary_cross_entropy_of_each_step(model: PathModel, vectors_PD: Tensor) -> None:
    hand, length = ByHand(model, vectors_PD), 2
    terms = []
    for step, state in enumerate(hand.states(range(length))):
        for row in range(PASSAGES):
            if row == step or row >= length:
                p = hand.probability(state, hand.vectors[row])
                terms.append(-math.log(p if row == step and step < length else 1 - p))
        p = hand.probability(state, hand.end)
        terms.append(-math.log(p if step == length else 1 - p))
    assert len(terms) == 3 * (PASSAGES - length + 1) + 2
    assert model.loss(vectors_PD, length).item() == pytest.approx(np.mean(terms), rel=1e-5)


def all_paths(hand: ByHand, longest: int) -> list[Path]:
    """Every path that the rules allow, best first."""
    found = []
    for length in range(1, longest + 1):
        for rows in itertools.permutations(range(PASSAGES), length):
            states, offered = hand.states(rows), FIRST
            for step, row in enumerate(rows):
                if row not in offered:
                    break
                taken = rows[: step + 1]
                best = sorted(offered, key=lambda other: -hand.probability(states[step], hand.vectors[other]))[:2]
                offered = [other for other in dict.fromkeys((*LINKS[row], *best)) if other not in taken]
            else:
                found.append(Path(rows, math.log(hand.path(rows))))
    return sorted(found, key=lambda path: -path.log_prob)


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_a_wide_beam_finds_the_best_of_all_paths(model: PathModel, vectors_PD: Tensor, longest: int) -> None:
    expected = all_paths(ByHand(model, vectors_PD), longest)
    asked: list[int] = []

    def encode(rows: Sequence[int]) -> Tensor:
        asked.extend(rows)
        return vectors_PD[list(rows)]

    found = best_paths(model, encode, FIRST, LINKS.__getitem__, 1000, longest)
    assert [path.rows for path in found] == [path.rows for path in expected]
    np.testing.assert_allclose([path.log_prob for path in found], [path.log_prob for path in expected], rtol=1e-4)
    assert len(asked) == len(set(asked))  # each passage is encoded once
    narrow = best_paths(model, encode, FIRST, LINKS.__getitem__, 4, longest)
    assert len(narrow) == min(4, len(expected))
    assert {path.rows for path in narrow} <= {path.rows for path in expected}


def test_a_beam_of_one_is_greedy(model: PathModel, vectors_PD: Tensor) -> None:
    hand = ByHand(model, vectors_PD)
    [only] = best_paths(model, lambda rows: vectors_PD[list(rows)], FIRST, LINKS.__getitem__, 1, 3)
    assert only.rows[0] == max(FIRST, key=lambda row: hand.probability(hand.states([])[0], hand.vectors[row]))
    assert only.log_prob == pytest.approx(math.log(hand.path(only.rows)), rel=1e-4)


SIZE, NODES = 8, 6


def graph_model(layers: int) -> GraphModel:
    made = GraphModel(Encoder(EncoderShape(10, SIZE, 1, 2, 16, 64)), layers, torch.Generator().manual_seed(0))
    scramble(made, 1, 0.3)
    return made


def graph() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    relations_RNN = torch.rand(RELATIONS, NODES, NODES, generator=generator) < 0.4
    relations_RNN[1, 2] = False  # a passage without neighbours in a relation
    return torch.randn(NODES, SIZE, generator=generator), relations_RNN


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_layers_are_means_over_neighbours_of_each_relation(layers: int) -> None:
    made, (vectors_ND, relations_RNN) = graph_model(layers), graph()
    state = {name: value.detach().double().numpy() for name, value in made.state_dict().items()}
    z = vectors_ND.double().numpy()
    for layer in range(layers):
        new = []
        for i in range(NODES):
            total = state[f"own.{layer}.weight"] @ z[i] + state[f"own.{layer}.bias"]
            for r, matrix in enumerate(np.split(state[f"related.{layer}.weight"], RELATIONS)):
                neighbours = [j for j in range(NODES) if relations_RNN[r, i, j]]
                if neighbours:
                    total = total + np.mean([matrix @ z[j] for j in neighbours], axis=0)
            new.append(np.maximum(total, 0))
        z = np.stack(new)
    logits = z @ state["chosen.weight"][0] + state["chosen.bias"][0]
    np.testing.assert_allclose(made(vectors_ND, relations_RNN).detach(), logits, rtol=1e-4, atol=1e-5)
    positive_N = torch.tensor([False, True, False, False, True, False])
    expected = -math.log(sum(np.exp(logits)[[1, 4]]) / sum(np.exp(logits)))
    assert made.loss(vectors_ND, relations_RNN, positive_N).item() == pytest.approx(expected, rel=1e-4)
