"""The embedding store: computed once, by any number of processes, resumed after a kill, refused when damaged."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.retrieval.embeddings import Embeddings, EmbeddingStore, Identity, equal_rows, tower_digest
from realm_lab.engine.retrieval.index import Embedded, Inputs, embed_passages
from tests.factories.errors import refused
from tests.tiny_system import TinySystem

# Shapes: N passages, R rows, D embedding size

ROWS, SIZE = 10, 3
VECTORS_ND = torch.randn(ROWS, SIZE, generator=torch.Generator().manual_seed(0))


def identity(**changes: Any) -> Identity:
    values = {"corpus_digest": "c" * 64, "tower_digest": "t" * 64, "passage_length": 32, "precision": "float32"}
    return Identity(**values | {"dtype": "float32", "rows": ROWS, "dimension": SIZE} | changes)  # type: ignore[arg-type]


def inputs(system: TinySystem) -> Inputs:
    return Inputs(system.special, 26, 32, 2048, "float32")


def given(rows_R: np.ndarray) -> Tensor:
    return VECTORS_ND[torch.from_numpy(rows_R)]


def embedded(system: TinySystem, store: EmbeddingStore, **changes: Any) -> Embeddings:
    embedder, passages = changes.pop("embedder", system.embedder), changes.pop("passages", system.passages)
    digest = changes.pop("corpus_digest", "c" * 64)
    texts = {name: changes.pop(name) for name in Inputs._fields if name in changes}
    return store.embeddings(embedder, passages, inputs(system)._replace(**texts), digest, **changes)


class Changed(NamedTuple):
    """Another list of passages."""

    titles: list[np.ndarray]
    bodies: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.bodies)


@pytest.fixture
def store(tmp_path: Path) -> EmbeddingStore:
    return EmbeddingStore(tmp_path / "embeddings")


def test_a_corpus_is_embedded_once_with_the_bits_of_embed_passages(
    system: TinySystem, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Embedded.passages
    found = embedded(system, store)
    count = len(system.passages)
    rows = np.arange(count)
    wanted_ND = embed_passages(system.embedder, system.passages, rows, inputs(system))
    assert torch.equal(found.matrix, wanted_ND)
    assert torch.equal(found.as_tensor(), wanted_ND)
    assert found.as_tensor().data_ptr() == found.matrix.data_ptr()  # not copied
    assert Embedded.passages == before + 2 * count
    again = embedded(system, EmbeddingStore(store.folder))
    assert (again.key, Embedded.passages) == (found.key, before + 2 * count)
    assert not list(store.folder.glob("*/.*"))
    assert system.embedder.training is False


def test_what_is_embedded_is_in_the_key_and_what_only_rounds_is_not(system: TinySystem, store: EmbeddingStore) -> None:
    found = embedded(system, store)
    assert embedded(system, store, token_budget=64).key == found.key
    other = system.embedder.__class__(system.embedder.query_encoder.shape, system.embedder.head)
    changes: list[dict[str, Any]] = [
        {"corpus_digest": "d" * 64},
        {"passage_length": 16},
        {"precision": "bfloat16"},
        {"embedder": other},
    ]
    keys = {embedded(system, store, **change).key for change in changes}
    assert len(keys | {found.key}) == 1 + len(changes)
    assert {entry.key for entry in store.published()} == keys | {found.key}


def test_the_digest_is_of_the_document_tower_alone(system: TinySystem) -> None:
    embedder = system.embedder.__class__(system.embedder.query_encoder.shape, system.embedder.head)
    embedder.load_state_dict(system.embedder.state_dict())
    embedder.split_towers()
    assert tower_digest(embedder) == tower_digest(system.embedder)
    with torch.no_grad():
        next(embedder.query_encoder.parameters()).add_(1)
        embedder.query_projection.weight.add_(1)
    assert tower_digest(embedder) == tower_digest(system.embedder)
    with torch.no_grad():
        embedder.document_projection.weight[0, 0] += 1e-3
    assert tower_digest(embedder) != tower_digest(system.embedder)


def test_the_digest_tells_what_no_weight_shows(system: TinySystem) -> None:
    def digest(**change: Any) -> str:
        embedder = Embedder(system.embedder.query_encoder.shape, system.embedder.head._replace(**change))
        embedder.load_state_dict(system.embedder.state_dict())
        return tower_digest(embedder)

    kinds = [digest(), digest(pooling="mean"), digest(score_scale="cosine")]
    assert kinds[0] == tower_digest(system.embedder)
    assert len(set(kinds)) == 3
    of_queries_alone = digest(score_scale="inverse_sqrt"), digest(initial_projection="identity")
    assert {kinds[0]} == set(of_queries_alone)
    assert digest(score_scale="cosine", temperature=0.3) == kinds[2]


def test_only_passages_that_are_new_are_embedded(system: TinySystem, store: EmbeddingStore) -> None:
    old = embedded(system, store)
    count = len(system.passages)
    titles = [np.asarray(system.passages.titles[row]) for row in range(count)][::-1]
    bodies = [np.asarray(system.passages.bodies[row]) for row in range(count)][::-1]
    bodies[0], bodies[7] = bodies[0][:-1], np.append(bodies[7], bodies[7][:1])
    titles[9] = np.append(titles[9], bodies[9][:1])  # the wordpieces in a row stay the same
    bodies[9] = bodies[9][1:]

    passages: Any = Changed(titles, bodies)
    rows_N = equal_rows(passages, system.passages)
    assert np.flatnonzero(rows_N < 0).tolist() == [0, 7, 9]
    assert (rows_N[1:7] == count - 1 - np.arange(1, 7)).all()
    before = Embedded.passages
    new = embedded(system, store, passages=passages, corpus_digest="u" * 64, reuse_from=(old, system.passages))
    assert Embedded.passages == before + 3
    anew = embedded(system, EmbeddingStore(store.folder.parent / "anew"), passages=passages, corpus_digest="u" * 64)
    torch.testing.assert_close(new.matrix, anew.matrix, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_are_read_in_place(store: EmbeddingStore, dtype: str) -> None:
    found = store.build(identity(dtype=dtype), given, shard_rows=4)
    wanted_ND = VECTORS_ND.to(found.matrix.dtype).float()
    assert str(found.matrix.dtype) == f"torch.{dtype}"
    assert torch.equal(found.matrix.float(), wanted_ND)
    assert torch.equal(found[3:9], wanted_ND[3:9])
    assert torch.equal(found[8:99], wanted_ND[8:])
    assert torch.equal(found[torch.tensor([7, 0, 7])], wanted_ND[[7, 0, 7]])
    assert (found.shape, len(found), found.as_tensor().dtype) == ((ROWS, SIZE), ROWS, torch.float32)
    found[0:4].zero_()
    found.matrix[0] = 0  # a private memory map
    assert torch.equal(found[0:4], wanted_ND[0:4])
    assert len((found.folder / "embeddings.bin").read_bytes()) == ROWS * SIZE * found.matrix.dtype.itemsize


def test_a_killed_build_keeps_its_finished_shards(store: EmbeddingStore) -> None:
    code = """
import os, signal, sys
from tests.engine.retrieval.test_embeddings import EmbeddingStore, Path, given, identity
def embed(rows_R):
    if rows_R[0] == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return given(rows_R)
EmbeddingStore(Path(sys.argv[1])).build(identity(), embed, shard_rows=4)
"""
    ended = subprocess.run([sys.executable, "-c", code, str(store.folder)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert store.find(identity()) is None
    asked: list[int] = []

    def embed(rows_R: np.ndarray) -> Tensor:
        asked.extend(rows_R.tolist())
        return given(rows_R)

    found = store.build(identity(), embed, shard_rows=4)
    assert asked == [8, 9]
    assert torch.equal(found.matrix, VECTORS_ND)


def test_processes_share_the_shards_out_and_wait_for_each_other(store: EmbeddingStore) -> None:
    """Another process holds shard 0 and finishes it while we wait for it."""
    folder = store.build(identity(corpus_digest="other"), given, shard_rows=4).folder  # as the other one writes it
    ours = store.folder / identity().key[:12]
    asked: list[int] = []
    ours.mkdir()
    lock = open(ours / "shard-00000.lock", "a+")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def embed(rows_R: np.ndarray) -> Tensor:
        asked.append(int(rows_R[0]))
        if rows_R[0] == 8:  # our last shard: now the other process ends
            with open(ours / "embeddings.bin", "r+b") as file:
                file.write((folder / "embeddings.bin").read_bytes()[: 4 * SIZE * 4])
            lock.write((folder / "shard-00000.lock").read_text())
            lock.close()
        return given(rows_R)

    found = store.build(identity(), embed, shard_rows=4)
    assert asked == [4, 8]
    assert torch.equal(found.matrix, VECTORS_ND)


def test_damage_is_refused_in_one_line(store: EmbeddingStore) -> None:
    found = store.build(identity(), given, shard_rows=4)
    path = found.folder / "embeddings.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with refused("119 bytes", "120", path=path):
        store.find(identity())
    path.write_bytes(bytes(len(content)))
    with refused(path=path, remedy=f"delete {found.folder} and run again"):
        store.find(identity())
    other = store.build(identity(corpus_digest="d", code="1"), given)
    assert other.key == store.find(identity(corpus_digest="d", code="2"), True).key  # type: ignore[union-attr]
    path.write_bytes(content)
    record = json.loads((found.folder / "identity.json").read_text())
    (found.folder / "identity.json").write_text(json.dumps(record | {"tower_digest": "z"}))
    with refused("delete the folder", path=found.folder):
        store.find(identity())
    wrong: Any
    for wrong in (record | {"format": 0}, {"what": 1}, []):
        (found.folder / "identity.json").write_text(json.dumps(wrong))
        with refused("delete the folder", path=found.folder / "identity.json"):
            store.published()


def test_rows_that_are_not_finite_are_refused(store: EmbeddingStore) -> None:
    def embed(rows_R: np.ndarray) -> Tensor:
        rows_RD = given(rows_R).clone()
        rows_RD[rows_R == 5] = torch.nan
        return rows_RD

    with refused("passage 5 ", "learning rates"):
        store.build(identity(), embed, shard_rows=4)
    assert store.find(identity()) is None


def test_a_full_disk_is_one_line(store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    def embed(rows_R: np.ndarray) -> Tensor:
        monkeypatch.setattr(os, "fsync", full)
        return given(rows_R)

    with refused("embeddings.bin", "no space left"):
        store.build(identity(), embed, shard_rows=4)
    monkeypatch.undo()
    assert torch.equal(store.build(identity(), given, shard_rows=4).matrix, VECTORS_ND)
