"""A project with narrow models in which nothing is prepared, and a measurement of this machine in round numbers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from realm_lab.contrib.planner.bench import Calibration, Speeds, default_path, model_identity, write_calibration
from realm_lab.contrib.planner.workload import read_text
from realm_lab.engine.params.load import load
from realm_lab.engine.params.parameters import Params

TEXT = """
preset: smoke
corpus:
  passage_length: 40
  sentence_length: 26
  source: {name: toy, world: easy, entities: 40, articles: 50}
model: {hidden_size: 32, layers: 2, heads: 2, intermediate_size: 64, projection_size: 32}
pretrain:
  steps: 101
  batch_size: 8
  candidates: 8
  refresh: {interval_steps: 10}
launch: {device: cpu, threads: 1}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with parameters."""
    (tmp_path / "params.yaml").write_text(TEXT)
    return tmp_path


@pytest.fixture
def params(project: Path) -> Params:
    return load(project / "params.yaml")


@pytest.fixture
def calibrate(project: Path, params: Params) -> Callable[..., Calibration]:
    """Write a measurement of this machine, with the given values replaced."""

    def write(path: Path | None = None, **changes: object) -> Calibration:
        model = model_identity(params, read_text(params, project).vocabulary_size)
        speeds = Speeds(1e10, 2e10, 0.05, 1e-9)
        made = Calibration("a machine", "here", torch.__version__, "2026-01-02", model, "full", 8 << 30, speeds)
        made = replace(made, **changes)  # type: ignore[arg-type]
        write_calibration(path or default_path(project), made)
        return made

    return write
