"""The estimate of activations against what autograd really saves, and the rest against plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from realm_lab.models.encoder import Encoder, EncoderShape
from realm_lab.params.load import load
from realm_lab.params.parameters import Params
from realm_lab.planner.memory import memory, saved_bytes
from realm_lab.planner.sample import write_sample
from realm_lab.planner.workload import Parameters, Workload, workload


def saved_by(encoder: Encoder, work: Callable[[], Tensor]) -> int:
    """Bytes of the distinct tensors that autograd keeps, the encoder's own weights aside."""
    own = {value.untyped_storage().data_ptr() for value in encoder.parameters()}
    kept: list[Tensor] = []  # alive, so that no address is given twice

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        work()
    sizes = {kept.untyped_storage().data_ptr(): kept.untyped_storage().nbytes() for kept in kept}
    return sum(size for address, size in sizes.items() if address not in own)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("size", "heads", "inner", "length"), [(64, 4, 256, 40), (64, 4, 128, 96), (128, 8, 512, 64)])
def test_activations_are_what_autograd_saves(precision: str, size: int, heads: int, inner: int, length: int) -> None:
    shape = EncoderShape(100, size, 4, heads, inner, 128)
    encoder, sequences = Encoder(shape), 16
    tokens_BL = torch.zeros(sequences, length, dtype=torch.int64)

    def read() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            return encoder(tokens_BL, tokens_BL, torch.ones_like(tokens_BL, dtype=torch.bool))

    found = saved_by(encoder, read)
    if precision == "bfloat16":  # the cast weights are counted apart
        found -= 2 * sum(value.numel() for block in encoder.blocks for value in block.parameters())
    work = Workload(shape, size, Parameters(0, 0, 0), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert sequences * saved_bytes(work, precision, length, spelled_out=True) == pytest.approx(found, rel=0.06)


def planned(params: Params, project: Path, passages: int, sentences: float, *, asynchronous: bool = True) -> tuple:
    work = workload(params, write_sample(params, project, project / "sample", 64))
    found = memory(params, work, passages, sentences, on_processor=True, asynchronous=asynchronous, dtype="float16")
    return work, found


def test_what_is_counted(params: Params, project: Path) -> None:
    work, found = planned(params, project, 1_000_000, 8)
    counted = work.parameters
    assert found.trainer["weights"] == 4 * (counted.reader + counted.embedder)
    assert found.trainer["optimiser moments"] == 2 * found.trainer["gradients"] == 8 * counted.trained
    assert found.trainer["copies of the embedder"] == 2 * 4 * counted.embedder  # behind the index, and under way
    assert found.searcher["index, float32"] == 4 * 32 * 1_000_000
    assert found.searcher["its bfloat16 copy"] == 2 * 32 * 1_000_000
    assert found.searcher["the next index, while it is taken into use"] == 6 * 32 * 1_000_000
    assert found.builder["shard"] == 2 * 65536 * 32 * 4
    assert found.stored == 2 * 32 * 1_000_000
    assert found.on_trainer == sum(found.trainer.values()) + sum(found.searcher.values())


def test_activations_of_a_step(params: Params, project: Path) -> None:
    work, found = planned(params, project, 1000, 8)
    reading = saved_bytes(work, "float32", work.mean_joined, True)
    towers = 7 * saved_bytes(work, "float32", work.mean_passage, True)
    towers += saved_bytes(work, "float32", work.mean_sentence, True)
    words = 4 * 8 * 3 * work.shape.vocabulary_size
    assert found.trainer["activations (estimate)"] == pytest.approx(8 * (8 * reading + towers + words))


def test_small_batches_and_reading_twice_need_less(project: Path) -> None:
    sizes = []
    for name, overrides in enumerate(
        ({}, {"launch.micro_batch": 2}, {"launch.recompute": True, "launch.token_budget": 64})
    ):
        params = load(project / "params.yaml", overrides)
        work = workload(params, write_sample(params, project, project / str(name), 64))
        found = memory(params, work, 1000, 8, on_processor=True, asynchronous=False, dtype="float32")
        sizes.append(found.trainer["activations (estimate)"])
        assert found.trainer["copies of the embedder"] == 4 * work.parameters.embedder
    assert sizes[1] == pytest.approx(sizes[0] / 4)
    assert sizes[2] < sizes[0] / 2
