"""The search benchmark runs end to end on few vectors, and checks what it times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def test_the_tiny_mode_measures_everything_and_the_bits_agree(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.index_search", "--tiny", "--threads", "1", "--output", str(output)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--rows", "3000", "--approximate-rows", "600"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert result["sizes"]["rows"] == 3000
    assert list(result["batches"]) == ["1", "16", "64", "256"]
    for name, batch in result["batches"].items():
        assert batch["of_these_identical_bit_for_bit"] == batch["checked_against_every_row"] == min(2, int(name))
        assert batch["shared_with_faiss_flat"] > 0.99
        assert f"| {name} | " in done.stdout
    assert set(result["approximate"]) == {
        f"{kind}, {data}" for kind in ("exact", "ivf_flat", "ivf_pq") for data in ("independent", "clustered")
    }
    assert all(0.05 < path["recall_at_8"] <= 1 for path in result["approximate"].values())
