"""Masking schemes in one file: one has an option of its own, `pretrain.masking: tests.tiny_masks:first_words`."""

from __future__ import annotations

import time

import numpy as np

from realm_lab.masking import MaskRequest


def first_words(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """The first wordpieces, a `share` of them all, at least one."""
    share = request.own_options(share=0.5)["share"]
    return np.arange(max(1, round(share * request.length)))


def slowly(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """One salient span after a rest, which takes no processor time: a run lasts long enough to be stopped."""
    time.sleep(0.01)
    return np.arange(*request.spans[int(generator.integers(len(request.spans)))])
