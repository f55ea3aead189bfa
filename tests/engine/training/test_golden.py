"""Golden losses: the numerics of each phase, pinned. A change of them gives other results under the same run keys."""

import json
import os
from pathlib import Path

import pytest

from realm_lab import ENGINE_VERSION
from tests import tiny

PARAMS = tiny.params()

FOLDER = Path(__file__).with_name("golden")
COMMAND = "REALM_LAB_GOLDEN=write python -m pytest tests/engine/training/test_golden.py"
STEPS = 10
# phase -> (stage, metric)
PHASES = {
    "warm_start_reader": ("warm_start", "loss_mlm"),
    "warm_start_embedder": ("warm_start", "loss_ict"),
    "pretrain": ("pretrain", "loss"),
    "finetune": ("finetune", "loss"),
}


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.prepare(PARAMS, tmp_path_factory.mktemp("golden"), "warm_start", "pretrain", "finetune")


@pytest.mark.parametrize("phase", PHASES)
def test_losses_are_the_golden_ones(line: Path, phase: str) -> None:
    stage, metric = PHASES[phase]
    losses = [row[metric] for row in tiny.metrics(tiny.stage_run(stage, PARAMS, line)) if metric in row][:STEPS]
    assert len(losses) == STEPS
    path = FOLDER / f"{phase}.json"
    if os.environ.get("REALM_LAB_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"engine_version": ENGINE_VERSION, "losses": losses}) + "\n")
    golden = json.loads(path.read_text())
    advice = f"if the change of numerics is intended, bump ENGINE_VERSION in realm_lab/__init__.py and run `{COMMAND}`"
    assert losses == pytest.approx(golden["losses"], rel=1e-4), f"{phase}: {advice}"
    assert golden["engine_version"] == ENGINE_VERSION, f"golden losses are of another engine; run `{COMMAND}`"
