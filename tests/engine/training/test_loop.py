"""The loop and its tasks: logged on schedule, and honest about what they train."""

from pathlib import Path

import pytest

from realm_lab.engine.training import loop
from tests import tiny
from tests.tiny import by_name

# Dropout and calibration draw from torch's generator, so that its use without a seed would show.
RANDOM = {"model.dropout": 0.1, "pretrain.calibrate_null": True}
PARAMS = tiny.params(RANDOM)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.prepare(PARAMS, tmp_path_factory.mktemp("line"), "warm_start", "pretrain")


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


@pytest.mark.parametrize(
    ("frozen", "moved"), [(["train_query_tower", "train_document_tower"], "reader"), (["train_reader"], "embedder")]
)
def test_what_is_not_trained_stays_as_it_was(line: Path, frozen: list[str], moved: str) -> None:
    run = tiny.run("pretrain", tiny.params(RANDOM | {f"pretrain.{switch}": False for switch in frozen}), line)
    found, before = tiny.by_name(tiny.metrics(run)), tiny.stage_run("warm_start", PARAMS, line)
    for part, optimiser in (("reader", "reader"), ("embedder", "retriever")):
        old, new = ((each.path / "model" / part / "model.safetensors").read_bytes() for each in (before, run))
        assert (old != new) == (f"learning_rate_{optimiser}" in found) == (part == moved)
