"""The benchmarks run end to end on tiny inputs, without other libraries' environments, and count what they report."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[1]


def benchmark(name: str, *arguments: object, output: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A benchmark in a separate process, on one thread."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    more = ["--output", str(output)] if output else []
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments), *more]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


def result_of(tmp_path: Path, name: str, *arguments: object) -> tuple[dict[str, Any], str]:
    """Return the result file and the output of a benchmark."""
    done = benchmark(name, *arguments, output=tmp_path / "result.json")
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / "result.json").read_text()), done.stdout


@pytest.mark.parametrize(("name", "more"), [("pretraining_step", ["--batch-size", "4"]), ("embedding", [])])
def test_our_speed_is_measured_in_both_precisions(name: str, more: list[str], tmp_path: Path) -> None:
    result, shown = result_of(tmp_path, name, "--tiny", "--threads", 1, "--repetitions", 1, *more)
    assert {"realm_lab bfloat16", "realm_lab float32"} <= set(result["paths"])
    assert result["ratios"]["realm_lab bfloat16"] == 1
    assert all(value > 0 for path in result["paths"].values() for value in path.values())
    assert all(path in shown for path in result["paths"])
    if name == "embedding":  # the vectors that are compared are the same
        assert result["agreement"]["realm_lab float32"] < 1e-5 < result["agreement"]["realm_lab bfloat16"] < 0.05


def test_exact_search_is_compared_bit_for_bit(tmp_path: Path) -> None:
    sizes = ["--threads", 1, "--rows", 3000, "--approximate-rows", 600]
    result, _ = result_of(tmp_path, "index_search", "--tiny", *sizes)
    assert list(result["batches"]) == ["1", "16", "64", "256"]
    for name, batch in result["batches"].items():
        assert batch["of_these_identical_bit_for_bit"] == batch["checked_against_every_row"] == min(2, int(name))
        assert batch["shared_with_faiss_flat"] > 0.99


def test_building_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    folder = ["--sizes", 10_000, "--folder", tmp_path / "worlds", "--threads", 1]
    result, shown = result_of(tmp_path, "embedding_scale", *folder)
    assert result["sizes"]["10000"]["passages"] == 10_000
    assert "| 10,000 | " in shown


def test_preparing_is_compared_with_the_bare_tokenizer(tmp_path: Path) -> None:
    sizes = ["--passages", 400, "--full-passages", 200, "--workers", 2, "--folder", tmp_path]
    result, _ = result_of(tmp_path, "prepare", "--tiny", *sizes)
    for row in result["rows"]:
        reference = sum(bare["per_second"] for bare in row["bare"]) / 2
        assert row["ratio"]["per_second"] == pytest.approx(row["per_second"] / reference)


def test_the_whole_line_is_measured_step_by_step_and_goes_on(tmp_path: Path) -> None:
    arguments = ["--tiny", "--questions", 20, "--folder", tmp_path / "projects"]
    result, shown = result_of(tmp_path, "full_size", *arguments)
    found = result["sizes"]["2000"]
    assert set(found["steps"]["fine-tuning and evaluation"]["stages"]) == {"finetune", "evaluate"}
    assert set(found["planned_seconds"]) == {"warm start", "index build", "finetune", "evaluate"}
    assert all(step["seconds"] > 0 and step["peak_mebibytes"] > 50 for step in found["steps"].values())
    assert "| prepare and evaluate the update | " in shown
    assert result_of(tmp_path, "full_size", *arguments)[0]["sizes"] == result["sizes"]


def test_the_cost_of_studies_is_measured(tmp_path: Path) -> None:
    result, shown = result_of(tmp_path, "platform", "--runs", 4, "--cells", 5, "--repetitions", 1)
    assert len(result["seconds"]) == 6
    assert "report of 4 runs: " in shown


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("embedding", ["--squad", "no.json"], "--squad: no.json; name an existing one, or use --tiny"),
        ("embedding_scale", ["--sizes", 1234], "--sizes 1234: give multiples of 1000, 10000 or more"),
    ],
)
def test_what_is_missing_is_one_line(name: str, arguments: list[object], message: str) -> None:
    done = benchmark(name, *arguments)
    assert (done.returncode, done.stderr) == (2, f"benchmarks.{name}: {message}\n")
