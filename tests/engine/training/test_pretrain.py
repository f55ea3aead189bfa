"""The pre-training task: micro-batches, recomputing, and an index that nothing moves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from realm_lab.engine.models.encoder import Encoder, EncoderShape
from realm_lab.engine.models.inputs import Batch
from realm_lab.engine.training.flops import encoder_operations
from realm_lab.engine.training.pretrain import PretrainTask
from tests import tiny

SHORT = {"pretrain.steps": 3, "evaluate.interval_steps": 3, "pretrain.refresh.interval_steps": 1}


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.prepare(tiny.params(), tmp_path_factory.mktemp("pretrain"), "warm_start")


def outcome(line: Path, changes: dict[str, Any]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Weights and metrics of a short pre-training, run again each time, since its key does not depend on `launch`."""
    chosen = tiny.params(SHORT | changes)
    folder = tiny.stage_run("pretrain", chosen, line).path
    for name in ("status.json", "results.json"):
        (folder / name).unlink(missing_ok=True)
    run = tiny.run("pretrain", chosen, line)
    tensors = {
        f"{path.parent.name}/{path.stem}/{name}": value
        for path in sorted((run.path / "model").rglob("*.safetensors"))
        for name, value in load_file(path).items()
    }
    return tensors, tiny.metrics(run)


def losses(rows: list[dict[str, Any]]) -> list[float]:
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.parametrize("marginal", ["example", "token"])
def test_a_micro_batch_changes_no_number(line: Path, monkeypatch: pytest.MonkeyPatch, marginal: str) -> None:
    """Four sentences per step and several masks per sentence, so that the two normalisers differ."""
    changes = {"pretrain.marginal": marginal, "pretrain.masking": "random_token"}
    whole, rows = outcome(line, changes)
    sizes = []
    called = PretrainTask._objective

    def noted(self: PretrainTask, rows: Any, *others: Any, **named: Any) -> Any:
        sizes.append(len(rows))
        return called(self, rows, *others, **named)

    monkeypatch.setattr(PretrainTask, "_objective", noted)
    parts, part_rows = outcome(line, changes | {"launch.micro_batch": 3})
    assert sizes == [3, 1] * 3
    assert losses(part_rows) == pytest.approx(losses(rows), rel=1e-5)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-3, atol=2e-5)
    assert {"null_probability_object", "null_probability_subject"} < {name for row in rows for name in row}
    for metric in {
        name for row in rows for name in row if name.startswith(("candidate_", "marginal_", "null_", "gold_"))
    }:
        found, expected = ([row[metric] for row in each if metric in row] for each in (part_rows, rows))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_steps_that_are_logged_change_no_number(line: Path) -> None:
    """Without a null document, a logged step also reads each sentence without a passage, with dropout."""
    changes: dict[str, Any] = {f"warm_start.{part}.steps": 1 for part in ("reader", "embedder")}
    changes |= {"model.dropout": 0.1}
    tiny.run("warm_start", tiny.params(changes), line)
    changes |= {"pretrain.null_document": "off", "launch.micro_batch": 1}
    often, seldom = (outcome(line, changes | {"launch.log_interval_steps": steps})[0] for steps in (1, 3))
    assert all(torch.equal(seldom[name], value) for name, value in often.items())


@pytest.mark.parametrize("length", [3, 17, 40])
def test_an_encoder_costs_what_torch_counts(length: int) -> None:
    shape = EncoderShape(100, 24, 3, 4, 56, 64)
    encoder = Encoder(shape).eval()
    tokens_BL = torch.ones(2, length, dtype=torch.int64)
    batch = Batch(tokens_BL, torch.zeros_like(tokens_BL), torch.ones_like(tokens_BL, dtype=torch.bool))
    with FlopCounterMode(display=False) as counter:  # with a gradient: the fused attention is not counted
        encoder(*batch)
    assert counter.get_total_flops() == encoder_operations(shape, np.array([length, length])).sum()
