"""launch.compile changes how the encoders are run, not what they are."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import tiny

SHORT = {"warm_start.reader.steps": 2, "warm_start.embedder.steps": 2, "pretrain.steps": 3}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler: no g++ on this machine")
def test_compiled_encoders_give_the_same_losses_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    switch = "launch.compile"
    with monkeypatch.context() as patches:  # the warm start asks for it in the same way; once is slow enough
        patches.setattr(torch.nn.Module, "compile", lambda encoder, **how: compiled.append(how))
        plain = tiny.prepare(tiny.params(SHORT | {switch: True}), tmp_path / "plain", "warm_start")
    assert len(compiled) == 2  # reader and the shared tower
    shutil.copytree(plain, tmp_path / "compiled")
    original = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda encoder, **how: (compiled.append(how), original(encoder, **how))
    )
    found = {}
    for is_on in (False, True):
        root = tmp_path / ("compiled" if is_on else "plain")
        run = tiny.run("pretrain", tiny.params(SHORT | {switch: is_on}), root)
        rows = [(row["step"], row["loss"]) for row in tiny.metrics(run) if "loss" in row]
        models = run.path / "model"
        found[is_on] = rows, sorted(str(path.relative_to(models)) for path in models.rglob("*.safetensors"))
    assert len(compiled) == 4
    assert found[True][1] == found[False][1]
    assert [step for step, _ in found[True][0]] == [1, 2, 3]
    assert dict(found[True][0]) == pytest.approx(dict(found[False][0]), rel=1e-3)
