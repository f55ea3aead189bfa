"""Two models compared weight by weight."""

from __future__ import annotations

import torch


def assert_same_bits(one: torch.nn.Module, other: torch.nn.Module) -> None:
    state, expected = one.state_dict(), other.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(state[name], value), name
