"""Do the statistics of comparison keep what they promise? Simulated studies in which the truth is known.

    python -m benchmarks.statistics [--studies 4000]

For 3, 5, 6, 12, 30 and 80 seeds and three kinds of noise (normal; skewed; seeds that fail now and then): how often no
difference is called one (at 5 %), and how often an interval that says 95 % holds the true mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from realm_lab.reporting.statistics import bca_interval, sign_flip_p, smallest_p, t_interval

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
NOISES: dict[str, Noise] = {  # each with mean 0
    "normal": lambda generator, size: generator.normal(size=size),
    "skewed": lambda generator, size: generator.gamma(2.0, size=size) - 2.0,
    "failing": lambda generator, size: (
        generator.normal(0, 0.2, size) - 3.0 * (generator.random(size) < 0.1) + 0.3  # a seed in ten collapses
    ),
}


def main() -> None:
    """Print one row for each noise and number of seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=4000)
    parser.add_argument("--bootstrap-studies", type=int, default=2000, help="BCa is slower")
    options = parser.parse_args()
    print(f"{'noise':8} {'seeds':>5} {'smallest p':>10} {'false alarms':>12} {'t covers':>9} {'BCa covers':>10}")
    for name, noise in NOISES.items():
        for seeds in (3, 5, 6, 12, 30, 80):
            generator = np.random.default_rng(seeds)
            signs = generator.choice((1.0, -1.0), (options.studies, seeds))
            values = noise(generator, (options.studies, seeds))
            # Under "no effect" cell and baseline are exchangeable, so their difference is symmetric.
            alarms = np.mean([sign_flip_p(row) <= 0.05 for row in signs * values])
            student = np.mean([not t_interval(row).excludes_zero for row in values])
            few = values[: options.bootstrap_studies]
            bootstrap = np.mean([not bca_interval(row).excludes_zero for row in few])
            print(f"{name:8} {seeds:5} {smallest_p(seeds):10.4f} {alarms:12.3f} {student:9.3f} {bootstrap:10.3f}")


if __name__ == "__main__":
    main()
