"""The benchmarks run end to end on tiny inputs, without other libraries' environments, and count what they report."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import embedding_scale, full_size
from realm_lab.errors import UserError

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[1]


def result_of(tmp_path: Path, name: str, *arguments: object) -> tuple[dict[str, Any], str]:
    """Return the result file and the output of a benchmark in a separate process, on one thread."""
    output = tmp_path / "result.json"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments), "--output", str(output)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(output.read_text()), done.stdout


def test_building_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    folder = ["--sizes", 10_000, "--folder", tmp_path / "worlds", "--threads", 1]
    result, shown = result_of(tmp_path, "embedding_scale", *folder)
    assert result["sizes"]["10000"]["passages"] == 10_000
    assert "| 10,000 | " in shown


def test_a_build_that_was_killed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr("benchmarks.embedding_scale.subprocess.run", lambda *words, **how: killed)
    with pytest.raises(UserError, match="failed: killed"):
        embedding_scale.fresh_build(tmp_path, {}, 1)


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


def test_too_few_passages_for_the_questions_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        full_size.main(["--passages", "100", "--folder", str(tmp_path)])
    assert "--passages 100: fewer than two for each of the 1000 --questions" in capsys.readouterr().err


def test_the_cost_of_studies_is_measured(tmp_path: Path) -> None:
    result, shown = result_of(tmp_path, "platform", "--runs", 2, "--cells", 2, "--repetitions", 1)
    assert len(result["seconds"]) == 6
    assert "report of 2 runs: " in shown
