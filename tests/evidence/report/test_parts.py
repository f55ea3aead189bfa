"""Parts of a report by hand: axes, drift, names in figures, and Table 3."""

import io
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from realm_lab.evidence.report import figures_training
from realm_lab.evidence.report.all_sections import sections_of
from realm_lab.evidence.report.comparison import compare_cells
from realm_lab.evidence.report.effects import axis_effects, interactions
from realm_lab.evidence.report.examples import PASSAGE_CHARACTERS, _candidate, table_3
from realm_lab.evidence.report.figures import (
    COLOURS,
    MOST_TOGETHER,
    Panel,
    Sketch,
    axes_figure,
    bands,
    bands_figure,
    by_value,
    draw,
    drawable,
    plane_figure,
)
from realm_lab.evidence.report.figures_training import quality_over_drift, quality_over_refreshing
from realm_lab.evidence.report.frames import AGE, StudyFrames
from realm_lab.evidence.report.rendering import MOST_COLUMNS, html, pipe_table
from realm_lab.evidence.report.report_data import Report
from realm_lab.evidence.report.sections.curves import even_ages
from realm_lab.evidence.statistics.family import Kind
from realm_lab.records.study import StudyCell, StudyRecord
from tests.evidence.report.synthetic import CELLS

RATE = "pretrain.retriever.learning_rate"
AXES: dict[str, tuple[str, ...]] = {"refresh": ("often", "never"), RATE: ("0.002", "0.001")}
# exact match by (refresh, rate) and seed: never refreshing costs .5 at the high rate, .03 at the low one
LEVELS = {("often", "0.002"): 0.9, ("often", "0.001"): 0.5, ("never", "0.002"): 0.4, ("never", "0.001"): 0.47}
NO_RUNS: dict[str, Any] = {"own_figures": [], "not_measured": {}}  # parts of a report that come from runs
CURVE = ["cell", "seed", "metric", "step", "value"]


def product() -> StudyRecord:
    """A study of two axes."""
    cells = []
    for first, rate in itertools.product(*AXES.values()):
        changes = ({"pretrain.refresh.policy": first} if first != "often" else {}) | (
            {RATE: 0.001} if rate == "0.001" else {}
        )
        points = {"refresh": first, RATE: rate}
        title = f"{first} at {rate}"
        cells.append(StudyCell(f"{first},learning_rate={rate}", title, "realm", changes, points=points))
    return StudyRecord("s", "Does it matter?", cells[0].name, tuple(cells), (0, 1), (), ("exact_match",), AXES)


def frames(record: StudyRecord, curves: pd.DataFrame | None = None) -> StudyFrames:
    """The study's results by formula, without run folders."""
    rows = []
    for (first, rate), seed in itertools.product(LEVELS, (0, 1)):
        value = LEVELS[first, rate] + 0.01 * seed * (first == "often")
        rows.append((f"{first},learning_rate={rate}", seed, value))
    study = StudyFrames(record, [], pd.DataFrame(rows, columns=["cell", "seed", "exact_match"]), [])
    study.__dict__["curves"] = pd.DataFrame(columns=CURVE) if curves is None else curves
    study.__dict__["pretrained"] = []
    return study


@pytest.mark.parametrize(("rows", "keys"), [([("a", 0), ("b", 0)], 1), ([("a", 0), ("a", 1)], 2), ([("a", 0)] * 2, 1)])
def test_the_rows_of_each_part_of_a_wide_table_differ(rows: list[tuple[str, int]], keys: int) -> None:
    numbers = {f"n{place}": str(place) for place in range(2 * MOST_COLUMNS)}
    parts = pipe_table([{"cell": cell, "seed": str(seed)} | numbers for cell, seed in rows]).split("\n\n")
    heads = [[name.strip() for name in part.splitlines()[0].strip("|").split("|")] for part in parts]
    assert len(heads) > 1
    assert all(head[:keys] == ["cell", "seed"][:keys] for head in heads)
    assert [name for head in heads for name in head[keys:]] == ["cell", "seed", *numbers][keys:], "each column once"


def test_an_axis_is_averaged_over_the_other_seed_by_seed() -> None:
    record = product()
    study = frames(record)
    [result] = compare_cells(record, study.results, ["exact_match"])
    refresh, rate = axis_effects(record, result)
    assert (refresh.axis, refresh.point, rate.axis, rate.point) == ("refresh", "never", RATE, "0.001")
    assert refresh.finding.comparison.deltas == pytest.approx((-0.265, -0.275))
    assert rate.finding.comparison.deltas == pytest.approx(((-0.4 + 0.07) / 2,) * 2)
    assert refresh.finding.tests == 2, "all points of all axes are one family"
    result.cells.pop()
    assert axis_effects(record, result)[0].finding.comparison.deltas == pytest.approx((-0.5, -0.51)), (
        "pairs with both cells"
    )
    assert axis_effects(StudyRecord("s", "", "realm", CELLS, (0,), ()), result) == []
    alone = result._replace(cells=result.cells[:1])
    assert axis_effects(record, alone) == [], "nothing to compare a cell with"


def test_an_interaction_is_the_difference_of_an_axis_effect_between_points_of_the_other() -> None:
    record = product()
    [found] = interactions(record, compare_cells(record, frames(record).results, ["exact_match"]))
    assert (found.metric.name, found.first, found.second) == ("exact_match", "never", "0.001")
    assert (found.here, found.at_base) == (pytest.approx(-0.035), pytest.approx(-0.505))
    assert found.finding.comparison.mean == pytest.approx(0.47)  # -.03 at the low rate, -.5 at the high one
    assert (found.finding.kind, found.finding.span) == (Kind.TOO_FEW_SEEDS, 2.0)
    one_axis = replace(record, axes={"refresh": AXES["refresh"]})
    assert interactions(one_axis, compare_cells(one_axis, frames(record).results, ["exact_match"])) == []
    looked_at = replace(record, exploratory=("exact_match",))
    assert interactions(looked_at, compare_cells(looked_at, frames(record).results, [])) == [], "it was not declared"


@pytest.mark.parametrize(
    ("figure", "curve", "x"),
    [(quality_over_drift, "index_overlap", 0.2), (quality_over_refreshing, "refresh_operations", 0.9)],
)
def test_quality_is_drawn_over_what_the_index_cost(
    figure: Callable[[StudyFrames], Any], curve: str, x: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, scale = product(), 1e12 if curve == "refresh_operations" else 1.0
    rows = [(c.name, s, curve, t, v * scale) for c in record.cells for s in (0, 1) for t, v in ((0, 0.7), (10, 0.9))]
    if figure is quality_over_drift:  # the start does not count
        rows = [(*row[:4], 0.8) for row in rows]
    assert draw(Sketch("drift", "caption", "alt", lambda: figure(frames(record)))) is None
    monkeypatch.setattr(figures_training, "plane_figure", lambda spots, *_, **__: spots)
    assert set(figure(frames(record, pd.DataFrame(rows, columns=CURVE)))["x"].round(9)) == {x}


def test_table_3_shows_the_largest_the_median_and_the_smallest_gain() -> None:
    gains = {"s1": 1.0, "s2": 5.0, "s3": 3.0, "s4": 2.0, "s5": -1.0}
    place: dict[str, Any] = {"cell": "realm", "seed": 0, "kind": "cloze", "when": "end", "null": -6.0}
    passage = {"title": "t", "before": "", "span": "", "after": "", "picture": None, "probability": 0.1, "reader": -1.0}
    candidates = [passage | {"is_null": number == 2, "is_gold": number == 5} for number in range(7)]
    place |= {"answer": "a", "candidates": candidates}
    examples = [place | {"text": text, "marginal": -6.0 + gain} for text, gain in gains.items()]
    examples += [place | {"when": "start", "text": "s8", "marginal": 0.0}, place | {"cell": "other", "text": "s9"}]
    study = frames(StudyRecord("s", "", "realm", CELLS, (0,), ()))
    shown = table_3(study, examples)
    told = [(found["rank"], found["text"], found["gain"]) for found in shown]
    assert told == [("largest", "s2", 5.0), ("median", "s4", 2.0), ("smallest", "s5", -1.0)]
    assert [one["is_gold"] for one in shown[0]["candidates"]] == [False] * 3 + [True, False], "the null document last"
    assert table_3(study, []) == []


@pytest.mark.parametrize("before", ["w " * 900, "w "])
def test_a_long_passage_is_cut_around_its_span(before: str) -> None:
    entry: dict[str, Any] = {"title": "t", "body": f"{before}oslo{' z' * 900}", "span": [len(before), len(before) + 4]}
    entry |= dict.fromkeys(("probability", "reader_log_likelihood", "utility", "is_null", "is_gold"))
    found = _candidate(entry)
    assert found["span"] == "oslo"
    assert len(found["before"] + found["span"] + found["after"]) <= PASSAGE_CHARACTERS + 4
    assert found["after"].endswith(" …")


def test_names_of_cells_are_whole_within_the_figure_and_of_one_colour() -> None:
    """Long titles were once cut off at the figure's edge, and a cell without curves changed the colours after it."""
    cells = [(f"c{n}", f"a cell whose title is rather long, and which is number {5 - n}") for n in range(6)]
    points = pd.DataFrame(
        [(name, seed, "recall_at_5", step, 0.5) for name, _ in cells[1:] for seed in (0, 1) for step in (0, 10)],
        columns=CURVE,
    )
    figure = bands_figure(bands(points), [Panel("recall_at_5")], cells)
    assert figure is not None
    names = figure.legends[0]
    shown = sorted(" ".join(text.get_text().split()) for text in names.get_texts())
    assert shown == sorted(title for _, title in cells[1:])
    assert by_value(["k = 12", "k = 8", "k = 20"]) == ["k = 8", "k = 12", "k = 20"]
    assert names.get_window_extent().x1 <= figure.bbox.width
    assert [line.get_color() for line in figure.axes[0].lines] == [*COLOURS[1:6]]


def test_a_study_of_two_axes_has_a_figure_of_them() -> None:
    times = {"wall_seconds": 60.0, "index_staleness_steps": 1.0}
    report = Report(product(), frames(product()).results.assign(**times), NO_RUNS, {}, pd.DataFrame())
    [sketch] = sections_of(report)["axes"].sketches
    figure = sketch.make()
    assert figure is not None
    assert {text.get_text() for text in figure.axes[0].texts} == {"learning rate 0.001", "learning rate 0.002"}


def test_a_line_without_runs_changes_no_colour() -> None:
    values = {(point, other): [0.1] for point in "pq" for other in "BC"}
    spots = pd.DataFrame({"cell": ["b", "c"], "x": [1, 2], "y": [0.1, 0.2]})
    by_axes = axes_figure(values, ["p", "q"], ["A", "B", "C"], ["one", "two", "value"])
    plane = plane_figure(
        spots, [(c, c) for c in "abc"], ("x", "y"), lines={f"two {c.upper()}": {c: c} for c in "abc"}, is_log=True
    )
    for figure in (by_axes, plane):
        assert figure is not None
        colours = {text.get_text(): text.get_color() for text in figure.axes[0].texts}
        assert colours == {"two B": COLOURS[1], "two C": COLOURS[2]}


def test_characters_that_the_font_lacks_are_written_otherwise() -> None:
    assert drawable("größe ≥ 4 —") == "größe ≥ 4 —"
    assert drawable("数 🙂") == "U+6570 U+1F642"


def test_only_our_details_become_html() -> None:
    text = (
        '<details markdown="1">\n<summary>Flags: 2</summary>\n\n- one\n\n</details>\n\n&lt;/details&gt;\n\n<b>x</b>\n'
    )
    page = html(text, Path())
    assert page.startswith("<details><summary>Flags: 2</summary>")
    assert page.count("</details>") == 1
    assert "&lt;/details&gt;" in page
    assert "&lt;b&gt;x" in page


def test_each_line_of_a_crowded_figure_keeps_its_colour_in_the_png(monkeypatch: pytest.MonkeyPatch) -> None:
    """The PNG has few colours. Thin lines over many bands keep their colours, which two of this study once did not."""
    monkeypatch.setattr("realm_lab.evidence.report.figures.DOTS_PER_INCH", 150)
    root = Path(__file__).resolve().parents[3]
    found = pd.read_csv(root / "reports/reference/random_masks_rates/curves.csv")
    cells = [(name, name) for name in found["cell"].unique()[:MOST_TOGETHER]]
    panels = [Panel(name) for name in found["metric"].unique()]
    drawing = draw(Sketch("curves", "", "", lambda: bands_figure(found, panels, cells)))
    assert drawing is not None
    pixels = np.asarray(Image.open(io.BytesIO(drawing.files["png"])).convert("RGB")).reshape(-1, 3).astype(int)
    for colour in COLOURS[: len(cells)]:
        wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
        assert np.abs(pixels - wanted).max(1).min() <= 4, colour


def test_many_curves_have_a_row_of_panels_each_with_the_baseline() -> None:
    names = ("retrieval_utility", "recall_at_5")
    rows = [(f"c{n}", name, step, 2, n, n, n + 1) for n in range(8) for name in names for step in (0, 60)]
    found = pd.DataFrame(rows, columns=["cell", "metric", "step", "seeds", "mean", "low", "high"])
    cells = [(f"c{n}", f"cell {n}") for n in range(8)]
    figure = bands_figure(found, [Panel(name, low=0.0) for name in names], cells)
    assert figure is not None
    panels = [[np.asarray(line.get_ydata()).tolist() for line in place.lines] for place in figure.axes]
    assert panels == [[[0, 0], [n, n]] for n in range(1, 8) for _ in names]
    assert min(place.get_ylim()[1] for place in figure.axes) > 8, "no row is cut off by the first one"


def test_the_age_of_an_index_shows_no_pattern_of_the_logging() -> None:
    """Refreshed every 3 steps and logged every 10, its mean alternates between .9 and 1.1."""
    rows = [(cell, "recall_at_5", step, 0.5) for cell in ("often", "seldom") for step in (0, 60, 120)]
    for cell, interval in (("often", 3), ("seldom", 90)):
        ages = np.arange(120) % interval
        rows += [(cell, AGE, step, ages[step - 10 : step].mean()) for step in range(10, 130, 10)]
    found = pd.DataFrame(rows, columns=["cell", "metric", "step", "mean"])
    found = found.assign(low=found["mean"], high=found["mean"] + 1, seeds=2)
    shown = even_ages(found)
    often = shown[(shown["cell"] == "often") & (shown["metric"] == AGE)]
    assert often[["step", "mean", "high", "seeds"]].to_numpy().tolist() == [
        [60, pytest.approx(1), pytest.approx(2), 2],
        [120, pytest.approx(1), pytest.approx(2), 2],
    ]
    rest = shown[(shown["cell"] == "seldom") | (shown["metric"] != AGE)]
    assert len(rest) == len(found) - 12
