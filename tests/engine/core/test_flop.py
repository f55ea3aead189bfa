"""Counting floating-point operations."""

import torch
from torch import nn

from realm_lab.engine.core.flop import FlopCount, computed, uncounted


def test_products_are_counted_forward_and_backward_and_change_no_bit() -> None:
    torch.manual_seed(0)
    layer, rows = nn.Linear(5, 7), torch.randn(3, 5, requires_grad=True)

    def gradients() -> list[torch.Tensor]:
        loss = layer(rows).square().sum()
        return list(torch.autograd.grad(loss, [rows, *layer.parameters()]))

    with FlopCount() as counted:
        inside = gradients()
    assert counted.flop == 3 * 2 * 3 * 5 * 7  # forward, and back to the rows and to the weights
    assert all(torch.equal(one, other) for one, other in zip(inside, gradients(), strict=True))
    with FlopCount() as again:
        computed(True, layer, rows).square().sum().backward()
    assert again.flop == counted.flop, "though the first product is computed twice"


def test_attention_of_processors_is_counted_as_its_two_products() -> None:
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 10, 8)
    with torch.no_grad(), FlopCount() as counted:
        nn.functional.scaled_dot_product_attention(query, key, key)
    assert counted.flop == 2 * (2 * 2 * 4 * 6 * 10 * 8)


def test_what_is_known_without_counting_is_left_out() -> None:
    rows = torch.randn(3, 5)
    with FlopCount() as counted:
        with uncounted():
            rows.T @ rows
        rows @ rows.T
    assert counted.flop == 2 * 3 * 5 * 3
