"""The sentence at the top of a report, and its headline numbers: computed, and no bolder than the seeds allow."""

from __future__ import annotations

import pandas as pd

from realm_lab.reporting.document import NOTHING, KeyNumber, number
from realm_lab.reporting.table import Collection, column, results_table

SIGNIFICANCE_LEVEL = 0.05


def verdict(collection: Collection) -> str:
    """One sentence on exact match, treatment against baseline, over the seeds that have both; then what collapsed."""
    compared = [*collection.of(collection.baseline), *collection.of(collection.treatment)]
    collapsed = [f"{run.label}, seed {run.record.seed}" for run in compared if run.has_collapsed]
    return _comparison(collection) + (f" Flagged as collapsed: {'; '.join(collapsed)}." if collapsed else "")


def _comparison(collection: Collection) -> str:
    rows = results_table(collection)
    treatment, baseline = collection.treatment, collection.baseline
    if treatment is None or baseline is None:
        missing = "baseline run" if treatment else "run of REALM pre-training"
        return f"No verdict: there is no {missing} to compare."
    before, after = column(rows, baseline, "exact_match"), column(rows, treatment, "exact_match")
    seeds = sorted(before.keys() & after.keys())
    if not seeds:
        return f"No verdict yet: no seed has exact match for both {baseline} and {treatment}."
    name = "REALM pre-training" if treatment == "realm" else f"{treatment} (against {baseline})"
    old, new = _mean(before, seeds), _mean(after, seeds)
    if len(seeds) == 1:  # a difference of two runs is not an effect: no verb that claims one
        values = f"exact match was {number(old)} for {baseline} and {number(new)} after {name}"
        return f"With the one seed {seeds[0]}, {values}; {significance(1)}."
    each = "; ".join(f"seed {seed}: {number(before[seed])} → {number(after[seed])}" for seed in seeds)
    change = f"exact match from {number(old)} to {number(new)}"
    ups = sum(after[seed] > before[seed] for seed in seeds)
    downs = sum(after[seed] < before[seed] for seed in seeds)
    if ups == len(seeds):
        claim = f"{name} raised {change}"
    elif downs == len(seeds):
        claim = f"{name} did not help: it lowered {change}"
    elif not ups and not downs:
        claim = f"{name} made no difference to exact match ({number(old)})"
    elif new > old:
        claim = f"{name} moved {change} on average, but the direction differs between seeds"
    else:
        claim = f"{name} did not raise exact match on average ({number(old)} to {number(new)})"
        claim += " and the direction differs between seeds"
    return f"Over {len(seeds)} seeds, {claim} ({each}); {significance(len(seeds))}."


def significance(seeds: int) -> str:
    """What a two-sided exact sign-flip test over `seeds` pairs could say at best: its smallest p is 2 / 2^n."""
    smallest = min(1.0, 2.0 / 2**seeds)
    if seeds == 1:
        return "one seed says nothing about the spread between seeds, so no difference can be claimed"
    if smallest > SIGNIFICANCE_LEVEL:
        return f"with {seeds} seeds no seed-level significance is possible (smallest two-sided p = {smallest:.3g})"
    return f"the smallest two-sided p that {seeds} seeds can reach is {smallest:.2g}, and no test was made here"


def key_numbers(collection: Collection) -> list[KeyNumber]:
    """Exact match, zero-shot recall@5, retrieval utility and edition swap as headline numbers, where known."""
    rows = results_table(collection)
    treatment, baseline = collection.treatment, collection.baseline
    found = [
        _compared("Exact match", column(rows, baseline, "exact_match"), column(rows, treatment, "exact_match")),
        _compared("Zero-shot recall@5", column(rows, baseline, "recall_at_5"), column(rows, treatment, "recall_at_5")),
        _compared(
            "Retrieval utility, nats per span",
            column(rows, treatment, "retrieval_utility_start"),
            column(rows, treatment, "retrieval_utility_end"),
            digits=2,
        ),
    ]
    follows = column(rows, treatment, "edition_swap.follows")
    if follows:
        kept = column(rows, treatment, "edition_swap.stays")
        stays = number(_mean(kept, sorted(kept))) if kept else NOTHING
        text = f"of changed answers follow the new edition; {stays} stay with the old"
        found.append(KeyNumber("Edition swap", "", number(_mean(follows, sorted(follows))), text))
    return [item for item in found if item is not None]


def _compared(title: str, before: dict[int, float], after: dict[int, float], digits: int = 3) -> KeyNumber | None:
    seeds = sorted(before.keys() & after.keys())
    if not seeds:
        return None
    ups = sum(after[seed] > before[seed] for seed in seeds)
    note = f"higher in {ups} of {len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    return KeyNumber(title, number(_mean(before, seeds), digits), number(_mean(after, seeds), digits), note)


def _mean(values: dict[int, float], seeds: list[int]) -> float:
    return float(pd.Series([values[seed] for seed in seeds]).mean())


def change_of(before: dict[int, float], after: dict[int, float], digits: int = 2) -> str:
    """ "0.50 → 7.59", means over the seeds of each; a dash stands for what is not known."""
    shown = [number(pd.Series(list(side.values())).mean(), digits) if side else NOTHING for side in (before, after)]
    return NOTHING if shown == [NOTHING, NOTHING] else " → ".join(shown)
