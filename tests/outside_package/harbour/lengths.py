"""A helper of several parts."""


def longest_first(values: list[int]) -> list[int]:
    """Sort numbers, the largest first."""
    return sorted(values, reverse=True)
