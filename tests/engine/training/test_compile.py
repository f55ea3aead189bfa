"""launch.compile changes how the encoders are run, not what they are."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import tiny


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler: no g++ on this machine")
def test_compiled_encoders_give_the_same_losses_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    compiled: list[str] = []
    monkeypatch.setattr(torch.nn.Module, "compile", _counting(torch.nn.Module.compile, compiled))
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)  # a pool of processes would import torch again
    short = {"model.layers": 1, "warm_start.reader.steps": 2, "warm_start.embedder.steps": 2, "pretrain.steps": 3}
    found: dict[bool, dict[Any, Any]] = {}
    for switch in (False, True):
        chosen = tiny.params(short | {"launch.compile": switch})
        root = tiny.prepare(chosen, tmp_path / str(switch), "warm_start", "pretrain")
        rows = tiny.metrics(tiny.stage_run("pretrain", chosen, root))
        found[switch] = {row["step"]: row["loss"] for row in rows if "loss" in row}
        models = tiny.stage_run("pretrain", chosen, root).path / "model"
        found[switch] |= {"files": sorted(str(path.relative_to(models)) for path in models.rglob("*.safetensors"))}
    assert len(compiled) == 4  # reader and the shared tower, in two stages
    assert found[True].pop("files") == found[False].pop("files")
    assert found[True] == pytest.approx(found[False], rel=1e-3)
    assert found[True].keys() == {1, 2, 3}


def _counting(original, calls):  # type: ignore[no-untyped-def]
    def compile(self, *args, **named):  # type: ignore[no-untyped-def]
        calls.append(type(self).__name__)
        return original(self, *args, **named)

    return compile
