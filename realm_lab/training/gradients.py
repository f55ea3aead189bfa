"""Sum gradients over the ranks while the backward pass is still running."""

# Shapes: U parameters of a bucket

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from realm_lab.core.process import begin_sum_over_ranks_, ranks, to_device

BUCKET_BYTES = 25 << 20  # DistributedDataParallel's


class GradientSum:
    """The sum of one step's gradients over the ranks; every rank gets the same bits.

    Parameters are in buckets, from the last to the first, as a backward pass reaches them. A bucket is exchanged as
    soon as all of its gradients are complete and the buckets before it are under way, so that all ranks exchange in one
    order; `finish` exchanges the rest, if a rank does not use some parameter. With the gradients
    of a bucket goes a number for each, whether it is present: a parameter that no rank used gets no gradient.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]):
        self._buckets: list[list[nn.Parameter]] = []
        filled = BUCKET_BYTES
        for parameter in reversed(parameters) if ranks().size > 1 else ():
            if filled >= BUCKET_BYTES:
                self._buckets.append([])
                filled = 0
            self._buckets[-1].append(parameter)
            filled += parameter.nbytes
        self._missing = [set(map(id, bucket)) for bucket in self._buckets]
        self._exchanged: list[tuple[Tensor, Callable[[], None]]] = []  # of the first buckets, with how to wait for it

    @contextmanager
    def during(self) -> Iterator[None]:
        """Inside is the backward pass that completes the gradients: the last one that reaches a parameter."""
        parameters = [parameter for bucket in self._buckets for parameter in bucket]
        hooks = [parameter.register_post_accumulate_grad_hook(self._note) for parameter in parameters]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _note(self, parameter: Tensor) -> None:
        for missing in self._missing:
            missing.discard(id(parameter))
        while len(self._exchanged) < len(self._buckets) and not self._missing[len(self._exchanged)]:
            self._exchange_next()

    def _exchange_next(self) -> None:
        bucket = self._buckets[len(self._exchanged)]
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
        is_used_U = to_device(np.array([each.grad is not None for each in bucket], np.float32), bucket[0].device)
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), is_used_U])
        self._exchanged.append((flat, begin_sum_over_ranks_(flat)))

    def finish(self) -> None:
        """Exchange the remaining buckets, and replace the gradients by the sums."""
        while len(self._exchanged) < len(self._buckets):
            self._exchange_next()
        for bucket, (flat, wait) in zip(self._buckets, self._exchanged, strict=True):
            wait()
            *sums, used_U = flat.split([*(each.numel() for each in bucket), len(bucket)])
            for parameter, found, used in zip(bucket, sums, used_U.tolist(), strict=True):
                if used:
                    parameter.grad = found.view_as(parameter)
