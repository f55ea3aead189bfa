"""`realm-lab plan` through the command line: numbers, tables, and one line for every wrong request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from realm_lab import cli
from realm_lab.corpus.prepare import prepare
from realm_lab.params.parameters import Params
from realm_lab.planner.calibration import Calibration, default_path
from realm_lab.systems.identity import corpus_folder, plan_run

Calibrate = Callable[..., Calibration]
Capture = pytest.CaptureFixture[str]


def planned(project: Path, capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert cli.main(["plan", "--root", str(project), "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(project: Path, capsys: Capture, *arguments: str) -> str:
    assert cli.main(["plan", "--root", str(project), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("realm-lab: error: ").strip()


def test_seconds_follow_from_the_measurement(project: Path, calibrate: Calibrate, capsys: Capture) -> None:
    calibrate()
    found = planned(project, capsys, "--passages", "1000000", "--price", "3")
    passage, sentence = found["operations"]["passage"], found["operations"]["sentence"]
    step = 0.05 + 8 * sentence / 2e10 + (1_000_000 - 100) * (1e-8 + 8e-9)
    build = 1_000_000 * (passage / 1e10 + 32 * 4 / 1e8)
    assert found["seconds"]["step"] == pytest.approx(step)
    assert found["seconds"]["step_search"] == pytest.approx(1_000_000 * 1.8e-8)
    assert found["seconds"]["build"] == pytest.approx(build)
    assert found["seconds"]["inline"] == pytest.approx(1_000_000 * (passage / 1e10 + 1e-7))
    assert found["asynchronous"]["age_lowest"] == -(-build // step)
    assert found["asynchronous"]["cost"] == pytest.approx(3 * found["asynchronous"]["device_hours"])
    assert found["synchronous"]["age_mean"] == 4.5
    assert (found["source"], found["notes"]) == ("measured", [])


def test_more_devices_share_the_work(project: Path, calibrate: Calibrate, capsys: Capture) -> None:
    calibrate()
    one = planned(project, capsys, "--passages", "1048576")
    four = planned(project, capsys, "--passages", "1048576", "--builders", "4", "--trainers", "4", "--dtype", "float16")
    assert four["seconds"]["inline"] - 0.1048576 == pytest.approx((one["seconds"]["inline"] - 0.1048576) / 4)
    embedding = 262144 * one["operations"]["passage"] / 1e10
    assert four["seconds"]["build"] == pytest.approx(embedding + 262144 * 32 * 2 / 1e8)
    assert four["memory_bytes"]["generation_on_disk"] == one["memory_bytes"]["generation_on_disk"] / 2
    assert four["memory_bytes"]["trainer"]["activations (estimate)"] == pytest.approx(
        one["memory_bytes"]["trainer"]["activations (estimate)"] / 4
    )
    assert four["asynchronous"]["devices"] == 8
    assert any("index build --shard" in line for line in four["assumptions"])


def test_the_size_is_the_prepared_corpus_s(
    project: Path, params: Params, calibrate: Calibrate, capsys: Capture
) -> None:
    assert "give --passages N, or run `realm-lab prepare`" in refused(project, capsys, "--device", "H100")
    prepare(params, corpus_folder(project, plan_run(params, "realm", 0)), 0)
    calibrate()
    found = planned(project, capsys)
    assert found["passages"] == 40 * 8
    assert found["assumptions"][0].startswith("text: lengths of the prepared corpus")


def test_a_device_of_the_table_needs_no_measurement(project: Path, capsys: Capture) -> None:
    found = planned(project, capsys, "--passages", "1000000", "--device", "a100-80gb")
    assert (found["device"], found["source"]) == ("A100-80GB", "table")
    rate = 0.35 * 19.5e12
    store = 32 * 4 / 5e8
    assert found["seconds"]["build"] == pytest.approx(1_000_000 * (found["operations"]["passage"] / rate + store))
    assert found["seconds"]["step_search"] == pytest.approx(1_000_000 * 32 * (2 / 2039e9 + 8 * 2 / (0.35 * 312e12)))
    faster = planned(project, capsys, "--passages", "1000000", "--device", "A100-80GB", "--efficiency", "0.7")
    assert faster["speeds"]["embed_operations"] == 2 * found["speeds"]["embed_operations"]


def test_the_tables_say_what_is_measured_and_what_is_assumed(
    project: Path, calibrate: Calibrate, capsys: Capture
) -> None:
    calibration = calibrate()
    assert cli.main(["plan", "--root", str(project), "--passages", "1000000", "--builders", "99", "--price", "2"]) == 0
    shown = capsys.readouterr().out
    assert f"speeds are measured: {default_path(project)}, 2026-01-02, host here" in shown
    assert calibration.device in shown
    for words in ("asynchronous", "synchronous", "age of the index", "share of time not training", "device hours"):
        assert words in shown
    for words in ("cost, at 2 an hour", "trainer: optimiser moments", "searcher: its bfloat16 copy", "builder: shard"):
        assert words in shown
    assert "assumed: text: every passage and sentence as long as the parameters allow" in shown
    assert "note: 99 builders, but only 16 shards of 65,536 passages: some are idle" in shown
    assert "pretrain.refresh.delay_steps=" in shown
    arguments = ["--passages", "1000000", "--device", "H100", "--set", "pretrain.batch_size=1000000"]
    assert cli.main(["plan", "--root", str(project), *arguments, "--set", "pretrain.refresh.policy=never"]) == 0
    shown = capsys.readouterr().out
    assert (
        "speeds are from the table: NVIDIA H100 datasheet (SXM5); 66.9 Tflop/s in float32, 35% of it assumed" in shown
    )
    assert f"note: {default_path(project)} is of {calibration.device}: not used" in shown
    assert "note: a trainer needs " in shown
    assert "note: pretrain.refresh.policy is never; planned is a refresh every 10 steps" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--builders", "0"],
            "--builders 0: give 1 or more; what happens without a builder of its own is the synchron",
        ),
        (["--trainers", "0"], "--trainers 0: give 1 or more"),
        (["--passages", "-3"], "--passages -3: give 1 or more"),
        (["--price", "-1"], "--price -1: give 0 or more"),
        (["--dtype", "int4"], "--dtype int4: choose float32, float16"),
        (["--device", "H10O"], "--device H10O: not in the table; the nearest is 'H100'"),
        (["--device", "T4", "--set", "model.precision=bfloat16"], "--device T4: it multiplies no bfloat16 matrices"),
        (["--device", "T4", "--efficiency", "1.5"], "--efficiency 1.5: give a share of the peak above 0, at most 1"),
        ([], "this machine has not been measured; run `realm-lab bench`, or plan for a device of the table"),
        (["--calibration", "no.json", "--device", "T4"], "no.json: this machine has not been measured"),
    ],
)
def test_wrong_requests(project: Path, capsys: Capture, arguments: list[str], said: str) -> None:
    assert said in refused(project, capsys, "--passages", "1000", *arguments)


def test_a_measurement_of_another_device_is_refused_or_named(
    project: Path, calibrate: Calibrate, capsys: Capture
) -> None:
    calibrate(device="Another GPU", device_type="cuda")
    error = refused(project, capsys, "--passages", "1000")
    assert f"{default_path(project)}: measured on Another GPU (host here), this machine is " in error
    assert 'run `realm-lab bench` here, or plan for that one: --device "Another GPU"' in error
    found = planned(project, capsys, "--passages", "1000", "--device", "another gpu")
    assert (found["device"], found["source"]) == ("Another GPU", "measured")


def test_a_measurement_of_another_model_is_refused(project: Path, calibrate: Calibrate, capsys: Capture) -> None:
    calibrate()
    error = refused(project, capsys, "--passages", "1000", "--set", "model.layers=3")
    assert "measured with layers 2, the parameters say 3; run `realm-lab bench` with the same parameters" in error


def test_a_measured_device_needs_no_assumed_efficiency(project: Path, calibrate: Calibrate, capsys: Capture) -> None:
    calibrate()
    error = refused(project, capsys, "--passages", "1000", "--efficiency", "0.5")
    assert "--efficiency is for devices of the table" in error


def test_a_damaged_file_and_an_old_torch(project: Path, calibrate: Calibrate, capsys: Capture) -> None:
    calibrate(torch="1.0")
    [note] = planned(project, capsys, "--passages", "1000")["notes"]
    assert f"measured with torch 1.0, this is {torch.__version__}; run `realm-lab bench` again" in note
    path = default_path(project)
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    assert "format 9, this engine reads 1; run `realm-lab bench`" in refused(project, capsys, "--passages", "1000")
    path.write_text('{"format": 1}')
    assert "bench.json: device: field required; run `realm-lab bench`" in refused(project, capsys, "--passages", "1000")
