"""launch.compile changes how the encoders are run, not what they are."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests import tiny


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler: no g++ on this machine")
def test_compiled_encoders_give_the_same_losses_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    compiled: list[torch.nn.Module] = []
    original = torch.nn.Module.compile

    def counted(module: torch.nn.Module, **named: Any) -> None:
        compiled.append(module)
        original(module, **named)

    monkeypatch.setattr(torch.nn.Module, "compile", counted)
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)  # a pool of processes would import torch again
    short = {"model.layers": 1, "warm_start.reader.steps": 2, "warm_start.embedder.steps": 2, "pretrain.steps": 3}
    shutil.copytree(tiny.prepare(tiny.params(short), tmp_path / "False", "warm_start"), tmp_path / "True")
    found: dict[bool, dict[Any, Any]] = {}
    names: dict[bool, list[str]] = {}
    for switch in (False, True):
        run = tiny.run("pretrain", tiny.params(short | {"launch.compile": switch}), tmp_path / str(switch))
        found[switch] = {row["step"]: row["loss"] for row in tiny.metrics(run) if "loss" in row}
        weights = (run.path / "model").rglob("*.safetensors")
        names[switch] = sorted(name for path in weights for name in load_file(path))
    assert len(compiled) == 2  # the reader and the shared tower
    assert names[True] == names[False]
    assert found[True] == pytest.approx(found[False], rel=1e-3)
    assert found[True].keys() == {1, 2, 3}
