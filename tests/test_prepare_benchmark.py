"""The benchmark of prepare runs end to end on little text and says what it is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_preparing_is_compared_with_the_bare_tokenizer(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    sizes = ["--passages", "400", "--full-passages", "200", "--workers", "2", "--folder", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.prepare", "--tiny", *sizes, "--output", str(output)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    untagged, full = json.loads(output.read_text())["rows"]
    assert (untagged["way"], full["way"]) == ("untagged", "full")
    for row in (untagged, full):
        reference = sum(bare["per_second"] for bare in row["bare"]) / 2
        assert row["ratio"]["per_second"] == pytest.approx(row["per_second"] / reference)
        assert row["passages"] / row["seconds"] == pytest.approx(row["per_second"])
        assert row["together_megabytes"] >= row["parent_megabytes"] > 20
    assert "| untagged | " in done.stdout
