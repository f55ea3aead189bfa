"""`realm-lab bench` measures, writes what `plan` reads, and leaves nothing else behind."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from realm_lab import cli
from realm_lab.params.load import load
from realm_lab.params.parameters import Params
from realm_lab.planner import bench, machine
from realm_lab.planner.bench import Effort, line_through, measure
from realm_lab.planner.sample import write_sample

LITTLE = Effort(seconds=0.02, sample_rows=256, search_rows=1 << 12)


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own speed is not what is tested."""
    monkeypatch.setattr(machine, "PRODUCTS", ((64, 64, 64),))
    monkeypatch.setattr(bench, "STORE_ROWS", 256)


def test_bench_writes_what_plan_reads(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "Effort", lambda: LITTLE)
    assert cli.main(["bench", "--root", str(project)]) == 0
    path = project / "runs" / "bench.json"
    printed = capsys.readouterr()
    assert f"written to {path}; `realm-lab plan` reckons from it" in printed.out
    for words in (
        "best matrix product, bfloat16",
        "reading memory",
        "embedding",
        "a training step of ",
        "exact search",
    ):
        assert words in printed.out
    assert "measuring training steps" in printed.err
    assert [entry.name for entry in (project / "runs").iterdir()] == ["bench.json"]
    assert cli.main(["plan", "--root", str(project), "--passages", "5000", "--json"]) == 0
    found, written = json.loads(capsys.readouterr().out), json.loads(path.read_text())
    assert found["source"] == "measured"
    assert found["device"] == written["device"]
    assert found["speeds"]["embed_operations"] == written["embed_operations_per_second"]


def test_every_number_is_there_and_positive(project: Path, params: Params) -> None:
    found = asdict(measure(params, project, LITTLE))
    fixed = ("step_fixed_seconds", "search_row_seconds", "search_row_query_seconds")
    for name, value in found.items():
        if isinstance(value, float):
            assert value >= 0 if name in fixed else value > 0, name
    assert found["step_sentences"][-1] <= params.pretrain.batch_size
    assert found["model"]["hidden_size"] == 32
    per_passage = found["embed_operations_per_second"] / found["embed_passages_per_second"]
    wider = load(project / "params.yaml", {"model.intermediate_size": 128})
    again = measure(wider, project, LITTLE)
    assert again.embed_operations_per_second / again.embed_passages_per_second > 1.3 * per_passage


def test_the_steps_that_are_timed_share_no_passages(project: Path, params: Params) -> None:
    import torch

    sample = write_sample(params, project, project / "sample", 256)
    retriever = bench._retriever(params, sample, torch.device("cpu"), bench.SpreadRetriever)
    retriever.refresh(0)
    queries = [sample.sentences.tokens[0]] * 4  # all would find the same
    rows_BK = retriever.find(retriever.search_queries(queries), 8)
    assert len(np.unique(rows_BK)) == 4 * 8


@pytest.mark.parametrize(
    ("sizes", "seconds", "expected"),
    [
        ([4, 8], [0.3, 0.5], (0.1, 0.05)),
        ([8], [0.4], (0.0, 0.05)),
        ([4, 8], [0.1, 0.4], (0.0, 0.05)),  # steeper than through the origin: nothing is fixed
        ([4, 8], [0.5, 0.4], (0.0, 0.05)),  # noise
    ],
)
def test_what_is_fixed_and_what_each_costs(
    sizes: list[int], seconds: list[float], expected: tuple[float, float]
) -> None:
    assert line_through(sizes, seconds) == pytest.approx(expected)
