"""Bytes on each device: what a trainer, a searcher and a builder hold.

Weights, moments and the index are counted; activations are estimated with the coefficients that the encoder's saved
tensors have (tests/planner/test_memory.py compares them), without what the allocator and the libraries add.
"""

from __future__ import annotations

from typing import NamedTuple

from realm_lab.params.parameters import Params
from realm_lab.planner.workload import Workload
from realm_lab.retrieval.embeddings import DTYPES, SHARD_ROWS
from realm_lab.retrieval.exact import BLOCK_ROWS, CHUNK_ROWS, CHUNK_SCORES, SMALL_INDEX

FLOAT, HALF = 4, 2
MOMENTS = 2  # of AdamW
# Bytes that a block saves for the backward pass: per hidden unit and per inner unit of a token, and per head and pair
# of tokens (only where attention is spelled out, on a processor).
SAVED = {"float32": (32, 8, 4), "bfloat16": (22, 4, 6)}


class Memory(NamedTuple):
    """Bytes by what they are for, on one device of each role. The searcher sits on every trainer device."""

    trainer: dict[str, float]
    searcher: dict[str, float]
    builder: dict[str, float]
    stored: float  # bytes of one generation on disk

    @property
    def on_trainer(self) -> float:
        """Bytes of a trainer device with its searcher."""
        return sum(self.trainer.values()) + sum(self.searcher.values())

    @property
    def on_builder(self) -> float:
        """Bytes of a builder device."""
        return sum(self.builder.values())


def saved_bytes(work: Workload, precision: str, length: float, spelled_out: bool) -> float:
    """What one sequence of `length` wordpieces leaves for the backward pass of an encoder."""
    hidden, inner, pair = SAVED[precision]
    shape = work.shape
    token = hidden * shape.hidden_size + inner * shape.intermediate_size
    return shape.layers * length * (token + (pair * shape.heads * length if spelled_out else 0.0))


def memory(
    params: Params,
    work: Workload,
    passages: int,
    sentences: float,
    *,
    on_processor: bool,
    asynchronous: bool,
    dtype: str,
) -> Memory:
    """Memory of each role, with an index of so many passages and `sentences` of a step on each trainer device."""
    counted, settings, launch = work.parameters, params.pretrain, params.launch
    precision, shape = params.model.precision, work.shape
    at_once = min(sentences, launch.micro_batch) if launch.micro_batch else sentences
    pair = saved_bytes(work, precision, work.mean_joined, on_processor)
    pairs = at_once * settings.candidates
    if launch.recompute:
        pairs = min(pairs, launch.token_budget / work.mean_joined)
    found = settings.candidates - int(settings.null_document != "off")
    towers = found * saved_bytes(work, precision, work.mean_passage, on_processor)
    towers += saved_bytes(work, precision, work.mean_sentence, on_processor)
    words = at_once * settings.candidates * work.mean_masks * shape.vocabulary_size * FLOAT
    trainer: dict[str, float] = {
        "weights": FLOAT * (counted.reader + counted.embedder),
        "gradients": FLOAT * counted.trained,
        "optimiser moments": MOMENTS * FLOAT * counted.trained,
        "activations (estimate)": pairs * pair + at_once * towers + words,
    }
    if precision == "bfloat16":
        trainer["bfloat16 weights"] = HALF * (counted.reader + counted.embedder)
    copies = int(settings.search_query == "stale") + int(asynchronous)
    if copies:
        trainer["copies of the embedder"] = copies * FLOAT * counted.embedder
    kind = "cpu" if on_processor else "cuda"
    index = FLOAT * passages * work.dimension
    scan = HALF * passages * work.dimension if passages >= SMALL_INDEX else 0
    scores = FLOAT * max(CHUNK_SCORES[kind], min(CHUNK_ROWS[kind], passages))
    searcher: dict[str, float] = {
        "index, float32": index,
        "its bfloat16 copy": scan,
        "the next index, while it is taken into use": index + scan,
        "search buffers": scores + 16 * passages / BLOCK_ROWS,
    }
    held = min(SHARD_ROWS, passages) * work.dimension * FLOAT
    builder: dict[str, float] = {
        "weights": FLOAT * counted.embedder,
        "activations (estimate)": launch.token_budget * _forward_bytes(work, precision),
        "shard": 2 * held,
    }
    return Memory(trainer, searcher, builder, passages * work.dimension * DTYPES[dtype].itemsize)


def _forward_bytes(work: Workload, precision: str) -> float:
    """Of a wordpiece in the widest moment of a block: hidden states and both sides of the feed-forward layer."""
    size = FLOAT if precision == "float32" else HALF
    return size * (4 * work.shape.hidden_size + 2 * work.shape.intermediate_size)
