"""Changes during pre-training in a report: the spread of paired differences by their step, and quality against it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from realm_lab.evidence.report.figures import Sketch, draw
from realm_lab.evidence.report.sections.step_changes import changes_json, families, lines_of, step_figure
from realm_lab.records.study import StudyCell, StudyRecord

NO_NULL = {"pretrain.null_document": "off"}


def late(step: int, **change: Any) -> dict[str, Any]:
    return {"pretrain.changes": {str(step): change}}


CELLS = (
    StudyCell("realm", "no change", "realm", {}),
    StudyCell("late", "no null from step 200", "realm", late(200, null_document="off")),
    StudyCell("start", "no null from the start", "realm", NO_NULL),
    StudyCell("early", "no null from step 50", "realm", late(50, null_document="off")),
    StudyCell("warm", "warm start only", "warm_start", {}),
    StudyCell("same", "more masks", "realm", late(50, mask_rate=0.2)),
)
TITLES = "null document = off", "mask rate = 0.2"
RECORD = StudyRecord("changes", "When?", "realm", CELLS, tuple(range(6)), (), metrics=("exact_match", "recall_at_5"))
SPREADS = {"realm": 0.1, "late": 0.01, "start": 0.08, "early": 0.04, "warm": 0.1, "same": 0.0}


def results() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    base = generator.normal(0.7, 0.1, 6)
    own = {cell: base - 0.1 + generator.normal(0, spread, 6) for cell, spread in SPREADS.items()}
    own |= {"realm": base, "same": base}
    rows = [(cell, seed, value, 3) for cell, values in own.items() for seed, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["cell", "seed", "exact_match", "engine_version"])


def test_a_change_is_a_line() -> None:
    assert lines_of(RECORD) == {
        TITLES[0]: {"start": "start", "early": "step 50", "late": "step 200"},
        TITLES[1]: {"same": "step 50"},
    }


def test_the_spread_is_that_of_differences_from_the_baseline() -> None:
    table = results()
    found = changes_json(RECORD, table)
    wide = table.pivot(index="seed", columns="cell", values="exact_match")
    for step, cell in ((0, "start"), (50, "early"), (200, "late")):
        assert found["spread"][TITLES[0]][step] == pytest.approx(np.std(wide[cell] - wide["realm"], ddof=1))
    assert found["spread"][TITLES[1]][50] == 0.0
    assert changes_json(RECORD, table[table["seed"] < 2]) == {}, "two pairs have no spread worth a line"


def test_quality_is_drawn_against_the_step_of_the_change() -> None:
    assert draw(Sketch("changes", "caption", "alt", lambda: step_figure(RECORD, results()))) is not None
    plain = StudyRecord("plain", "What?", "realm", CELLS[:1], (0,), (), metrics=("exact_match",))
    assert step_figure(plain, results()) is None


def test_changes_of_one_value_in_two_parameters_are_two() -> None:
    rates = {name: late(50, **{f"{name}.learning_rate": 0.1}) for name in ("reader", "retriever")}
    cells = (CELLS[0], *(StudyCell(name, name, "realm", change) for name, change in rates.items()))
    found = families(replace(RECORD, cells=cells))
    assert [list(one.values()) for one in found.values()] == [[cells[1]], [cells[2]]]
