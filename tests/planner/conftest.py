"""A project with narrow models in which nothing is prepared, and a measurement of this machine in round numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from realm_lab.params.load import load
from realm_lab.params.parameters import Params
from realm_lab.planner.calibration import FORMAT, Calibration, default_path, model_identity, write_calibration
from realm_lab.planner.machine import device_name
from realm_lab.planner.sample import write_sample

TEXT = """
preset: smoke
corpus:
  passage_length: 40
  sentence_length: 26
  toy: {entities: 40, articles: 50}
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
def calibrate(project: Path, params: Params, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Calibration]:
    """Writes a measurement of this machine, with other values where they are given."""

    def write(path: Path | None = None, **changes: object) -> Calibration:
        torch.set_num_threads(params.launch.threads)
        sample = write_sample(params, project, tmp_path_factory.mktemp("sample"), 16)
        values: dict[str, object] = {
            "format": FORMAT,
            "device": device_name(torch.device("cpu")),
            "device_type": "cpu",
            "host": "here",
            "torch": torch.__version__,
            "date": "2026-01-02",
            "model": model_identity(params, sample.vocabulary_size),
            "lengths": sample.source,
            "memory_bytes": 8 << 30,
            "matrix_gflops_per_second": {"float32": 100.0, "bfloat16": 200.0},
            "read_bytes_per_second": 1e10,
            "embed_passages": 1000,
            "embed_passages_per_second": 5000.0,
            "embed_operations_per_second": 1e10,
            "step_sentences": [4, 8],
            "step_seconds": [0.1, 0.15],
            "step_fixed_seconds": 0.05,
            "step_operations_per_second": 2e10,
            "step_passages": 100,
            "search_rows": 1000,
            "search_queries": [4, 8],
            "search_seconds": [0.01, 0.02],
            "search_row_seconds": 1e-8,
            "search_row_query_seconds": 1e-9,
            "prepare_row_seconds": 1e-7,
            "store_bytes_per_second": 1e8,
        }
        calibration = Calibration(**(values | changes))  # type: ignore[arg-type]
        write_calibration(path or default_path(project), calibration)
        return calibration

    return write
