"""Statistics of paired runs: tests, families, power and equivalence, using only numpy and scipy, for anyone's runs."""
