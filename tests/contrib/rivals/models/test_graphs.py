"""The mixing of related passages against a loop over neighbours, and the choice of a passage."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib.rivals.models.linked import RELATIONS, GraphModel
from realm_lab.engine.models.encoder import Encoder, EncoderShape
from tests.tiny_system import scramble

SIZE, PASSAGES = 8, 6


def model(layers: int) -> GraphModel:
    made = GraphModel(Encoder(EncoderShape(10, SIZE, 1, 2, 16, 64)), layers, torch.Generator().manual_seed(0))
    scramble(made, 1, 0.3)
    return made


def given() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    relations_RNN = torch.rand(RELATIONS, PASSAGES, PASSAGES, generator=generator) < 0.4
    relations_RNN[1, 2] = False  # a passage without neighbours in a relation
    return torch.randn(PASSAGES, SIZE, generator=generator), relations_RNN


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_layers_are_means_over_neighbours_of_each_relation(layers: int) -> None:
    made, (vectors_ND, relations_RNN) = model(layers), given()
    state = {name: value.detach().double().numpy() for name, value in made.state_dict().items()}
    z = vectors_ND.double().numpy()
    for layer in range(layers):
        new = []
        for i in range(PASSAGES):
            total = state[f"own.{layer}.weight"] @ z[i] + state[f"own.{layer}.bias"]
            for r, matrix in enumerate(np.split(state[f"related.{layer}.weight"], RELATIONS)):
                neighbours = [j for j in range(PASSAGES) if relations_RNN[r, i, j]]
                if neighbours:
                    total = total + np.mean([matrix @ z[j] for j in neighbours], axis=0)
            new.append(np.maximum(total, 0))
        z = np.stack(new)
    logits = z @ state["chosen.weight"][0] + state["chosen.bias"][0]
    np.testing.assert_allclose(made(vectors_ND, relations_RNN).detach(), logits, rtol=1e-4, atol=1e-5)
    positive_N = torch.tensor([False, True, False, False, True, False])
    expected = -math.log(sum(np.exp(logits)[[1, 4]]) / sum(np.exp(logits)))
    assert made.loss(vectors_ND, relations_RNN, positive_N).item() == pytest.approx(expected, rel=1e-4)
