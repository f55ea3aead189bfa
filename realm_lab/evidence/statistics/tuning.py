"""The expected best value of a tuning by its number of trials.

References: Dodge et al. (2019), Show your work: improved reporting of experimental results, section 3.1, for the
quantity; Tang et al. (2020), Showing your work doesn't always work, for drawing without replacement, which makes the
estimate unbiased for trials that were drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def expected_best(values: Sequence[float]) -> list[float]:
    """Return the mean of the best of the first n values over all orders, for n = 1 to all. The last one is the
    maximum."""
    ordered, count = sorted(values), len(values)
    return [
        sum(value * math.comb(below, n - 1) for below, value in enumerate(ordered)) / math.comb(count, n)
        for n in range(1, count + 1)
    ]
