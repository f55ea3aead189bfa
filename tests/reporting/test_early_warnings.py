"""The figure of early warnings: what was logged, with the bounds that were set, and nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from realm_lab.reporting import figures
from realm_lab.reporting.document import Figure
from realm_lab.reporting.figure_list import curve_figures
from realm_lab.reporting.table import collect, curves_table
from realm_lab.tracking.run_dir import read_run_records, write_run_record
from realm_lab.tracking.study_record import (
    StudyCell,
    StudyRun,
    read_study_record,
    study_record_paths,
    write_study_record,
)
from tests.reporting import synthetic

OFF = {"min_entropy": 0.0, "max_entropy_fraction": 1.0, "max_null_probability": 1.0, "min_gold_utility": -100.0}
PROBES = {"gold passage": "probe_gold_utility", "same article": "probe_same_article_utility"}


def set_bounds(runs: Path, seed: int | None = None, **bounds: float) -> None:
    """Other parameters in run.json of all runs, or of one seed."""
    for path in runs.glob("*/run.json"):
        record = json.loads(path.read_text())
        if seed in (None, record["seed"]):
            record["params"]["pretrain"]["watch"] = OFF | bounds
            path.write_text(json.dumps(record))


def drawing(runs: Path, monkeypatch: pytest.MonkeyPatch, name: str = "early_warnings") -> tuple[Figure, Canvas]:
    """The figure of early warnings (or another one), and the canvas it was drawn on."""
    canvases: list[Canvas] = []

    class Kept(Canvas):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            canvases.append(self)

        def savefig(self, *arguments: Any, **named: Any) -> None:
            """What is on the canvas is asked, not its pixels: those take most of the time."""

    monkeypatch.setattr(figures, "Canvas", Kept)
    collection = collect(runs, "default")
    drawn = [item for item in curve_figures(collection, curves_table(collection)) if isinstance(item, Figure)]
    names = [item.name for item in drawn]
    return drawn[names.index(name)], canvases[names.index(name)]


def panels(canvas: Canvas) -> dict[str, Any]:
    return {axes.get_title(loc="left"): axes for axes in canvas.axes if axes.axison}


def texts(axes: Any) -> set[str]:
    return {text.get_text() for text in axes.texts}


def heights(axes: Any) -> set[float]:
    """Heights of lines across the whole panel."""
    return {line.get_ydata()[0] for line in axes.lines if list(line.get_xdata()) == [0, 1]}


def drop(runs: Path, *metrics: str) -> None:
    """Take metrics out of every metrics.jsonl."""
    for path in runs.glob("stages/*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [{name: value for name, value in row.items() if name not in metrics} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))


def test_seeds_are_thin_and_their_mean_is_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.make_runs(tmp_path)
    set_bounds(tmp_path)
    figure, canvas = drawing(tmp_path, monkeypatch)
    found = panels(canvas)
    assert list(found) == [
        "entropy of p(z|x)",
        "p(null document)",
        "gold among candidates",
        "reader probe: utility",
        "spread of retrieval scores",
        "gradient norms",
    ]
    assert all(axes.get_ylabel() for axes in found.values())
    assert "Early warnings of a collapse" in figure.alt
    points = curves_table(collect(tmp_path, "default"))
    fraction = points[points["metric"] == "candidate_entropy_fraction"].pivot(index="step", columns="seed")["value"]
    first, second, mean = found["entropy of p(z|x)"].lines
    assert list(first.get_ydata()) == list(fraction[0])
    assert list(second.get_ydata()) == list(fraction[1])
    assert list(mean.get_ydata()) == pytest.approx(list((fraction[0] + fraction[1]) / 2))
    assert mean.get_linewidth() > first.get_linewidth()


def test_the_probe_s_three_lines_and_the_norms_share_a_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.make_runs(tmp_path, (0,))
    set_bounds(tmp_path)
    found = panels(drawing(tmp_path, monkeypatch)[1])
    points = curves_table(collect(tmp_path, "default"))
    for title, names, scale in (
        ("reader probe: utility", ["gold passage", "same article", "random passage"], "linear"),
        ("gradient norms", ["reader", "retriever"], "log"),
    ):
        axes = found[title]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == names
        assert len({line.get_color() for line in axes.get_legend().get_lines()}) == len(names)
        assert axes.get_yscale() == scale
    lines = [line for line in found["reader probe: utility"].lines if len(line.get_xdata()) > 2]
    for line, metric in zip(lines, PROBES.values(), strict=False):
        assert list(line.get_ydata()) == list(points[points["metric"] == metric]["value"])
    assert len(lines) == 3


def test_bounds_are_drawn_where_they_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.make_runs(tmp_path, (0, 1))
    set_bounds(tmp_path)
    without = panels(drawing(tmp_path, monkeypatch)[1])
    assert not [title for title, axes in without.items() if texts(axes)]
    set_bounds(tmp_path, min_entropy=0.2, max_entropy_fraction=0.97, max_null_probability=0.9, min_gold_utility=-0.5)
    found = panels(drawing(tmp_path, monkeypatch)[1])
    assert texts(found["entropy of p(z|x)"]) == {"flag above 0.97", "flag below 0.2 nats"}
    assert heights(found["entropy of p(z|x)"]) == {0.97, 0.2 / math.log(12)}  # the toy preset reads 12 candidates
    assert texts(found["p(null document)"]) == {"flag above 0.9"}
    assert heights(found["p(null document)"]) == {0.9}
    assert not texts(found["reader probe: utility"])  # its curves leave no room: the legend names the bound
    assert "flag below -0.5" in [text.get_text() for text in found["reader probe: utility"].get_legend().get_texts()]
    assert heights(found["reader probe: utility"]) == {-0.5, 0.0}
    assert not texts(found["spread of retrieval scores"])
    set_bounds(tmp_path, seed=1, max_null_probability=0.5)
    assert not texts(panels(drawing(tmp_path, monkeypatch)[1])["p(null document)"]), "runs that differ have no bound"


def test_only_what_was_logged_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.make_runs(tmp_path, (0,))
    set_bounds(tmp_path, min_entropy=0.2)
    drop(tmp_path, "probe_same_article_utility", "gradient_norm_retriever", "null_probability")
    found = panels(drawing(tmp_path, monkeypatch)[1])
    assert "p(null document)" not in found
    legend = found["reader probe: utility"].get_legend().get_texts()
    assert [text.get_text() for text in legend] == ["gold passage", "random passage"]
    assert [text.get_text() for text in found["gradient norms"].get_legend().get_texts()] == ["reader"]
    drop(tmp_path, "probe_gold_utility", "probe_random_utility", "candidate_entropy_fraction", "gradient_norm_reader")
    found = panels(drawing(tmp_path, monkeypatch)[1])
    assert not {"reader probe: utility", "gradient norms"} & found.keys()
    assert found["entropy of p(z|x)"].get_ylabel() == "nats"
    assert texts(found["entropy of p(z|x)"]) == {"uniform", "flag below 0.2"}


def test_several_labels_have_colours_of_their_own_and_the_probe_one_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.make_runs(tmp_path, (0,))
    set_bounds(tmp_path, min_gold_utility=0.0)
    record = next(record for record in read_run_records(tmp_path) if record.system == "realm")
    folder = tmp_path / record.stages["pretrain"]
    copy = folder.with_name("pretrain-aaaaaaaaaaaa")
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    stages = record.stages | {"pretrain": f"stages/{copy.name}"}
    other = replace(record, system="other", run_key="f" * 64, stages=stages)
    write_run_record(tmp_path, other)
    [path] = study_record_paths(tmp_path)
    study = read_study_record(path)
    member = StudyRun("other", other.seed, other.run_key, other.name)
    cell = StudyCell("other", "other", "realm", {})
    write_study_record(tmp_path, replace(study, cells=(*study.cells, cell), runs=(*study.runs, member)))
    found = panels(drawing(tmp_path, monkeypatch)[1])
    probes = [found[f"probe: {name}"] for name in ("gold passage", "same article", "random passage")]
    assert len({axes.get_ylim() for axes in probes}) == 1
    for axes in (*probes, found["gradient norm, reader"], found["gradient norm, retriever"]):
        assert len({line.get_color() for line in axes.lines if len(line.get_xdata()) > 2}) == 2
    assert texts(probes[0]) == {"flag below 0"}
    assert not texts(probes[1])
    fresh = panels(drawing(tmp_path, monkeypatch, "index_freshness")[1])
    for title in ("stale top k in the fresh one", "shift of p(z|x)"):
        assert len({line.get_color() for line in fresh[title].lines}) == 2


def test_the_freshness_of_the_index_is_its_age_and_its_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.make_runs(tmp_path, (0,))
    found = panels(drawing(tmp_path, monkeypatch, "index_freshness")[1])
    assert list(found) == ["age of the index", "stale top k in the fresh one", "shift of p(z|x)"]
    points = curves_table(collect(tmp_path, "default"))
    for title, metric in (("stale top k in the fresh one", "index_overlap"), ("shift of p(z|x)", "prior_shift")):
        exact, sampled = (line for line in found[title].lines if len(line.get_xdata()) > 2)
        for line, name in ((exact, metric), (sampled, f"{metric}_sampled")):
            expected = points[points["metric"] == name]
            assert list(line.get_xdata()) == list(expected["step"])
            assert list(line.get_ydata()) == list(expected["value"])
        assert [text.get_text() for text in found[title].get_legend().get_texts()] == [
            "all passages",
            "estimate from a sample",
        ]
    drop(tmp_path, "index_overlap", "index_overlap_sampled", "prior_shift_sampled")
    found = panels(drawing(tmp_path, monkeypatch, "index_freshness")[1])
    assert list(found) == ["age of the index", "shift of p(z|x)"]
    assert [text.get_text() for text in found["shift of p(z|x)"].get_legend().get_texts()] == ["all passages"]
    drop(tmp_path, "index_staleness_steps", "prior_shift")
    with pytest.raises(ValueError, match="index_freshness"):
        drawing(tmp_path, monkeypatch, "index_freshness")
