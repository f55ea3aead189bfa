"""What a comparison says among the others of its family, and which comparisons are one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from realm_lab.metrics import METRICS
from realm_lab.reporting.comparison import MetricResult, as_json, compare_cells
from realm_lab.reporting.family import Judged, judge
from realm_lab.reporting.power import detectable_difference
from realm_lab.reporting.rendering import number
from realm_lab.reporting.statistics import compare, step_down_max_t, t_interval
from realm_lab.reporting.verdict import verdict
from realm_lab.tracking.study_record import StudyRecord
from tests.reporting.synthetic import CELLS

NARROW = (0.001, -0.002, 0.003, -0.001, 0.002, 0.001, 0.0, -0.001)
WIDE = (0.1, 0.2, -0.1, 0.1, -0.2, 0.0, 0.05, -0.1)


def judged(deltas: tuple[float, ...], largest: float | None, tests: int) -> Judged:
    """One comparison in exact match, in a family of so many tests, the others without an effect."""
    nobody = dict.fromkeys(range(len(deltas)), 0.0)
    mine, other = compare(dict(enumerate(deltas)), nobody), compare(nobody, nobody)
    assert mine is not None
    assert other is not None
    metric, others = METRICS["exact_match"], METRICS["f1"]
    found = {place: (others, other) if place else (metric, mine) for place in range(tests)}
    return judge(found, {} if largest is None else {"exact_match": largest})[0]


@pytest.mark.parametrize(
    ("deltas", "tests", "largest", "finding", "detail"),
    [
        ((-0.1, -0.2, -0.1, -0.1, -0.2, -0.2), 1, None, "lower", ""),
        ((-0.01, -0.012) * 4, 1, 0.02, "lower",
         "no difference larger than 0.02: 90 % interval −0.012 to −0.010"),
        (NARROW, 1, 0.02, "no difference larger than 0.02", "90 % interval −0.001 to +0.002"),
        (NARROW[:3], 1, 0.02, "no difference larger than 0.02", "90 % interval −0.004 to +0.005"),
        (WIDE, 1, 0.02, "not enough data",
         "could have shown a difference of {}; the observed one needs more than 100 seeds"),
        (WIDE, 1, None, "no significant difference",
         "could have shown a difference of {}; the observed one needs more than 100 seeds"),
        ((0.1, 0.9, 0.11), 1, None, "higher in all 3 seeds, too few for significance",
         "with 3 seeds no difference can be significant; the observed one needs about 16 seeds"),
        ((0.1, 0.2, 0.3, 0.1, 0.2, 0.4), 18, None, "higher", ""),
        ((0.1, 0.2, 0.3, 0.1, 0.2), 2, None, "higher in all 5 seeds, too few for significance",
         "with 5 seeds no difference can be significant; the observed one needs about 7 seeds"),
        ((0.1, 0.1, -0.11), 1, None, "3 seeds are too few to tell",
         "with 3 seeds no difference can be significant; the observed one needs more than 100 seeds"),
        ((0.1,), 1, 0.02, "one seed is too few to tell", ""),
    ],
)  # fmt: skip
def test_findings(deltas: tuple[float, ...], tests: int, largest: float | None, finding: str, detail: str) -> None:
    found = judged(deltas, largest, tests)
    assert (found.finding, found.detail) == (finding, detail.format(number(found.detectable_difference)))


def study_of(values: dict[str, dict[str, tuple[float, ...]]], **more: object) -> tuple[StudyRecord, pd.DataFrame]:
    """A study from metric -> cell -> differences from the baseline by seed."""
    names = next(iter(values.values()))
    cells = (CELLS[0], *(replace(CELLS[3], name=name, title=name.upper()) for name in names))
    rows = []
    for name in ("realm", *names):
        for seed in range(8):
            row = {metric: 0.5 + found.get(name, (0.0,) * 8)[seed] for metric, found in values.items()}
            rows.append({"cell": name, "seed": seed} | row)
    record = StudyRecord("s", "?", "realm", cells, tuple(range(8)), (), tuple(values))
    return replace(record, **more), pd.DataFrame(rows)  # type: ignore[arg-type]


def compared(record: StudyRecord, results: pd.DataFrame) -> dict[str, MetricResult]:
    return {result.metric.name: result for result in compare_cells(record, results, record.metrics)}


def test_the_family_is_metrics_times_cells_without_costs() -> None:
    low = (-0.1, -0.12, -0.1, -0.11) * 2
    uneven = (0.3, -0.1, 0.2, 0.1, 0.2, 0.1, -0.1, 0.1)
    values: dict[str, dict[str, tuple[float, ...]]] = {
        "exact_match": {"a": WIDE, "b": WIDE},
        "recall_at_5": {"a": low, "b": uneven},
    }
    values |= {"wall_seconds": {"a": low, "b": uneven}, "f1": {"a": low, "b": uneven}}
    record, results = study_of(values, metrics=("exact_match", "recall_at_5", "wall_seconds"), exploratory=("f1",))
    found = compared(record, results)
    cells = {(name, cell.cell.name): cell for name, result in found.items() for cell in result.cells[1:]}
    told: dict[Any, Any] = {
        key: cell.judged and (cell.judged.tests, cell.judged.corrected_p) for key, cell in cells.items()
    }
    families = ((WIDE, WIDE, low, uneven), (low, uneven))
    four, two = (step_down_max_t([dict(enumerate(deltas)) for deltas in family]) for family in families)
    assert told["recall_at_5", "a"] == (4, 2 / 256)
    assert told["recall_at_5", "b"] == (4, pytest.approx(four[3]))
    assert told["wall_seconds", "b"] == told["f1", "b"] == (2, pytest.approx(two[1]))
    assert four[3] > two[1]
    assert cells["recall_at_5", "a"].finding == "lower"
    assert cells["wall_seconds", "a"].finding == cells["f1", "a"].finding == "exploratory: lower"
    said = verdict(record, [*found.values()])
    assert said.rest == "Other metrics do differ significantly: recall@5, zero-shot is lower for A (−0.107)."
    for declared in ({"delta": {"wall_seconds": 5.0}}, {"metrics": ("wall_seconds", "exact_match", "recall_at_5")}):
        time = compared(replace(record, **declared), results)["wall_seconds"].cells[1].judged  # type: ignore[arg-type]
        assert time is not None
        assert (time.tests, time.finding) == (6, "lower"), "a cost that is a question of the study"


def test_equivalence_is_corrected_over_all_that_is_looked_at() -> None:
    border = tuple(0.0 + 0.024 * sign for sign in (1, -1, 1, -1, 1, -1, 1, -1))  # alone p is .028
    alone = compared(*study_of({"exact_match": {"a": border}}, delta={"exact_match": 0.02}))
    both = compared(*study_of({"exact_match": {"a": border, "b": border}}, delta={"exact_match": 0.02}))
    assert alone["exact_match"].cells[1].finding == "no difference larger than 0.02"
    assert both["exact_match"].cells[1].finding == "not enough data"


def test_the_verdict_tells_equivalence_from_too_little_data() -> None:
    record, results = study_of({"exact_match": {"a": NARROW, "b": WIDE}}, delta={"exact_match": 0.02})
    found = compare_cells(record, results, record.metrics)
    told = as_json(found)["exact_match"]
    assert str(verdict(record, found)) == (
        "There is no difference in exact match larger than 0.02 from REALM (0.500, 8 seeds) for A (0.000, 90 % "
        "interval −0.001 to +0.002). There is not enough data to rule out that exact match differs from REALM (0.500, "
        "8 seeds) by more than 0.02 for B (+0.006, 95 % interval −0.104 to +0.117; could have shown a difference of "
        f"{told['b']['detectable_difference']:.3f}; the observed one needs more than 100 seeds)."
    )
    assert (told["a"]["equivalent_within"], told["b"]["equivalent_within"]) == (0.02, None)
    assert told["b"]["detectable_difference"] == pytest.approx(detectable_difference(WIDE, 2))
    assert (told["b"]["needed_seeds"], told["b"]["tests"]) == (None, 2)
    assert told["a"]["finding"] == "no difference larger than 0.02 (90 % interval −0.001 to +0.002)"
    assert told["a"]["equivalence_interval"] == pytest.approx(list(t_interval(NARROW, 0.9)))
