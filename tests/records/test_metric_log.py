import json
from pathlib import Path

import numpy as np
import pytest

from realm_lab.records.metric_log import MetricLog
from tests.factories.errors import refused


@pytest.fixture
def log(tmp_path: Path) -> MetricLog:
    return MetricLog(tmp_path / "metrics.jsonl")


def steps(log: MetricLog) -> list[int]:
    return [row["step"] for row in log.rows()]


def test_rows_come_back_in_order_with_step_and_time(log: MetricLog) -> None:
    assert (log.rows(), log.truncate_after(0)) == ([], 0)
    log.log(1, {"loss": 2.5})
    log.log(2, {"loss": np.float32(1.5), "recall_at_5": 0.25})  # type: ignore[dict-item]
    first, second = log.rows()
    assert first["loss"] == 2.5
    assert (second["step"], second["loss"], second["recall_at_5"]) == (2, 1.5, 0.25)
    assert 0 < first["time"] <= second["time"]


def test_non_finite_values_are_null(log: MetricLog) -> None:
    log.log(1, {"loss": float("nan"), "gradient_norm": float("inf"), "rate": 1.0})
    (row,) = log.rows()
    assert (row["loss"], row["gradient_norm"], row["rate"]) == (None, None, 1.0)
    assert "NaN" not in log.path.read_text()


def test_truncate_after_drops_later_steps_and_is_followed_by_appends(log: MetricLog) -> None:
    for step in range(10):
        log.log(step, {"loss": float(step)})
    assert log.truncate_after(6) == 3
    assert log.truncate_after(6) == 0
    log.log(7, {"loss": 70.0})
    assert steps(log) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert log.rows()[-1]["loss"] == 70.0


@pytest.mark.parametrize("torn", ['{"step": 3, "ti', '{"step": 3, "time": 1.0}', "\0\0\0\0\n"])
def test_a_torn_last_line_is_ignored_then_dropped(log: MetricLog, torn: str) -> None:
    log.log(1, {"loss": 1.0})
    log.log(2, {"loss": 2.0})
    with open(log.path, "a") as file:
        file.write(torn)
    assert steps(log) == [1, 2]
    left = log.path.read_bytes()
    resumed = MetricLog(log.path)
    assert resumed.truncate_after(1) == 2
    assert steps(resumed) == [1]
    log.path.write_bytes(left)
    MetricLog(log.path).log(3, {"loss": 3.0})
    assert steps(log) == [1, 2, 3], "two lines are not glued"


@pytest.mark.parametrize("broken", ["{]", '["step"]', '{"loss": 1}', '{"step": "two", "time": 1}'])
def test_a_broken_line_in_the_middle_is_named(log: MetricLog, broken: str) -> None:
    good = json.dumps({"step": 1, "time": 1.0})
    log.path.write_text(f"{good}\n{broken}\n{good}\n")
    with refused("delete", path=log.path, line=2):
        log.rows()
