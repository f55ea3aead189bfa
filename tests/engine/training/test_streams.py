"""Noise streams: another number is another draw of one part of a run, and of nothing else."""

from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.params.load import load
from realm_lab.engine.systems.identity import plan_run
from tests import tiny
from tests.factories.errors import refused

UNTRAINED = {f"warm_start.{part}.steps": 0 for part in ("reader", "embedder")}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.prepare(tiny.params(), tmp_path_factory.mktemp("streams"))


def outcome(root: Path, stage: str, given: dict[str, Any], *before: str) -> tuple[dict[str, bytes], list[Any]]:
    params = tiny.params(given)
    for name in before:
        tiny.run(name, params, root)
    models, metrics, _ = tiny.outcome(tiny.run(stage, params, root))
    return {name: weights for name, weights in models.items() if name.endswith(".safetensors")}, metrics


@pytest.mark.slow
def test_the_initial_weights_are_of_one_stream_and_the_training_data_of_the_other(root: Path) -> None:
    same, drawn = {"streams.order": {"warm_start": 1}}, {"streams.initialisation": 1}
    initial, _ = outcome(root, "warm_start", UNTRAINED)
    assert outcome(root, "warm_start", UNTRAINED | same)[0] == initial
    others = outcome(root, "warm_start", UNTRAINED | drawn)[0]
    for part in ("reader", "embedder"):
        assert others[f"{part}/model.safetensors"] != initial[f"{part}/model.safetensors"]
    trained = [outcome(root, "warm_start", {"streams.order": {"warm_start": number}})[1] for number in (1, 2)]
    assert trained[0] != trained[1]


@pytest.mark.slow
def test_another_order_of_pretraining_starts_from_the_same_state(root: Path) -> None:
    (weights, rows), (others, other_rows) = (
        outcome(root, "pretrain", {"streams.order": {"pretrain": number}}, "warm_start") for number in (0, 1)
    )
    started, others_started = rows[0], other_rows[0]
    assert started["step"] == others_started["step"] == 0
    measured = [name for name in started if name.startswith(("cloze_", "recall_at_", "retrieval_utility"))]
    assert len(measured) > 5
    assert [started[name] for name in measured] == [others_started[name] for name in measured]
    assert {row["loss"] for row in rows if "loss" in row}.isdisjoint(row["loss"] for row in other_rows if "loss" in row)
    assert others.keys() == weights.keys()
    assert others["reader/model.safetensors"] != weights["reader/model.safetensors"]


@pytest.mark.parametrize(
    ("order", "problem"),
    [({"pretrian": 1}, "pretrain"), ({"evaluate": 1}, "evaluate"), ({"pretrain": True}, "order"), (1, "order")],
)
def test_a_wrong_order_is_refused_before_any_run(order: Any, problem: str) -> None:
    with refused(problem):
        plan_run(load(tiny.PARAMETERS, {"streams.order": order}), "realm", 0)
