"""The attempts of the Inverse Cloze Task: a bad start is left, and what has not been learned is flagged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from realm_lab.models.embedder import Embedder
from realm_lab.models.initial import new_embedder
from realm_lab.tracking.run_dir import Flag
from realm_lab.training import warm_start
from tests import tiny

SHORT = {"warm_start.reader.steps": 2, "launch.checkpoint_interval_seconds": 1000}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prepared: Path = tiny.prepare(tiny.params(), tmp_path_factory.mktemp("attempts"))
    return prepared


@pytest.mark.parametrize(("attempts", "learns"), [(1, False), (2, True)])
def test_a_bad_start_is_left(root: Path, monkeypatch: pytest.MonkeyPatch, attempts: int, learns: bool) -> None:
    def stuck(*arguments: Any) -> Embedder:
        """The first projection is all zeros, so that every score and every gradient is 0."""
        embedder = new_embedder(*arguments)
        for projection in (embedder.query_projection, embedder.document_projection):
            torch.nn.init.zeros_(projection.weight)
        return embedder

    monkeypatch.setattr("realm_lab.systems.stages.warm_start.new_embedder", stuck)
    params = tiny.params(SHORT | {"warm_start.embedder.attempts": attempts})
    run = tiny.run("warm_start", params, root)
    weight = load_file(run.path / "model/embedder/projections.safetensors")["query_projection.weight"]
    assert bool(weight.any()) == learns
    ict = tiny.by_name(tiny.metrics(run))["accuracy_ict"]
    assert list(ict) == list(range(3, 15 if attempts == 1 else 21))  # 12 steps, after two times a quarter of them
    assert (max(ict[step] for step in list(ict)[-12:]) > 1 / 8) == learns


def test_a_task_that_was_not_learned_is_flagged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tiny.run("warm_start", tiny.params(SHORT), root).status().flags  # too few steps to be judged
    monkeypatch.setattr(warm_start, "JUDGED_STEPS", 12)
    run = tiny.run("warm_start", tiny.params(SHORT | {"warm_start.reader.steps": 3}), root)
    last = tiny.by_name(tiny.metrics(run))["accuracy_ict"].values()
    mean = sum(last) / len(last)
    assert mean < warm_start.LOW_ACCURACY
    text = f"accuracy of the Inverse Cloze Task {mean:.2f}, below 0.5"
    assert run.status().flags == (Flag("low_accuracy_ict", text),)
    monkeypatch.setattr(warm_start, "LOW_ACCURACY", 0.0)
    assert not tiny.run("warm_start", tiny.params(SHORT | {"warm_start.reader.steps": 4}), root).status().flags
