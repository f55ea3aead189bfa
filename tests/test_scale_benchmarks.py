"""The benchmarks of index building at scale, and of the planner, run end to end on the smallest world."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SIZE = 10_000  # the smallest toy world has 40 entities


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"benchmarks.{name}", "--threads", "1", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds")
    done = run("embedding_scale", "--prepare-only", "--sizes", str(SIZE), "--folder", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def result_of(name: str, worlds: Path, tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    output = tmp_path / "result.json"
    done = run(name, "--sizes", str(SIZE), "--folder", str(worlds), "--output", str(output), *arguments)
    assert done.returncode == 0, done.stderr
    assert [entry.name for entry in worlds.iterdir()] == [str(SIZE)], "the store is removed"
    return json.loads(output.read_text()), done.stdout


def test_building_is_measured_in_a_process_of_its_own(worlds: Path, tmp_path: Path) -> None:
    result, shown = result_of("embedding_scale", worlds, tmp_path)
    build = result["sizes"][str(SIZE)]
    assert build["passages"] == SIZE
    assert build["seconds"] * 1e6 / SIZE == pytest.approx(build["microseconds_per_passage"])
    assert build["time_per_passage_over_smallest"] == build["peak_rss_over_smallest"] == 1
    assert 50 < build["peak_anonymous_mebibytes"] < build["peak_rss_mebibytes"]
    assert build["stored_mebibytes"] == SIZE * 64 * 4 / 2**20
    assert "| 10,000 | " in shown


@pytest.mark.slow
def test_the_planner_is_compared_with_a_build(worlds: Path, tmp_path: Path) -> None:
    result, shown = result_of("planner", worlds, tmp_path, "--quick")
    [case] = result["cases"]
    assert case["predicted_seconds"] / case["measured_seconds"] == case["predicted_over_measured"]
    assert 0.05 < case["predicted_over_measured"] < 20  # a shared machine; the record has the figure of a quiet one
    assert result["calibrations"][case["model"]]["lengths"].startswith("lengths of the prepared corpus")
    assert f"| 2 layers of 64 | {SIZE:,} | " in shown


def test_a_size_that_no_world_has_is_one_line(tmp_path: Path) -> None:
    done = run("embedding_scale", "--sizes", "1234", "--folder", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "benchmarks.embedding_scale: --sizes 1234: give multiples of 1000, 10000 or more\n"
