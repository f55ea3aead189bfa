"""Findings of comparisons within their family, and the members of a family."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from realm_lab.evidence.report.comparison import MetricResult, compare_cells, decisions
from realm_lab.evidence.report.report_data import Report
from realm_lab.evidence.report.sections.declared import Declared
from realm_lab.evidence.report.sections.metrics import result_rows
from realm_lab.evidence.statistics.family import Finding, Kind, judge
from realm_lab.evidence.statistics.intervals import Interval
from realm_lab.evidence.statistics.paired import compare, step_down_max_t
from realm_lab.evidence.statistics.wording import detectable, in_short
from realm_lab.evidence.statistics.wording import needed as needed_seeds
from realm_lab.records.metrics import METRICS
from realm_lab.records.run import Run
from realm_lab.records.study import StudyRecord
from tests.evidence.report.synthetic import CELLS, verdict

NARROW = (0.001, -0.002, 0.003, -0.001, 0.002, 0.001, 0.0, -0.001)
WIDE = (0.1, 0.2, -0.1, 0.1, -0.2, 0.0, 0.05, -0.1)


def found_in(deltas: tuple[float, ...], largest: float | None, tests: int, level: float = 0.5) -> Finding:
    """One comparison in exact match with a baseline at `level`, in a family of this many tests, the others without an
    effect."""
    nobody = dict.fromkeys(range(len(deltas)), 0.0)
    mine, other = compare(dict(enumerate(deltas)), nobody), compare(nobody, nobody)
    assert mine is not None
    assert other is not None
    mine = mine._replace(means=(level + mine.mean, level))
    metric, others = METRICS["exact_match"], METRICS["f1"]
    found = {place: (others, other) if place else (metric, mine) for place in range(tests)}
    return judge(found, {} if largest is None else {"exact_match": largest})[0]


@pytest.mark.parametrize(
    ("deltas", "tests", "largest", "kind", "short", "needed"),
    [
        ((-0.1, -0.2, -0.1, -0.1, -0.2, -0.2), 1, None, Kind.LOWER, "lower", "6"),
        ((-0.01, -0.012) * 4, 1, 0.02, Kind.LOWER, "lower, within ±0.02", "6"),
        (NARROW, 1, 0.02, Kind.EQUIVALENT, "equivalent", "> 100"),
        (NARROW[:3], 1, 0.02, Kind.EQUIVALENT, "equivalent", "–"),
        (WIDE, 1, 0.02, Kind.INCONCLUSIVE, "inconclusive", "> 100"),
        (WIDE, 1, None, Kind.NOT_SIGNIFICANT, "not significant", "> 100"),
        ((0.1, 0.9, 0.11), 1, None, Kind.TOO_FEW_SEEDS, "higher in all 3 seeds", "–"),
        ((0.1, 0.2, 0.3, 0.1, 0.2, 0.4), 18, None, Kind.HIGHER, "higher", "10"),
        ((0.1, 0.2, 0.3, 0.1, 0.2), 2, None, Kind.TOO_FEW_SEEDS, "higher in all 5 seeds", "7"),
        ((0.1, 0.1, -0.11), 1, None, Kind.TOO_FEW_SEEDS, "too few seeds", "–"),
        ((0.1, 0.2), 1, None, Kind.TOO_FEW_SEEDS, "higher in both seeds", "–"),
        ((0.1,), 1, 0.02, Kind.TOO_FEW_SEEDS, "one seed", "–"),
    ],
)
def test_kinds_of_findings(
    deltas: tuple[float, ...], tests: int, largest: float | None, kind: Kind, short: str, needed: str
) -> None:
    found = found_in(deltas, largest, tests)
    assert (found.kind, in_short(found), needed_seeds(found)) == (kind, short, needed)


def test_nothing_was_learned_if_all_means_are_at_the_floor() -> None:
    assert found_in(NARROW, 0.02, 1, level=0.01).kind is Kind.NOTHING_LEARNED
    assert found_in((0.001, -0.001), None, 1, level=0.01).kind is Kind.NOTHING_LEARNED
    assert found_in(NARROW, 0.02, 1, level=0.03).kind is Kind.EQUIVALENT
    assert found_in((0.009, 0.008) * 4, 0.02, 1, level=0.0).kind is Kind.HIGHER, "what is significant stays so"
    less_is_better = METRICS["cloze_top1_bystander_end"]
    assert found_in(NARROW, 0.02, 1, level=0.01)._replace(metric=less_is_better).kind is Kind.EQUIVALENT
    assert found_in(NARROW, 0.02, 1, level=0.99)._replace(metric=less_is_better).kind is Kind.NOTHING_LEARNED
    assert found_in(NARROW, 0.02, 1, level=0.01)._replace(metric=METRICS["wall_seconds"]).kind is Kind.EQUIVALENT


def test_a_finding_has_fields_for_those_who_do_not_read_english() -> None:
    less = found_in((-0.1, -0.2, -0.1, -0.1, -0.2, -0.2), 0.02, 2)
    told = less.as_json()
    fields = ("finding", "direction", "improves", "n", "tests", "bound", "needed_seeds")
    assert [told[name] for name in fields] == ["lower", "lower", False, 6, 2, 0.02, less.needed_seeds]
    assert less._replace(metric=METRICS["wall_seconds"]).improves is True, "less time is better"
    assert less._replace(metric=METRICS["index_staleness_steps"]).improves is None
    mixed = found_in((0.1, 0.1, -0.11), None, 1)
    assert (mixed.direction, mixed.improves, mixed.as_json()["bound"]) == (None, None, None)
    alone = found_in((0.1,), None, 1)
    sure = alone._replace(per_example=Interval(0.01, 0.2))
    assert (alone.kind, sure.kind) == (Kind.TOO_FEW_SEEDS, Kind.ONE_PAIR)
    assert in_short(sure) == "higher in one pair of models"


def test_nothing_impossible_is_printed() -> None:
    """Two seeds have no interval, and no difference of shares is above 1."""
    pair = found_in((0.1, 0.9), None, 1)
    assert (pair.interval, pair.equivalence_interval, pair.detectable_difference, pair.needed_seeds) == (None,) * 4
    assert (pair.probability_higher, pair.as_json()["probability_higher"]) == (None, None)
    three = found_in((0.1, 0.9, 0.11), None, 1)
    assert three.comparison.interval.high > 1
    assert three.interval == (three.comparison.interval.low, 1.0)
    wide = found_in((1.0, -1.0, 1.0, -1.0, 1.0, 0.0), None, 18)
    assert (wide.detectable_difference, detectable(wide)) == (None, "none possible")
    nats = judge({0: (METRICS["retrieval_utility_end"], three.comparison)}, {})[0]
    assert nats.interval == three.comparison.interval, "nats have no bounds"


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
        key: cell.finding and (cell.finding.tests, cell.finding.corrected_p) for key, cell in cells.items()
    }
    families = ((WIDE, WIDE, low, uneven), (low, uneven))
    four, two = (step_down_max_t([dict(enumerate(deltas)) for deltas in family]) for family in families)
    assert told["recall_at_5", "a"] == (4, 2 / 256)
    assert told["recall_at_5", "b"] == (4, pytest.approx(four[3]))
    assert told["wall_seconds", "b"] == told["f1", "b"] == (2, pytest.approx(two[1]))
    assert four[3] > two[1]
    apart = [cells[name, "a"].finding for name in ("wall_seconds", "f1")]
    assert cells["recall_at_5", "a"].finding is not None
    assert cells["recall_at_5", "a"].finding.kind is Kind.LOWER
    assert [one and (one.kind, one.is_exploratory) for one in apart] == [(Kind.LOWER, True)] * 2
    for declared in ({"delta": {"wall_seconds": 5.0}}, {"metrics": ("wall_seconds", "exact_match", "recall_at_5")}):
        time = compared(replace(record, **declared), results)["wall_seconds"].cells[1].finding
        assert time is not None
        assert (time.tests, time.kind, time.is_exploratory) == (6, Kind.LOWER, False), "a question of the study"


def test_equivalence_is_corrected_over_all_that_is_looked_at() -> None:
    border = tuple(0.0 + 0.024 * sign for sign in (1, -1, 1, -1, 1, -1, 1, -1))  # by itself p is .028
    alone = compared(*study_of({"exact_match": {"a": border}}, delta={"exact_match": 0.02}))
    both = compared(*study_of({"exact_match": {"a": border, "b": border}}, delta={"exact_match": 0.02}))
    kinds = [found["exact_match"].cells[1].finding.kind for found in (alone, both)]  # type: ignore[union-attr]
    assert kinds == [Kind.EQUIVALENT, Kind.INCONCLUSIVE]


def test_means_are_those_of_the_seeds_that_the_difference_has() -> None:
    """A baseline of 0.5 in seed 0 and 0.3 in all others, and a cell with only seed 0."""
    record, results = study_of({"exact_match": {"a": (0.0, *[float("nan")] * 7)}})
    results.loc[(results["cell"] == "realm") & (results["seed"] > 0), "exact_match"] = 0.3
    [found] = compare_cells(record, results, record.metrics)
    assert verdict(record, [found]).lead == (
        "Compared with REALM (0.325), exact match is not clearly different for A (0.500 against 0.500 over the same "
        "seeds) with one seed."
    )
    assert [(row["n"], row["mean ± sd"][:5]) for row in result_rows(found, results)] == [("8", "0.325"), ("1", "0.500")]


def test_equivalence_at_the_floor_decides_nothing() -> None:
    learned, floor = (
        study_of({"exact_match": {"a": NARROW}}, delta={"exact_match": 0.02}, until=(4, 8)) for _ in range(2)
    )
    floor[1]["exact_match"] -= 0.49
    stopped = []
    for record, results in (learned, floor):
        results["status"] = "COMPLETE"
        stopped.append(decisions(record, results, record.metrics).stopped)
    assert stopped == [{"a": 4}, {}]
    assert verdict(floor[0], compare_cells(*floor, floor[0].metrics)).lead == (
        "Compared with REALM (0.010), exact match is at its floor for A (0.010): nothing was learned."
    )


def test_a_declared_metric_that_no_run_measured_keeps_its_place() -> None:
    record, results = study_of({"exact_match": {"a": WIDE}}, metrics=("recall_at_20", "exact_match", "f1"))
    found = compare_cells(record, results, record.metrics, None, {"a": {"f1": "it returned '5'"}})
    assert [(one.metric.name, one.is_measured) for one in found] == [
        ("recall_at_20", False), ("exact_match", True), ("f1", False),
    ]  # fmt: skip
    assert [row["finding"] for row in result_rows(found[2], results)] == [
        "baseline, not measured: no run has a value", "not measured: it returned '5'",
    ]  # fmt: skip
    assert found[1].cells[1].finding is not None
    assert found[1].cells[1].finding.tests == 3, "as declared"
    answer = verdict(record, found)
    assert answer.lead == "No answer: recall@20, zero-shot is not measured (no run has a value)."
    assert answer.missing == "Not measured: F1 (no run has a value; it returned '5')."


@pytest.mark.parametrize(("criterion", "met"), [("same sign", 1), ("significant", 1), ("equivalent", 0), ("", None)])
def test_a_declared_criterion_is_judged(criterion: Any, met: int | None) -> None:
    """A cell that is higher in all eight seeds, one that is not, and one without results."""
    values = {"a": tuple(0.1 + 0.01 * seed for seed in range(8)), "b": WIDE, "c": (float("nan"),) * 8}
    record, results = study_of({"exact_match": values}, declared=criterion)
    runs = tuple(Run(name, seed, "", "") for name in (*values, "realm") for seed in range(8))
    report = Report(replace(record, runs=runs), results, {"not_measured": {}}, {}, results)
    named = " (A)" if met else ""
    expected = f"Met by {met} of 3 variants{named} in exact match." if met is not None else ""
    assert Declared(report).sentence.partition(": ")[2].partition(". ")[2] == expected
