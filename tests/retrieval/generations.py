"""A small generation on disk: how it is begun, filled and published, and what is in its store."""

# Shapes: N passages, D embedding size

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from realm_lab.retrieval.building import Building
from realm_lab.retrieval.generation import Generation, GenerationStore

CORPUS, EMBEDDER = "c" * 64, "0123456789abcdef" * 4
ROWS, DIMENSION, SHARD_ROWS = 23, 5, 6  # four shards, the last of five rows
NAME = "gen-00000007-01234567"


def vectors(seed: int = 0) -> Tensor:
    return torch.randn(ROWS, DIMENSION, generator=torch.Generator().manual_seed(seed))


def begin(store: GenerationStore, step: int = 7, dtype: Any = "float32", shard_rows: int = SHARD_ROWS) -> Building:
    return store.begin(step, EMBEDDER, ROWS, DIMENSION, dtype, shard_rows)


def fill(building: Building, seed: int = 0, most: int = 99) -> None:
    for shard in building.missing()[:most]:
        building.write(shard.number, vectors(seed)[shard.first : shard.first + shard.rows])


def publish(store: GenerationStore, step: int = 7, dtype: Any = "float32", **options: Any) -> Generation:
    with store.lease():
        building = begin(store, step, dtype, **options)
        fill(building)
        return building.publish()


def content(folder: Path) -> dict[str, bytes]:
    """The shards of a generation."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("shard-*"))}


def left_over(store: GenerationStore) -> list[str]:
    """Everything beside what belongs in a store."""
    paths = [path.relative_to(store.folder) for path in store.folder.rglob("*") if path.is_file()]
    return sorted(
        str(path)
        for path in paths
        if path.parts[0] not in store.names() and path.name[-5:] != ".lock" and path.name != "current.json"
    )


@pytest.fixture
def store(tmp_path: Path) -> GenerationStore:
    return GenerationStore(tmp_path / "store", CORPUS)


def in_child(work: Callable[[], object]) -> tuple[int, int]:
    """Run in a fork; returns (signal, exit code, at most 255)."""
    number = os.fork()
    if not number:
        code = 250
        try:
            code = int(work() or 0)  # type: ignore[call-overload]
        finally:
            sys.setprofile(None)
            os._exit(code)
    _, status = os.waitpid(number, 0)
    return os.WTERMSIG(status), os.WEXITSTATUS(status)
