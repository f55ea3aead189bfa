"""Format durations, the same way everywhere."""

from __future__ import annotations

UNITS = (("days", 86400.0, 2 * 86400.0), ("h", 3600.0, 100 * 60.0), ("min", 60.0, 100.0))
"""Unit, its seconds, and the lowest duration in seconds that uses it."""


def duration(seconds: float) -> str:
    """Return `1.2 ms`, `36 s`, `3.0 min`, `4.2 h` or `12 days`, with one decimal below 10."""
    for unit, size, least in UNITS:
        if seconds >= least:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds)} s" if seconds >= 0.1 or seconds == 0 else f"{_digits(1000 * seconds)} ms"


def _digits(value: float) -> str:
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:,.0f}"
