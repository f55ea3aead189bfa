"""Bytes on each device: what a trainer, a searcher and a builder hold.

Weights, moments and the index are counted; activations are estimated with the coefficients that the encoder's saved
tensors have (tests/planner/test_workload.py compares them), without what the allocator and the libraries add.
"""

from __future__ import annotations

from typing import NamedTuple

from realm_lab.params.parameters import Params
from realm_lab.planner.workload import Workload
from realm_lab.retrieval.embeddings import DTYPES, SHARD_ROWS

FLOAT, HALF = 4, 2
MOMENTS = 2  # of AdamW
SEARCH_BUFFERS = {"cpu": 1 << 24, "cuda": 1 << 28}  # scores that an exact search holds at once, bytes
# Bytes that a block saves for the backward pass: per hidden unit and per inner unit of a token, and per head and pair
# of tokens (only where attention is spelled out, on a processor).
SAVED = {"float32": (32, 8, 4), "bfloat16": (22, 4, 6)}


class Memory(NamedTuple):
    """Bytes by what they are for, on one device of each role. The searcher sits on every trainer device."""

    trainer: dict[str, float]
    searcher: dict[str, float]
    builder: dict[str, float]
    stored: float  # bytes of the embeddings on disk


def saved_bytes(work: Workload, precision: str, length: float, spelled_out: bool) -> float:
    """What one sequence of `length` wordpieces leaves for the backward pass of an encoder."""
    hidden, inner, pair = SAVED[precision]
    shape = work.shape
    token = hidden * shape.hidden_size + inner * shape.intermediate_size
    return shape.layers * length * (token + (pair * shape.heads * length if spelled_out else 0.0))


def memory(
    params: Params, work: Workload, passages: int, sentences: float, *, on_processor: bool, dtype: str
) -> Memory:
    """Memory of each role, with an index of so many passages and `sentences` of a step on each trainer device."""
    settings, launch, shape, precision = params.pretrain, params.launch, work.shape, params.model.precision
    # Activations of what is read at once: pairs of query and passage, both towers, and scores of masked words.
    at_once = min(sentences, launch.micro_batch) if launch.micro_batch else sentences
    pairs = at_once * settings.candidates
    if launch.recompute:
        pairs = min(pairs, launch.token_budget / work.joined)
    found = settings.candidates - int(settings.null_document != "off")
    towers = found * saved_bytes(work, precision, work.passage, on_processor)
    towers += saved_bytes(work, precision, work.query, on_processor)
    words = at_once * settings.candidates * work.masks * shape.vocabulary_size * FLOAT
    counted = work.reader_parameters + work.embedder_parameters
    trainer: dict[str, float] = {
        "weights": FLOAT * counted + (HALF * counted if precision == "bfloat16" else 0),
        "gradients": FLOAT * work.trained_parameters,
        "optimiser moments": MOMENTS * FLOAT * work.trained_parameters,
        "activations (estimate)": pairs * saved_bytes(work, precision, work.joined, on_processor)
        + at_once * towers
        + words,
        # The weights behind the index, where they search, and those that a builder embeds with.
        "copies of the embedder": (1 + int(settings.search_query == "stale")) * FLOAT * work.embedder_parameters,
    }
    vectors = passages * work.dimension
    searcher: dict[str, float] = {
        "index, float32": FLOAT * vectors,
        "its bfloat16 copy": HALF * vectors,
        "the next index, while it is taken into use": (FLOAT + HALF) * vectors,
        "search buffers": SEARCH_BUFFERS["cpu" if on_processor else "cuda"],
    }
    size = FLOAT if precision == "float32" else HALF
    builder: dict[str, float] = {
        "weights": FLOAT * work.embedder_parameters,
        "activations (estimate)": launch.token_budget * size * (4 * shape.hidden_size + 2 * shape.intermediate_size),
        "shard": 2 * min(SHARD_ROWS, passages) * work.dimension * FLOAT,
    }
    return Memory(trainer, searcher, builder, vectors * DTYPES[dtype].itemsize)
