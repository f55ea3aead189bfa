"""Masking schemes in one file, for `pretrain.masking: tests.tiny_masks:NAME`; first_words has options."""

import os
import time
from pathlib import Path

import numpy as np

from realm_lab.engine.masking import MaskRequest
from realm_lab.engine.params.sections import Positive, Section


class FirstWords(Section):
    """Options of first_words."""

    share: float = 0.5
    """Share of the wordpieces."""
    least: tuple[Positive, ...] = ()
    """Numbers of wordpieces to mask; at least the largest is masked."""


def first_words(request: MaskRequest, generator: np.random.Generator, options: FirstWords) -> np.ndarray:
    """The first wordpieces, a share of them all, at least one."""
    return np.arange(max(1, *options.least, round(options.share * request.length)))


def slowly(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """One salient span after a rest, which takes no processor time: a run lasts long enough to be stopped."""
    time.sleep(0.01)
    return np.arange(*request.spans[int(generator.integers(len(request.spans)))])


def held(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """One salient span; a step takes seconds as long as the file exists that the environment's HOLD names."""
    if Path(os.environ.get("HOLD", "")).is_file():
        time.sleep(1.0)
    return np.arange(*request.spans[int(generator.integers(len(request.spans)))])
