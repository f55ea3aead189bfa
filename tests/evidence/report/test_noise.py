"""The report of a study of noise: the sources of the variance; any other study has none."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from realm_lab.evidence.report.frames import load_study
from realm_lab.evidence.report.report import write_study_report
from realm_lab.evidence.report.report_data import load_report
from realm_lab.evidence.report.sections.noise import Noise
from realm_lab.evidence.statistics.components import components
from realm_lab.records.files import read_json
from realm_lab.records.study import StudyCell, write_study_record
from tests.evidence.report.synthetic import make_study

pytestmark = pytest.mark.usefixtures("undrawn")
INITIALISATION, ORDER = {"streams.initialisation": 1}, {"streams.order": {"pretrain": 1}}
AXES: dict[str, tuple[str, ...]] = {"initialisation": ("weights_1", "weights_2"), "order": ("order_1", "order_2")}
CELLS = tuple(
    StudyCell(",".join(points), title, "realm", changes, points=dict(zip(AXES, points, strict=True)))
    for points, title, changes in (
        (("weights_1", "order_1"), "first", {}),
        (("weights_2", "order_1"), "second", INITIALISATION),
        (("weights_1", "order_2"), "third", ORDER),
        (("weights_2", "order_2"), "fourth", INITIALISATION | ORDER),
    )
)


def test_the_report_of_a_study_of_noise_has_the_sources_of_the_variance(tmp_path: Path) -> None:
    runs, seeds = tmp_path / "runs", (0, 1, 2, 3)
    study = replace(make_study(runs, seeds, name="noise", cells=CELLS), axes=AXES)
    write_study_record(runs, study)
    folder = write_study_report(tmp_path, "noise")
    results = load_study(runs, "noise").results.set_index(["cell", "seed"])["exact_match"]
    cells = [[f"{weights},{order}" for order in AXES["order"]] for weights in AXES["initialisation"]]
    table = np.array([[[results[cell, seed] for cell in row] for row in cells] for seed in seeds])
    written = read_json(folder / "summary.json")["sources"]["exact_match"]
    assert written["seeds"] == len(seeds)
    assert [*written["components"]] == ["world", "initialisation", "order", "rest"]
    expected = [one.raw for one in components(table)]
    assert [one["raw"] for one in written["components"].values()] == pytest.approx(expected)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "% of the variance is the world" in text
    again = Noise(load_report(folder)).found
    assert [one.raw for one in again[0].components.values()] == pytest.approx(expected)


def test_any_other_study_has_none(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    changed = (*CELLS[:3], replace(CELLS[3], changes=ORDER | {"pretrain.masking": "random_token"}))
    write_study_record(runs, replace(make_study(runs, (0, 1), name="mixed", cells=changed), axes=AXES))
    make_study(runs, (0, 1), name="cells", cells=CELLS)
    write_study_record(runs, replace(make_study(runs, (0,), name="one_seed", cells=CELLS), axes=AXES))
    for name in ("mixed", "cells", "one_seed"):
        assert "sources" not in read_json(write_study_report(tmp_path, name) / "summary.json")
