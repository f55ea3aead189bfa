"""The benchmarks run end to end on a toy, without the other libraries' environments, and count what they say."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from realm_lab.models.encoder import Encoder, EncoderShape

REPOSITORY = Path(__file__).resolve().parents[1]
TINY = {
    "pretraining_step": ["--batch-size", "4", "--repetitions", "1"],
    "embedding": ["--repetitions", "1"],
}


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository's root first, so that `benchmarks` is ours."""
    monkeypatch.syspath_prepend(str(REPOSITORY))
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("name", TINY)
def test_the_tiny_mode_measures_every_path_of_ours(name: str, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--tiny", "--threads", "1", "--output", str(output)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *TINY[name]], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(output.read_text())
    assert {"realm_lab bfloat16", "realm_lab float32"} <= set(result["paths"])
    assert result["ratios"]["realm_lab bfloat16"] == 1
    numbers = [value for path in result["paths"].values() for value in path.values()] + [*result["ratios"].values()]
    assert all(math.isfinite(number) and number > 0 for number in numbers)
    assert sum(result["profile"].values()) == pytest.approx(1.0, abs=0.2)
    for path in result["paths"]:
        assert path in done.stdout
    if name == "embedding":  # the vectors that are compared are the same
        assert result["agreement"]["realm_lab float32"] < 1e-5
        assert 1e-5 < result["agreement"]["realm_lab bfloat16"] < 0.05


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize("name", TINY)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"python -m benchmarks.{name}" in shown
    assert "--squad" in shown
    assert "--tiny" in shown


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize("name", TINY)
def test_a_missing_file_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "no.json"
    assert importlib.import_module(f"benchmarks.{name}").main(["--squad", str(file), "--threads", "1"]) == 2
    assert capsys.readouterr().err == f"benchmarks.{name}: --squad: {file}; name an existing one, or use --tiny\n"


@pytest.mark.usefixtures("on_path")
def test_useful_work_is_what_torch_counts() -> None:
    from benchmarks.work import encoder_flops, word_flops

    shape = EncoderShape(100, 32, 3, 4, 64, 50)
    encoder = Encoder(shape)
    used_BM = torch.tensor([[3, 7], [0, 1]])
    tokens_BL = torch.randint(100, (2, 17), generator=torch.Generator().manual_seed(0))
    mask_BL = torch.ones(2, 17, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter:  # with a gradient: attention spelled out, which it can count
        encoder(tokens_BL, torch.zeros_like(tokens_BL), mask_BL, used_BM)
    assert encoder_flops(shape, [17, 17], [2, 2]) == counter.get_total_flops()
    assert word_flops(shape, 5) == 2 * 5 * 32 * 32 + 2 * 5 * 32 * 100


@pytest.mark.usefixtures("on_path")
def test_operators_are_grouped_by_purpose() -> None:
    from benchmarks.profile_groups import group_of

    expected = {
        "aten::addmm": "matrix products",
        "aten::bmm": "attention",
        "aten::_softmax": "attention",
        "aten::_log_softmax": "vocabulary log-softmax",
        "aten::gelu_backward": "GELU",
        "aten::_fused_adamw_": "optimiser",
        "aten::copy_": "casts and copies",
        "aten::embedding_dense_backward": "embedding tables",
        "aten::something_else": "other operators",
    }
    assert {name: group_of(name) for name in expected} == expected
