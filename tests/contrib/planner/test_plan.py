"""`realm-lab plan` through the command line: numbers, tables, and one line for every wrong request."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm_lab import cli
from realm_lab.contrib.planner import bench
from realm_lab.contrib.planner.bench import Calibration, default_path
from realm_lab.contrib.planner.plan import Request, Seconds, freshness
from realm_lab.engine.models.encoder import EncoderShape
from realm_lab.engine.training.flops import encoder_operations

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
    passage, sentence = found["model"]["passage_operations"], found["model"]["sentence_operations"]
    search, build = 1_000_000 * 8e-9, 1_000_000 * passage / 1e10
    assert found["seconds"]["step"] == pytest.approx(0.05 + 8 * sentence / 2e10 + search)
    assert found["seconds"]["step_search"] == pytest.approx(search)
    assert found["seconds"]["build"] == pytest.approx(build)
    assert found["seconds"]["inline"] == pytest.approx(build)
    assert found["asynchronous"]["age_lowest"] == -(-build // found["seconds"]["step"])
    assert found["asynchronous"]["cost"] == pytest.approx(3 * found["asynchronous"]["device_hours"])
    assert found["synchronous"]["age_mean"] == 4.5
    assert (found["source"], found["notes"]) == ("measured", [])


def test_a_whole_run_is_the_sum_of_its_stages(project: Path, calibrate: Calibrate, capsys: Capture) -> None:
    calibrate()
    asked = ("--passages", "1000000", "--set", "warm_start.reader.steps=0", "--set", "warm_start.embedder.attempts=2")
    found = planned(project, capsys, *asked)
    model, hours = found["model"], found["stage_device_hours"]
    shape = EncoderShape(**{name: model[name] for name in EncoderShape._fields})
    joined, query = (float(encoder_operations(shape, np.array(model[name]))) for name in ("joined", "query"))
    steps = 20 + 2 * 5  # attempts of a quarter
    assert hours["warm_start"] * 3600 == pytest.approx(
        steps * (0.05 + 32 * 3 * (query + model["passage_operations"]) / 2e10)
    )
    assert hours["pretrain"] == found["synchronous"]["device_hours"]
    finetune = 20 * (0.05 + 16 * 3 * (5 * joined + query) / 2e10 + 16e6 * 1e-9) + found["seconds"]["inline"]
    assert hours["finetune"] * 3600 == pytest.approx(finetune)
    assert hours["evaluate"] * 3600 == pytest.approx((2 * 60 * 9 + 1000 * 5) * joined / 1e10)
    assert cli.main(["plan", "--root", str(project), "--passages", "1000000", "--price", "2"]) == 0
    printed = capsys.readouterr().out
    [run] = [line.split() for line in printed.splitlines() if line.startswith("one run ")]
    assert float(run[-1].replace(",", "")) == pytest.approx(2 * sum(hours.values()), abs=0.005), "its cost"


@pytest.mark.parametrize("fixed", ["pretrain.refresh.policy=never", "pretrain.train_document_tower=false"])
def test_an_index_that_is_never_refreshed_takes_no_time(
    project: Path, calibrate: Calibrate, capsys: Capture, fixed: str
) -> None:
    calibrate()
    found = planned(project, capsys, "--passages", "1000000", "--set", fixed)
    times = found["seconds"]
    assert found["stage_device_hours"]["pretrain"] * 3600 == pytest.approx(101 * times["step"] + times["inline"])
    assert found["synchronous"]["share_of_time"] == 0.0


def test_more_devices_share_the_work(project: Path, calibrate: Calibrate, capsys: Capture) -> None:
    calibrate()
    one = planned(project, capsys, "--passages", "1000000")
    four = planned(project, capsys, "--passages", "1000000", "--builders", "4", "--trainers", "4")
    for name in ("inline", "build", "step_search"):
        assert four["seconds"][name] == pytest.approx(one["seconds"][name] / 4)
    assert four["asynchronous"]["devices"] == 8
    assert one["memory_bytes"]["index"] == 6 * 1_000_000 * 32


def test_a_device_of_the_table(project: Path, capsys: Capture) -> None:
    found = planned(project, capsys, "--device", "h100", "--passages", "100000")
    assert (found["source"], found["device"]) == ("table", "H100")
    assert found["speeds"]["embed_operations"] == pytest.approx(0.35 * 66.9e12)


def test_what_does_not_fit_is_noted(project: Path, capsys: Capture) -> None:
    [note] = planned(project, capsys, "--device", "T4", "--passages", "400000000")["notes"]
    assert note.startswith("a trainer needs ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "H10O"), "--device H10O: not in the table; did you mean 'H100'? (for another"),
        (("--device", "V100", "--set", "model.precision=bfloat16"), "add --set model.precision=float32"),
        (("--measure", "--passages", "1000"), "plan --measure measures, and plans nothing"),
        (("--device", "H100"), "give --passages N, or run `realm-lab prepare`"),
        (("--passages", "1000"), "this machine has not been measured; run `realm-lab plan --measure`, or plan for a"),
    ],
)
def test_wrong_requests(project: Path, capsys: Capture, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(project, capsys, *arguments)


def test_a_measurement_of_something_else_is_refused(project: Path, calibrate: Calibrate, capsys: Capture) -> None:
    calibrate()
    size = ("--passages", "1000")
    error = refused(project, capsys, *size, "--set", "model.layers=3")
    assert (
        "measured with layers 2, the parameters say 3; run `realm-lab plan --measure` with the same parameters" in error
    )
    default_path(project).write_text("{}")
    assert "bench.json: device: field required; run `realm-lab plan --measure`" in refused(project, capsys, *size)


def test_a_measurement_is_what_the_next_plan_reads(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "SEARCH_ROWS", 1 << 12)
    assert cli.main(["plan", "--measure", "--root", str(project)]) == 0
    capsys.readouterr()
    written = json.loads((project / "runs" / "bench.json").read_text())
    assert all(value > 0 for value in written["speeds"].values())
    found = planned(project, capsys, "--passages", "5000")
    assert (found["source"], found["device"]) == ("measured", written["device"])
    assert found["speeds"] == written["speeds"]


def test_stopping_to_refresh_or_building_beside_it() -> None:
    found = freshness(101, 10, Seconds(0.5, 0.0, 99.0, 5.0), Request(trainers=4), is_asynchronous=False)
    assert (found.age_lowest, found.age_mean, found.age_highest) == (0, 4.5, 9)
    assert found.share_of_time == 0.5
    assert found.hours == pytest.approx((101 * 0.5 + 10 * 5 + 5) / 3600)  # after 10, 20, ... 100, and the first
    assert (found.devices, found.device_hours) == (4, 4 * found.hours)
    found = freshness(101, 10, Seconds(0.5, 0.0, 8.0, 5.0), Request(trainers=4, builders=2), is_asynchronous=True)
    assert (found.refresh_seconds, found.interval_steps, found.age_lowest) == (8.0, 16, 16)
    assert found.share_of_time == 0.0
    assert found.hours == pytest.approx((101 * 0.5 + 5) / 3600)
    assert found.devices == 6
