"""A masking scheme with an option of its own, whole in one file: `pretrain.masking: tests.tiny_masks:first_words`."""

from __future__ import annotations

import numpy as np

from realm_lab.masking import MaskRequest


def first_words(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """The first wordpieces, a `share` of them all, at least one."""
    share = request.own_options(share=0.5)["share"]
    return np.arange(max(1, round(share * request.length)))
