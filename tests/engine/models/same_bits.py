"""Two models compared weight by weight."""

from pathlib import Path

import torch

from realm_lab.engine.models.initial import load_reader, read_reader_weights
from realm_lab.engine.models.reader import Reader


def assert_same_bits(one: torch.nn.Module, other: torch.nn.Module) -> None:
    state, expected = one.state_dict(), other.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(state[name], value), name


def read_reader(folder: Path, span_hidden_size: int) -> Reader:
    """Read the reader of a folder."""
    weights = read_reader_weights(folder)
    reader = Reader(weights.shape, span_hidden_size)
    load_reader(reader, weights, folder)
    return reader
