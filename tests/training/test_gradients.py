"""Gradients of two real processes (gloo), summed while the backward pass goes on."""

from __future__ import annotations

import pytest

from tests.core.test_process import run_ranks

TRAIN = """
from contextlib import nullcontext
from torch import nn
from realm_lab.training import gradients
gradients.BUCKET_BYTES = 40  # a bucket for each matrix, and one for the two small ones
torch.manual_seed(0)
first, second, third = (nn.Parameter(torch.randn(5, 5)) for _ in range(3))
used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
parameters = [unused, used, first, second, third]

def backward():
    value = torch.full((5,), rank + 1.0) @ first * used.sum()
    if rank == 0:  # the other rank does not use the second matrix
        value = value @ second
    (value @ third).sum().backward()

total = gradients.GradientSum(parameters)
backward()  # of the first of two micro-batches
with total.during() if {overlapped} else nullcontext():
    backward()
begun = len(total._exchanged)
mine = [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in parameters]
total.finish()
sum_over_ranks_(mine)
say([begun, len(total._exchanged)])
say([each.grad is not None for each in parameters])
say([each.grad is None or torch.equal(each.grad, own) for each, own in zip(parameters, mine)])
say([each._post_accumulate_grad_hooks in (None, {{}}) for each in parameters])
disconnect()
"""


@pytest.mark.parametrize(("overlapped", "begun"), [(True, [3, 1]), (False, [0, 0])])
def test_each_bucket_is_exchanged_in_order_once_its_gradients_are_whole(overlapped: bool, begun: list[int]) -> None:
    for (code, said, errors), started in zip(run_ranks(TRAIN.format(overlapped=overlapped)), begun, strict=True):
        assert code == 0, errors
        assert said[0] == [
            started,
            4,
        ]  # the rank without the second matrix begins with the third, and can go no further
        assert said[1] == [False, True, True, True, True]  # what no rank used has none
        assert said[2] == said[3] == [True] * 5
