"""The benchmark of the builder's stall runs end to end on the smallest world, and adds up what the runs log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_every_arm_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.builder_stall", "--tiny", "--delays", "--output", str(output)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--steps", "18", "--other-steps", "10"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    held = f"builder, {result['interval_steps']} steps later"
    assert list(result["arms"]) == ["trainer itself", "builder, waited for", held]
    for name, arm in result["arms"].items():
        assert name in done.stdout
        assert arm["refreshes"] == 1
        assert arm["stall_share"] == pytest.approx(arm["stall_seconds"] / arm["seconds"])
    assert result["arms"]["trainer itself"]["stall_seconds"] > 0
    assert result["arms"]["builder, waited for"]["stall_seconds"] > 0


def test_help_names_the_options() -> None:
    command = [sys.executable, "-m", "benchmarks.builder_stall", "--help"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    shown = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True).stdout
    assert "python -m benchmarks.builder_stall" in shown
    assert "--delays" in shown
