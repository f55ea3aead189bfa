"""Builder processes that run what a test says, and what a builder would leave."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from realm_lab.models.embedder import Embedder
from realm_lab.retrieval.generation import Generation, GenerationStore, embedder_digest
from realm_lab.systems.supervisor import Limits, ProcessBuilder
from tests import tiny

LONG_ENOUGH_SECONDS = 120.0
CPU = torch.device("cpu")


def warm_started(changes: dict[str, Any], root: Path) -> Path:
    """A root where the warm start is done."""
    params = tiny.params(changes)
    tiny.prepare(params, root)
    tiny.run("warm_start", params, root)
    return root


def faulty(folder: Path, code: str, **limits: Any) -> ProcessBuilder:
    """A builder process that runs `code`."""
    chosen = Limits(**{"silence_seconds": 60.0, "backoff_seconds": 0.0, "failures": 2} | limits)
    return ProcessBuilder(folder, "c" * 64, {}, CPU, chosen, (sys.executable, "-S", "-c", code))


def submit_and_wait(builder: ProcessBuilder, embedder: Embedder) -> None:
    """Either may be where a failure is noticed."""
    builder.submit(3, embedder)
    builder.wait(3, embedder)


def published(folder: Path, corpus_digest: str, step: int, embedder: Embedder) -> Generation:
    """A generation as a builder would leave it."""
    store = GenerationStore(folder, corpus_digest)
    with store.lease():
        building = store.begin(step, embedder_digest(embedder), 2, 16)
        building.write(0, torch.full((2, 16), float(step + 1)))
        return building.publish(make_current=False)
