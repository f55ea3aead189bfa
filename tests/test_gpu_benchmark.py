"""The list of benchmarks.gpu runs to its end whatever happens in an item, and its rivals do the same work."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, pretraining_step
from benchmarks.real_text import parameters, read_text
from realm_lab.records.files import read_json


def nothing(result: dict[str, Any]) -> Iterator[tuple[str, float | str]]:
    yield from ()


@pytest.mark.slow
def test_the_whole_list_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "GPU_TESTS", gpu.GPU_TESTS[:1])  # without a GPU they are only skipped
    arguments = [str(tmp_path / "out"), "--device", "cpu", "--tiny", "--threads", "1"]
    assert gpu.main(arguments) == 0
    found = read_json(tmp_path / "out" / "gpu.json")["items"]
    assert {name: one["state"] for name, one in found.items()} == dict.fromkeys(found, "done")
    assert len(found) == len(gpu.the_list(gpu.options_of(arguments)))
    assert all(check["right"] is not False for check in found["doctor"]["result"]["checks"])
    assert found["gpu tests"]["result"]["tests"] > 0
    assert (tmp_path / "out" / "step-base.json.gz").stat().st_size
    assert "plain step with transformers, bfloat16" in found["step, base"]["result"]["paths"]
    agreement = found["embedding, base"]["result"]["agreement"]  # the vectors that are compared are the same
    assert agreement["realm_lab float32"] < 1e-5 < agreement["realm_lab bfloat16"] < 0.05
    for batch in found["search"]["result"]["batches"].values():
        assert batch["of_these_identical_bit_for_bit"] == batch["checked_against_every_row"]
        assert batch["shared_with_torch"] > 0.99
    assert found["refresh"]["result"]["refreshes"] >= 2
    assert found["two ranks"]["result"]["right"] is True
    shown = (tmp_path / "out" / "gpu.md").read_text()
    assert all(f"| {name} | done |" in shown for name in found)


def test_an_item_that_fails_or_hangs_stops_nothing() -> None:
    failed = gpu.tried(gpu.Item("x", 60, ["timeit", "1/0"], nothing))
    assert failed["state"] == "failed"
    assert "ZeroDivisionError" in failed["said"]
    hung = gpu.tried(gpu.Item("x", 1, ["timeit", "-n1", "-r1", "-s", "import time", "time.sleep(60)"], nothing))
    assert hung["state"] == "cut"
    assert hung["seconds"] < 30


def test_what_is_there_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def note(item: gpu.Item) -> dict[str, Any]:
        tried.append(item.name)
        is_done = item.name != "search" or tried.count("search") > 1
        return {"state": "done" if is_done else "failed", "seconds": 1.0, "figures": {"a figure": 1.5}}

    monkeypatch.setattr(gpu, "tried", note)
    assert gpu.main([str(tmp_path), "--minutes", "0"]) == 1
    assert not tried
    assert gpu.main([str(tmp_path)]) == 1
    assert len(tried) == len(set(tried)) > 5
    assert gpu.main([str(tmp_path)]) == 0
    assert [name for name in tried if tried.count(name) > 1] == ["search", "search"]


def test_a_trial_is_not_taken_for_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "tried", lambda item: {"state": "done", "seconds": 1.0, "figures": {"a figure": 1.5}})
    assert gpu.main([str(tmp_path), "--device", "cpu", "--tiny"]) == 0
    with pytest.raises(SystemExit, match="measured with --device cpu --tiny; choose another OUT"):
        gpu.main([str(tmp_path)])


def test_the_plain_step_computes_our_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = argparse.Namespace(
        tiny=True, size=None, device="cpu", distinct=False, compile=False, candidates=4, batch_size=3, token_budget=512
    )
    params = parameters(arguments, "float32", pretraining_step.settings_of(arguments))
    text = read_text(params, tmp_path / "corpus")
    task = pretraining_step._task(params, text, arguments)
    plain = pretraining_step._plain(task, "float32")
    losses: list[float] = []
    original = task.train_step

    def train_step(step: int) -> dict[str, float]:
        losses.append(original(step)["loss"])
        return {}

    monkeypatch.setattr(task, "train_step", train_step)
    batches = [pretraining_step._recorded(task, step) for step in (0, 1)]
    assert plain.step(pretraining_step._arrays(batches[0], text, params)) == pytest.approx(losses[0], rel=1e-5)
    assert plain.step(pretraining_step._arrays(batches[1], text, params)) != pytest.approx(losses[0], rel=1e-5)
