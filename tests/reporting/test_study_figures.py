"""Figures and tables of particular studies: staleness by drift, Figure 4, equal compute, axes, Tables 3 and 4."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd
import pytest

from realm_lab.reporting.confounds import confounds
from realm_lab.reporting.document import Table, Text
from realm_lab.reporting.edition_table import table_4
from realm_lab.reporting.statistics import compare, holm
from realm_lab.reporting.study_axes import axis_effects, points_of, refresh_axis
from realm_lab.reporting.study_comparison import CellResult, MetricResult, verdict
from realm_lab.reporting.study_contents import StudyContents
from realm_lab.reporting.study_figures import compute_of, compute_table, staleness_by_drift, utility_by_masking
from realm_lab.reporting.worked_examples import table_3
from realm_lab.tracking.run_dir import read_run_record, write_run_record
from realm_lab.tracking.study_record import StudyCell, StudyRecord
from tests.reporting import studies

RATE = "pretrain.retriever.learning_rate"
AXES: dict[str, tuple[str, ...]] = {"refresh": ("often", "never"), RATE: ("0.002", "0.001")}
# exact match by (refresh, rate) and seed: never refreshing costs .5 at the high rate, .03 at the low one
LEVELS = {("often", "0.002"): 0.9, ("often", "0.001"): 0.5, ("never", "0.002"): 0.4, ("never", "0.001"): 0.47}
OVERLAPS = {("often", "0.002"): 0.8, ("often", "0.001"): 0.9, ("never", "0.002"): 0.2, ("never", "0.001"): 0.6}


def product(axes: dict[str, tuple[str, ...]] = AXES, changed: str = "pretrain.refresh.policy") -> StudyRecord:
    """A study of two axes; `changed` is what its first one sets."""
    cells = []
    for first, rate in itertools.product(*axes.values()):
        changes = ({changed: first} if first != "often" else {}) | ({RATE: 0.001} if rate == "0.001" else {})
        cells.append(StudyCell(f"{first},learning_rate={rate}", f"{first} at {rate}", "realm", changes))
    return StudyRecord("s", "Does it matter?", cells[0].name, tuple(cells), (0, 1), (), ("exact_match",), axes)


def value(place: tuple[str, str], seed: int) -> float:
    return LEVELS[place] + 0.01 * seed * (place[0] == "often")


def tables(study: StudyRecord) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(curves, results) of the study's runs."""
    points, rows = [], []
    for cell, place in zip(study.cells, LEVELS, strict=True):
        place = (cell.name.split(",")[0], cell.name.split("=")[1])
        for seed in study.seeds:
            for step, overlap in ((0, 1.0), (10, OVERLAPS[place]), (20, OVERLAPS[place] - 0.1)):
                points.append((cell.name, seed, "pretrain", "index_overlap", step, overlap))
            rows.append((cell.name, seed, value(place, seed)))
    columns = ["label", "seed", "stage", "metric", "step", "value"]
    return pd.DataFrame(points, columns=columns), pd.DataFrame(rows, columns=["label", "seed", "exact_match"])


def test_drift_is_what_the_searched_index_misses_after_the_first_step() -> None:
    study = product()
    figure = staleness_by_drift(study, *tables(study), "seeds 0, 1")
    assert figure is not None
    assert "0.002 never (0.85, 0.400), 0.002 never (0.85, 0.400)" in figure.alt
    assert "0.002 often (0.25, 0.900), 0.002 often (0.25, 0.910)" in figure.alt
    assert "seeds 0, 1" in figure.caption
    assert figure.png.startswith(b"\x89PNG")
    again = staleness_by_drift(study, *tables(study), "seeds 0, 1")
    assert again is not None
    assert (again.svg, again.png) == (figure.svg, figure.png)


def test_it_is_drawn_for_two_axes_one_of_which_is_how_the_index_is_refreshed() -> None:
    assert refresh_axis(product()) == "refresh"
    other = product(changed="pretrain.masking")
    assert refresh_axis(other) is None
    assert staleness_by_drift(other, *tables(other), "seeds 0, 1") is None
    assert refresh_axis(studies_of_cells()) is None


def studies_of_cells() -> StudyRecord:
    return StudyRecord("s", "Why?", "realm", studies.CELLS, (0,), (), ("exact_match",))


def test_a_cell_lies_where_its_name_says() -> None:
    study = product()
    assert points_of(study, study.cells[3]) == {"refresh": "never", RATE: "0.001"}
    assert points_of(study, StudyCell("warm", "warm start only", "warm_start", {})) is None


def test_an_axis_is_averaged_over_the_other_seed_by_seed() -> None:
    study = product()
    values = {
        cell.name: {seed: value((cell.name.split(",")[0], cell.name.split("=")[1]), seed) for seed in (0, 1)}
        for cell in study.cells
    }
    refresh, rate = axis_effects(study, values)
    assert (refresh.axis, refresh.point, rate.axis, rate.point) == ("refresh", "never", RATE, "0.001")
    assert refresh.comparison.deltas == pytest.approx((-0.265, -0.275))
    assert rate.comparison.deltas == pytest.approx(((-0.4 + 0.07) / 2,) * 2)
    values.pop("never,learning_rate=0.001")
    assert axis_effects(study, values)[0].comparison.deltas == pytest.approx((-0.5, -0.51)), "pairs with both cells"
    assert axis_effects(studies_of_cells(), {"realm": {0: 1.0}}) == []


def test_the_verdict_has_a_sentence_for_each_axis_and_says_whether_they_interact() -> None:
    study = product()
    _, rows = tables(study)
    values = {name: dict(zip(part["seed"], part["exact_match"], strict=True)) for name, part in rows.groupby("label")}
    cells = [
        CellResult(cell, values[cell.name], compare(values[cell.name], values[study.baseline]), None, None, None, None)
        for cell in study.cells
    ]
    text = verdict(study, [MetricResult("exact_match", cells, None)])
    assert "Refresh, averaged over learning rate: lower in each of 2 seeds, too few to be significant" in text
    assert "the largest difference is −0.505 with never at learning rate 0.002, −0.035 with never" in text
    assert "Learning rate, averaged over refresh: " in text
    assert holm([0.5]) == [0.5]


def test_figure_4_has_the_masking_schemes_and_nothing_else() -> None:
    study = studies_of_cells()
    points = pd.DataFrame(
        [
            (cell.name, 0, "pretrain", metric, step, float(step))
            for cell in study.cells
            for metric in ("retrieval_utility", "retrieval_utility_top1")
            for step in (0, 10)
        ],
        columns=["label", "seed", "stage", "metric", "step", "value"],
    )
    figure = utility_by_masking(study, points, "seed 0")
    assert figure is not None
    assert figure.caption.startswith("Figure 4 of the paper")
    assert "Cells: REALM, random <tokens>." in figure.alt
    assert "Panels: weighted by p(z|x), of the top passage." in figure.alt
    assert utility_by_masking(product(), points, "seed 0") is None


def compute_points(cells: dict[str, tuple[int, list[float]]]) -> pd.DataFrame:
    """cell -> operations a step and recall at steps 0, 10, 20."""
    rows: list[tuple[Any, ...]] = []
    for label, (each, recalls) in cells.items():
        for step, recall in zip((0, 10, 20), recalls, strict=False):
            rows.append((label, 0, "pretrain", "recall_at_5", step, recall))
            if step:
                rows.append((label, 0, "pretrain", "training_operations", step, each * step * 0.75))
                rows.append((label, 0, "pretrain", "refresh_operations", step, each * step * 0.25))
    return pd.DataFrame(rows, columns=["label", "seed", "stage", "metric", "step", "value"])


def test_equal_compute_is_the_cheapest_run_that_went_to_the_end() -> None:
    points = compute_points({"a": (2, [0.0, 0.4, 0.8]), "b": (1, [0.0, 0.1, 0.3]), "young": (1, [0.0, 0.1])})
    compute = compute_of(points, ["a", "b", "young"])
    assert compute is not None
    assert compute.equal == 20.0
    table = compute_table(compute, [("a", "A"), ("b", "B"), ("young", "young")])
    assert list(table.frame["cell"]) == ["A", "B"]
    assert list(table.frame["recall@5, equal steps"]) == ["0.800", "0.300"]
    assert list(table.frame["recall@5, equal compute"]) == ["0.400", "0.300"]
    assert compute_of(points[points["label"] == "a"], ["a"]) is None


def example(label: str, when: str, text: str, null: float, marginal: float, seed: int = 0) -> dict[str, Any]:
    passage = {"title": "t", "before": "a ", "span": "", "after": "", "probability": 0.75, "reader": -0.5}
    candidates = [
        passage | {"utility": 1.0, "is_null": False, "is_gold": True},
        passage | {"utility": 0.0, "is_null": True, "is_gold": False, "probability": 0.25},
    ]
    place = {"label": label, "seed": seed, "kind": "cloze", "when": when, "moment": "", "text": text, "answer": "y"}
    return place | {"prediction": None, "null": null, "marginal": marginal, "candidates": candidates}


def test_table_3_is_of_the_baseline_beside_the_warm_start() -> None:
    gains = {"s1": 1.0, "s2": 5.0, "s3": 3.0, "s4": 2.0, "s5": -1.0}
    examples = [example("realm", "end", text, -6.0, -6.0 + gain) for text, gain in gains.items()]
    examples += [example("warm", "end", "s2", -2.0, -1.0), example("realm", "start", "s3", -4.0, -3.0)]
    examples += [example("other", "end", "s9", -90.0, 0.0)]
    intro, *blocks = table_3(examples, "realm", "REALM", "warm")
    assert isinstance(intro, Text)
    assert "Of the 5 held-out sentences of 1 seed" in intro.text
    assert [block.text for block in blocks[::2]] == ["s2", "s4", "s5"]  # type: ignore[union-attr]
    table = blocks[1]
    assert isinstance(table, Table)
    rows = {case: (z, y) for case, _, z, y in table.frame.itertuples(index=False)}
    assert rows["(a) no retrieval"] == ("", "0.002")
    assert rows["(a) before pre-training"] == ("", "0.135"), "of the warm-started cell"
    assert rows["(b) one document"] == ("0.750", "0.607")
    assert rows["(c) marginal"] == ("", "0.368")
    assert rows["(c) before pre-training"] == ("", "0.368")
    [missing] = table_3(examples, "nothing", "no cell", None)
    assert isinstance(missing, Text)
    assert missing.missing


def test_table_4_has_the_shares_of_every_cell_that_was_swapped() -> None:
    rows = pd.DataFrame(
        {
            "label": ["realm", "realm", "warm"],
            "seed": [0, 1, 0],
            "edition_swap.follows": [0.9, 0.7, None],
            "edition_swap.stays": [0.1, 0.1, None],
        }
    )
    [table] = table_4(rows, [("realm", "REALM"), ("warm", "warm start only")])
    assert isinstance(table, Table)
    assert list(table.frame["cell"]) == ["REALM"]
    assert table.frame["follows the new edition"][0] == "0.800 ± 0.141"
    assert table.frame["wrong"][0] == "–"
    assert "not recorded" in table.notes[0]
    [missing] = table_4(rows[["label", "seed"]], [("realm", "REALM")])
    assert isinstance(missing, Text)
    assert missing.missing


def test_a_record_from_before_a_parameter_was_there_has_its_default(tmp_path: Any) -> None:
    """So that runs of an older version of the project are compared in what they did."""
    runs = tmp_path / "runs"
    study = studies.make_study(runs)
    path = runs / study.of("no_null")[1].run / "run.json"
    record = read_run_record(path)
    del record.params["evaluate"]["explorer_examples"]
    path.unlink()
    write_run_record(runs, record)
    contents = StudyContents(runs, "table")
    assert confounds(study, contents.collection) == []
    record.params["evaluate"]["cloze_sentences"] = 3
    path.unlink()
    write_run_record(runs, record)
    [found] = confounds(study, StudyContents(runs, "table").collection)
    assert "no_null also differs from the baseline in evaluate.cloze_sentences" in found
