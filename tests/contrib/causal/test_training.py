"""Pre-training with a frozen causal language model as the reader."""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from realm_lab.contrib.causal import likelihoods
from realm_lab.contrib.causal.model import CausalModel
from realm_lab.engine.models.candidate_reader import ABSENT_NATS
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.training import loop
from realm_lab.engine.training.pretrain import PretrainTask
from realm_lab.errors import UserError
from realm_lab.lab.housekeeping import unneeded
from realm_lab.records.files import write_json
from tests import tiny
from tests.contrib.causal.causal_folder import write_causal_folder

PAIRS = "runs/likelihoods/*/pairs.bin"


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a warm start, and a causal language model."""
    root = tiny.prepare(tiny.params(), tmp_path_factory.mktemp("causal"), "warm_start")
    write_causal_folder(root / "causal", ["some words of the toy world"])
    return root


def chosen(line: Path, changes: dict[str, Any] | None = None) -> Params:
    short = {
        "pretrain.steps": 6,
        "evaluate.interval_steps": 3,
        "launch.checkpoint_interval_seconds": 2,
    }  # every third step
    causal_reader = {"pretrain.causal_checkpoint": str(line / "causal"), "pretrain.train_reader": False}
    return tiny.params(short | causal_reader | (changes or {}))


def never(*given: object) -> CausalModel:
    raise AssertionError("nothing is left to read")


def test_the_retriever_learns_from_a_table_that_runs_share(line: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    run = tiny.run("pretrain", chosen(line), line)
    first, [pairs] = tiny.outcome(run), list(line.glob(PAIRS))
    before = tiny.files(tiny.stage_run("warm_start", chosen(line), line).path / "model")
    for name in ("reader/model.safetensors", "embedder/model.safetensors"):
        assert (first[0][name] == before[name]) == name.startswith("reader")
    losses = [row["loss"] for row in first[1] if "loss" in row]
    assert len(losses) == 6
    assert all("probe_gold_utility" in row or "loss" in row or "retrieval_utility" in row for row in first[1])
    size = pairs.stat().st_size

    # Killed and resumed; now likelihoods come only from the table.
    monkeypatch.setattr(likelihoods, "CausalModel", never)
    shutil.rmtree(run.path)
    with tiny.steps_done(PretrainTask, killed_at=3):
        tiny.run("pretrain", chosen(line), line)
    with tiny.steps_done(PretrainTask) as done:
        assert tiny.outcome(tiny.run("pretrain", chosen(line), line)) == first
    assert done[0] > 0
    assert done[-1] == 5
    assert pairs.stat().st_size == size

    # A run with another learning rate reads pairs from the table, as far as it finds the same passages.
    monkeypatch.undo()
    tiny.run("pretrain", chosen(line, {"pretrain.retriever.learning_rate": 2.0e-3}), line)
    assert size <= pairs.stat().st_size < 2 * size
    assert len(list(line.glob(PAIRS))) == 1


@pytest.mark.slow
def test_evaluation_measures_utility_by_it(line: Path) -> None:
    params = chosen(line, {"finetune.steps": 0})
    for stage in tiny.STAGES:
        tiny.run(stage, params, line)
    results = tiny.stage_run("evaluate", params, line).results()
    by_causal = results["retrieval_utility_end"], results["cloze_null_log_likelihood_start"]
    bert = params.model_copy(update={"pretrain": params.pretrain.model_copy(update={"causal_checkpoint": None})})
    for stage in tiny.STAGES:
        tiny.run(stage, bert, line)
    others = tiny.stage_run("evaluate", bert, line).results()
    assert others["retrieval_utility_end"] != by_causal[0]
    assert others["cloze_null_log_likelihood_start"] != pytest.approx(by_causal[1], abs=0.5)


def test_containment_trains_without_a_reader_and_is_measured_with_one(line: Path) -> None:
    params = chosen(line, {"pretrain.reward": "containment"})
    run = tiny.run("pretrain", params, line)
    rows = tiny.metrics(run)
    assert max(row["loss"] for row in rows if "loss" in row) <= -ABSENT_NATS
    causal_run = tiny.run("pretrain", chosen(line), line)
    measured, by_causal = tiny.by_name(rows), tiny.by_name(tiny.metrics(causal_run))
    for name in ("retrieval_utility_top1", "probe_gold_utility"):
        assert measured[name][0] == by_causal[name][0]  # before any step
    before = tiny.files(tiny.stage_run("warm_start", params, line).path / "model")
    after = tiny.files(run.path / "model")
    assert after["embedder/model.safetensors"] != before["embedder/model.safetensors"]
    assert after["embedder/model.safetensors"] != tiny.files(causal_run.path / "model")["embedder/model.safetensors"]
    assert after["reader/model.safetensors"] == before["reader/model.safetensors"]


def test_the_table_goes_with_the_runs_that_read_it(line: Path) -> None:
    from realm_lab.engine.systems.identity import plan_run, record_run

    table, report = next(line.glob(PAIRS)).parent, line / "reports" / "mine" / "results.csv"
    assert table in unneeded(line)
    record = record_run(line / "runs", plan_run(chosen(line), "realm", 0))
    report.parent.mkdir(parents=True)
    report.write_text(f"run_key\n{record.run_key}\n")
    assert table not in unneeded(line)
    (line / "causal").rename(line / "moved")
    assert table not in unneeded(line), "its run is there, and may find its model again"
    (line / "moved").rename(line / "causal")
    write_json(table.parent / "other" / "identity.json", {"checkpoint": "another model"})
    assert table.parent / "other" in unneeded(line)


def test_another_model_is_another_run(line: Path, tmp_path: Path) -> None:
    from realm_lab.engine.systems.identity import plan_run

    other = write_causal_folder(tmp_path / "other", ["some words of the toy world"], seed=1)
    same = write_causal_folder(tmp_path / "same", ["some words of the toy world"])
    keys = [
        plan_run(chosen(line, {"pretrain.causal_checkpoint": str(folder)}), "realm", 0).stages["pretrain"]
        for folder in (line / "causal", same, other)
    ]
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(UserError, match=r"causal_checkpoint.*nowhere\.gguf"):
        plan_run(chosen(line, {"pretrain.causal_checkpoint": "nowhere.gguf"}), "realm", 0)
