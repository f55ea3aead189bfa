"""The loop and its three tasks: deterministic, logged on schedule, honest about what they train and why they stop."""

import math
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.training import loop
from tests import tiny
from tests.tiny import by_name

# Dropout and calibration draw from torch's generator, so that its use without a seed would show.
RANDOM = {"model.dropout": 0.1, "pretrain.calibrate_null": True}
PARAMS = tiny.params(RANDOM)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root where all three training stages have run."""
    return tiny.prepare(PARAMS, tmp_path_factory.mktemp("line"), "warm_start", "pretrain", "finetune")


def test_warm_start_logs_two_phases(line: Path) -> None:
    found = by_name(tiny.metrics(tiny.stage_run("warm_start", PARAMS, line)))
    assert list(found["loss_mlm"]) == list(found["accuracy_mlm"]) == list(range(1, 13))
    assert list(found["loss_ict"]) == list(found["accuracy_ict"]) == list(range(13, 25))
    assert found["loss_ict"][13] == pytest.approx(math.log(8), rel=0.5)  # a choice among the batch
    assert found["loss_mlm"][1] == pytest.approx(math.log(669), rel=0.2)  # among the vocabulary


def test_pretrain_logs_steps_and_evaluations_on_schedule(line: Path) -> None:
    found = by_name(tiny.metrics(tiny.stage_run("pretrain", PARAMS, line)))
    every_step = (
        "loss marginal_log_likelihood retrieval_utility_train candidate_entropy null_probability score_spread "
        "gold_among_candidates index_staleness_steps learning_rate_reader learning_rate_retriever "
        "gradient_norm_reader gradient_norm_retriever"
    ).split()
    evaluated = (
        "retrieval_utility retrieval_utility_top1 retrieval_utility_best cloze_log_likelihood cloze_exact_match "
        "cloze_null_probability cloze_gold_among_candidates recall_at_1 recall_at_5 recall_at_20 "
        "cloze_gold_known questions_dev"
    ).split()
    assert {name: list(found[name]) for name in every_step} == {name: list(range(1, 13)) for name in every_step}
    assert {name: list(found[name]) for name in evaluated} == {name: [0, 4, 8, 12] for name in evaluated}
    assert list(found["index_staleness_steps"].values()) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    raw = tiny.stage_run("pretrain", PARAMS, line).metrics.rows()
    assert {"step_seconds", "refresh_share_of_time"} <= {name for row in raw for name in row}


def test_finetune_logs_every_step(line: Path) -> None:
    found = by_name(tiny.metrics(tiny.stage_run("finetune", PARAMS, line)))
    assert list(found["answerable_fraction"]) == list(range(1, 13))
    assert all(0 <= value <= 1 for value in found["answerable_fraction"].values())
    trained = [step for step, value in found["answerable_fraction"].items() if value > 0]
    assert len(trained) > 6  # else the stage tests nothing
    # Without an answerable question there is no loss, and nothing is updated.
    names = "loss marginal_log_likelihood learning_rate_reader learning_rate_retriever gradient_norm_reader".split()
    assert all(list(found[name]) == trained for name in names)


@pytest.mark.parametrize("count_steps", [loop.COUNT_STEPS, 1])
def test_neither_logging_nor_counting_changes_a_bit_of_the_model(
    line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_steps: int
) -> None:
    monkeypatch.setattr(loop, "COUNT_STEPS", count_steps)
    sparse = tiny.params(RANDOM | {"launch.log_interval_steps": 5, "launch.checkpoint_interval_seconds": 1000})
    run = tiny.run("warm_start", sparse, tiny.prepare(sparse, tmp_path))
    assert [row["step"] for row in tiny.metrics(run) if "loss" in row] == [5, 10, 15, 20, 24]  # and the last
    other = tiny.stage_run("warm_start", sparse, line)
    assert tiny.outcome(run)[0] == tiny.outcome(other)[0]
    counted, elsewhere = run.status().training_flop, other.status().training_flop
    assert counted > 24 * 2**20
    assert counted == pytest.approx(elsewhere, rel=0.1) if count_steps == 1 else counted == elsewhere


def pretrained(line: Path, **changes: Any) -> tuple[Path, dict[str, dict[int, float]]]:
    """The models and the metrics of pre-training with changed parameters, from the line's warm start."""
    run = tiny.run("pretrain", tiny.params(RANDOM | {f"pretrain.{key}": value for key, value in changes.items()}), line)
    return run.path / "model", by_name(tiny.metrics(run))


def same(one: Path, other: Path, name: str) -> bool:
    return (one / name).read_bytes() == (other / name).read_bytes()


@pytest.fixture(scope="module")
def warm(line: Path) -> Path:
    """The models of the warm start."""
    return tiny.stage_run("warm_start", PARAMS, line).path / "model"


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({"train_query_tower": False, "train_document_tower": False}, ["reader"]),
        ({"train_reader": False}, ["embedder"]),
        ({"steps": 0, "calibrate_null": False}, []),
    ],
)
def test_what_is_not_trained_stays_as_it_was(line: Path, warm: Path, changes: dict[str, Any], moved: list[str]) -> None:
    model, found = pretrained(line, **changes)
    for part, optimiser in (("reader", "reader"), ("embedder", "retriever")):
        assert same(model, warm, f"{part}/model.safetensors") == (part not in moved)
        assert (f"learning_rate_{optimiser}" in found) == (part in moved)
