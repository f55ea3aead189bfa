"""Drawings of a search: every trial in the order of time, and which parameter mattered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from realm_lab.reporting.document import Figure
from realm_lab.reporting.figures import DOTTED, render
from realm_lab.reporting.palette import BLUE, GREEN, INK, MUTED, PAPER, VERMILION


class TrialSpot(NamedTuple):
    """One trial that has a value; a pruned one has that of the step at which it ended."""

    number: int
    value: float
    is_pruned: bool


def history_figure(
    name: str, caption: str, spots: Sequence[TrialSpot], baseline: float | None, metric: str, *, maximise: bool
) -> Figure | None:
    """A dot a trial, hollow where it was pruned, and the best so far; None with fewer than two complete trials."""
    complete = sorted(spot for spot in spots if not spot.is_pruned)
    if len(complete) < 2:
        return None
    best = max if maximise else min
    so_far = [best(spot.value for spot in complete[: place + 1]) for place in range(len(complete))]

    def draw(figure: Any) -> None:
        place = figure.subplots()
        pruned = [spot for spot in spots if spot.is_pruned]
        if pruned:
            place.plot(
                [spot.number for spot in pruned],
                [spot.value for spot in pruned],
                "o",
                markerfacecolor=PAPER,
                markeredgecolor=MUTED,
                markersize=4.5,
                label="pruned, at its last step",
            )
        numbers, values = [spot.number for spot in complete], [spot.value for spot in complete]
        place.plot(numbers, values, "o", color=BLUE, markersize=5.0, label="complete")
        place.step(numbers, so_far, where="post", color=GREEN, linewidth=1.6, label="best so far")
        if baseline is not None:
            place.axhline(baseline, color=VERMILION, linewidth=1.1, linestyle=DOTTED, label="baseline")
        place.set(xlabel="trial", ylabel=metric)
        place.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(loc="outside upper left", ncols=4, borderaxespad=0.3)

    details = "; ".join(f"trial {s.number} {s.value:.4g}{' (pruned)' if s.is_pruned else ''}" for s in sorted(spots))
    return render(name, caption, f"{caption} {details}.", draw, 2.7)


def importance_figure(name: str, caption: str, shares: Mapping[str, float]) -> Figure | None:
    """A bar for each parameter, the most important on top."""
    if not shares:
        return None
    rows = sorted(shares.items(), key=lambda item: -item[1])

    def draw(figure: Any) -> None:
        place = figure.subplots()
        place.barh(range(len(rows)), [share for _, share in rows], height=0.62, color=BLUE)
        place.set_yticks(range(len(rows)), [parameter for parameter, _ in rows])
        place.tick_params(axis="y", labelcolor=INK, labelsize=8.0)
        place.set(ylim=(len(rows) - 0.5, -0.5), xlabel="share of what tells the best tenth of the trials from the rest")
        place.grid(visible=False)

    details = "; ".join(f"{parameter} {share:.3f}" for parameter, share in rows)
    return render(name, caption, f"{caption} {details}.", draw, 0.8 + 0.3 * len(rows))
