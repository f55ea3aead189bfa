"""Embedding the corpus into a generation: the bits of the index in memory, in parts, killed, shard after shard."""

# Shapes: N passages, R rows, D embedding size

from __future__ import annotations

import copy
import os
import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.errors import UserError
from realm_lab.retrieval import index as index_module
from realm_lab.retrieval.building import Building
from realm_lab.retrieval.generation import Generation, GenerationStore, build_generation, embedder_digest
from tests.retrieval.generations import CORPUS, content, in_child, left_over
from tests.tiny_system import TinySystem


def build(system: TinySystem, store: GenerationStore, **options: Any) -> Generation | None:
    settings: dict[str, Any] = {
        "step": 7,
        "passage_length": 32,
        "token_budget": 512,
        "precision": "float32",
        "shard_rows": 64,
    }
    return build_generation(store, system.embedder, system.passages, system.special, **settings | options)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "EMBED_CHUNK_ROWS", 32)


@pytest.mark.usefixtures("small_chunks")
def test_the_generation_has_the_bits_of_the_index_in_memory(system: TinySystem, store: GenerationStore) -> None:
    seen: list[tuple[int, int]] = []
    system.embedder.train()
    generation = build(system, store, progress=lambda done, total: seen.append((done, total)))
    assert system.embedder.training
    system.embedder.eval()
    in_memory_ND = index_module.embed_passages(
        system.embedder, system.passages, np.arange(320), system.special, 32, 512, "float32"
    )
    assert generation is not None
    assert torch.equal(generation.embeddings(), in_memory_ND)
    assert generation.manifest.embedder_digest == embedder_digest(system.embedder)
    assert seen == [(done, 320) for done in range(0, 321, 32)]
    rounded = build(system, store, step=8, dtype="bfloat16")
    assert rounded is not None
    assert torch.equal(rounded.embeddings(), in_memory_ND.bfloat16())


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that are embedded, in order."""
    rows_seen: list[int] = []
    original = index_module.embed_rows

    def watched(embedder: Any, passages: Any, rows: np.ndarray, *settings: Any) -> Tensor:
        rows_seen.extend(rows.tolist())
        return original(embedder, passages, rows, *settings)

    monkeypatch.setattr(index_module, "embed_rows", watched)
    return rows_seen


def test_parts_publish_once_when_the_last_has_ended(
    system: TinySystem, store: GenerationStore, embedded: list[int]
) -> None:
    whole = build(system, GenerationStore(store.folder.parent / "whole", CORPUS))
    assert whole is not None
    embedded.clear()
    assert build(system, store, only=(2, 3)) is None
    assert build(system, store, only=(0, 3)) is None
    assert store.names() == []
    with pytest.raises(UserError, match="no index has been built here"):
        store.open()
    generation = build(system, store, only=(1, 3))
    assert generation is not None
    assert sorted(embedded) == list(range(320))  # each passage once
    assert content(generation.folder) == content(whole.folder)
    assert build(system, store, only=(0, 3)) == generation  # a job that is run again has nothing to do
    assert len(embedded) == 320
    assert left_over(store) == []


def test_parts_at_once_in_processes_of_their_own(system: TinySystem, store: GenerationStore) -> None:
    numbers = []
    for part in range(3):
        number = os.fork()
        if not number:
            code = 9
            try:
                code = int(build(system, GenerationStore(store.folder, CORPUS), only=(part, 3)) is not None)
            finally:
                os._exit(code)
        numbers.append(number)
    codes = [os.WEXITSTATUS(os.waitpid(number, 0)[1]) for number in numbers]
    assert set(codes) <= {0, 1}
    assert 1 in codes
    assert store.verify() == []
    assert left_over(store) == []


def test_a_builder_that_kills_itself_between_shards_goes_on(
    system: TinySystem, store: GenerationStore, embedded: list[int]
) -> None:
    def dying(done: int, total: int) -> None:
        if done >= 192:
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(lambda: build(system, store, progress=dying))[0] == signal.SIGKILL
    seen: list[int] = []
    generation = build(system, store, progress=lambda done, total: seen.append(done))
    assert seen[0] == 128  # two shards were written, the third was embedded and lost
    assert embedded == list(range(128, 320))
    whole = build(system, GenerationStore(store.folder.parent / "whole", CORPUS))
    assert whole is not None
    assert generation is not None
    assert content(generation.folder) == content(whole.folder)


def test_no_more_than_a_shard_is_held(system: TinySystem, store: GenerationStore, embedded: list[int]) -> None:
    """Each shard is on disk before the next one is begun."""
    at_write: list[int] = []
    original = Building.write

    def watched(self: Building, number: int, rows_RD: Tensor) -> None:
        at_write.append(len(embedded))
        original(self, number, rows_RD)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Building, "write", watched)
        build(system, store)
    assert at_write == [64, 128, 192, 256, 320]


def test_the_digest_is_of_the_document_tower_alone(system: TinySystem) -> None:
    embedder = copy.deepcopy(system.embedder)
    first = embedder_digest(embedder)
    assert first == embedder_digest(system.embedder)
    assert len(first) == 64
    with torch.no_grad():
        embedder.query_projection.weight.add_(1.0)
        next(embedder.query_encoder.parameters()).add_(1.0)
        assert embedder_digest(embedder) == first
        assert embedder_digest(copy.deepcopy(embedder).double()) == first
        for parameter in (embedder.document_projection.weight, list(embedder.document_encoder.parameters())[-1]):
            before = embedder_digest(embedder)
            parameter.view(-1)[0].add_(1e-3)
            assert embedder_digest(embedder) != before


def test_splitting_shared_towers_changes_no_digest(tiny: Any, system: TinySystem) -> None:
    shared = tiny.build_system(system.corpus, model={"share_towers": True}).embedder
    before = embedder_digest(shared)
    shared.split_towers()
    assert embedder_digest(shared) == before
