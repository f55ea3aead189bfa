"""benchmarks/sweep_overhead.py runs and takes away what is not overhead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_tiny_mode_measures_both(repository: Path, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.sweep_overhead", "--tiny", "--output", str(output)]
    environment = os.environ | {"PYTHONPATH": str(repository)}
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert set(result["overhead_seconds"]) == {"of five stages", "of nothing to do"}
    assert result["import_seconds"] > 0
    assert f"imports of a worker: {result['import_seconds']:.2f} s" in done.stdout
