"""Custom metrics of a run: returned values that are no numbers are reasons, not errors."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from realm_lab.records.computed import Prediction, computed_values, definition
from realm_lab.records.plugins import Choice
from realm_lab.records.run import StageRun


def of_each(predictions: Sequence[Prediction]) -> np.ndarray:
    return np.array([1.0, 0.0])


def test_an_array_is_no_value(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    row = {"id": "q", "question": "?", "answers": ["a"], "prediction": "a"}
    (tmp_path / "eval" / "predictions.jsonl").write_text(json.dumps(row))
    metric = definition("metrics", Choice(f"{__name__}:of_each"))
    values, reasons = computed_values([metric], {"evaluate": StageRun(tmp_path, "evaluate")})
    assert values == {}
    assert "array of size 1" in reasons["of_each"]
