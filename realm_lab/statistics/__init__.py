"""Statistics of paired runs: tests, families, power and equivalence, with numpy and scipy alone, for anyone's runs."""
