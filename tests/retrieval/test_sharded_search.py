"""Search of a generation on disk: the result of one matrix in memory, and no more memory for more shards."""

# Shapes: N passages, B queries, R rows, D embedding size

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from realm_lab.errors import UserError
from realm_lab.retrieval import exact, faiss_backends
from realm_lab.retrieval.backends import make_backend, read_search, write_search
from realm_lab.retrieval.exact import ExactSearch
from realm_lab.retrieval.faiss_backends import KINDS, FaissSettings
from realm_lab.retrieval.generation import Generation, GenerationStore
from realm_lab.retrieval.search import Exclusion
from realm_lab.retrieval.shards import ShardedRows

CORPUS = "c" * 64
ROWS, SIZE = 1000, 32
MEBIBYTE = 1 << 20


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def publish(folder: Path, embeddings_ND: Tensor, shard_rows: int, dtype: Any = "float32", search: Any = None) -> Any:
    store = GenerationStore(folder, CORPUS)
    with store.lease():
        building = store.begin(3, "e" * 64, len(embeddings_ND), embeddings_ND.shape[1], dtype, shard_rows)
        for shard in building.missing():
            building.write(shard.number, embeddings_ND[shard.first : shard.first + shard.rows])
        return building.publish(search=search)


def test_shards_read_like_one_matrix() -> None:
    whole_ND = normal(23, 4)
    rows = ShardedRows([part.clone() for part in whole_ND.split([6, 6, 1, 10])])
    assert (rows.shape, len(rows), rows.dtype, rows.device.type) == ((23, 4), 23, torch.float32, "cpu")
    for part in (slice(0, 23), slice(None), slice(2, 5), slice(5, 14), slice(12, 13), slice(20, 99), slice(7, 7)):
        assert torch.equal(rows[part], whole_ND[part])
    assert torch.equal(rows[::5], whole_ND[::5])
    for chosen in ([], [22], [0, 22, 6, 5, 12, 11, 6], list(range(23))[::-1]):
        chosen_R = torch.tensor(chosen, dtype=torch.int64)
        assert torch.equal(rows[chosen_R], whole_ND[chosen_R])
    inside = rows[7:11]
    assert inside.untyped_storage().nbytes() == 6 * 4 * 4  # a view of its shard: nothing was copied
    assert torch.equal(ShardedRows([whole_ND])[3:5], whole_ND[3:5])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shard_rows", [ROWS, 300, 64])
def test_the_result_is_that_of_one_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, shard_rows: int
) -> None:
    monkeypatch.setattr(exact, "CHUNK_ROWS", {"cpu": 96})
    embeddings_ND = normal(ROWS // 2, SIZE).repeat(2, 1)  # every score stands twice, in two shards
    generation = publish(tmp_path, embeddings_ND, shard_rows, dtype)
    monkeypatch.delattr(Generation, "embeddings")  # the copy of everything
    found = make_backend("exact", generation.matrix())
    stored_ND = embeddings_ND.to(getattr(torch, dtype))
    for queries in (1, 7):
        query_BD = normal(queries, SIZE, seed=1)
        groups = torch.arange(ROWS) // 9
        for exclude in (None, Exclusion(torch.arange(queries), groups)):
            expected = ExactSearch(stored_ND).search(query_BD, 11, exclude)
            assert torch.equal(found.search(query_BD, 11, exclude).rows_BK, expected.rows_BK)
            assert torch.equal(found.search(query_BD, 11, exclude).scores_BK, expected.scores_BK)


class Watched(TorchDispatchMode):
    """The most memory of this process's own, maps of files not counted, that an operation of torch has left."""

    def __init__(self) -> None:
        super().__init__()
        self.start = self.most = own_bytes()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.most = max(self.most, own_bytes())
        return result


def own_bytes() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) << 10


def test_memory_does_not_grow_with_the_number_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "CHUNK_ROWS", {"cpu": 1 << 13})
    monkeypatch.setattr(exact, "PREPARED_ROWS", 1 << 11)
    shard_rows, shards, bound = 1 << 14, 12, 16 * MEBIBYTE  # a shard is 4 MiB
    generation = publish(tmp_path, normal(shards * shard_rows, 64), shard_rows)
    store = GenerationStore(tmp_path, CORPUS)

    def searched(rows: Any) -> None:
        ExactSearch(rows, half=False).search(normal(1, 64, seed=1), 8)

    with Watched():  # what first calls, and the watch itself, keep for themselves
        searched(generation.rows(0, 1000))
    with Watched() as search:
        searched(generation.matrix())
    assert search.most - search.start < bound
    with Watched() as verify:
        assert store.verify() == []
    assert verify.most - verify.start < bound
    with Watched() as copied:
        searched(generation.embeddings())
    assert copied.most - copied.start > 2 * bound  # the watch sees what it must


@pytest.mark.parametrize("kind", KINDS)
def test_an_approximate_index_is_written_beside_the_shards_and_read(kind: str, tmp_path: Path) -> None:
    embeddings_ND, query_BD = normal(ROWS, SIZE), normal(5, SIZE, seed=1)
    settings = FaissSettings(lists=16, probes=2, bits=3, rescore=False) if kind == "ivf_pq" else FaissSettings(seed=4)
    generation = publish(tmp_path, embeddings_ND, 300, search=partial(write_search, kind, settings))
    expected = make_backend(kind, embeddings_ND, settings)
    assert isinstance(expected, faiss_backends.FaissSearch)
    manifest = generation.manifest.search
    assert (manifest.backend, manifest.recall_at_8) == (kind, expected.recall_at_8)
    assert manifest.recall_at_8 < 1 or kind != "ivf_pq"
    store = GenerationStore(tmp_path, CORPUS)
    assert store.verify() == []
    found = read_search(store.open())
    assert (found.settings, found.recall_at_8) == (expected.settings, expected.recall_at_8)
    for part, wanted in zip(found.search(query_BD, 8), expected.search(query_BD, 8), strict=True):
        assert torch.equal(part, wanted)
    (generation.folder / "search.faiss").write_bytes(b"another")
    assert "search.faiss" in store.verify()[0]
    with pytest.raises(UserError, match="its digest is"):
        read_search(store.open())


def test_a_generation_without_one_says_how_to_build_it(tmp_path: Path) -> None:
    generation = publish(tmp_path, normal(20, SIZE), 8)
    with pytest.raises(UserError, match="no approximate index; build one with `realm-lab index build --backend`"):
        read_search(generation)


def test_a_full_disk_is_one_line_and_the_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = partial(write_search, "faiss_flat", FaissSettings())
    with monkeypatch.context() as patch:

        def full(self: Any, path: Path) -> str:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(faiss_backends.FaissSearch, "save", full)
        with pytest.raises(UserError, match=r"search\.faiss: the disk is full.*make room and run again"):
            publish(tmp_path, normal(20, SIZE), 8, search=search)
    assert GenerationStore(tmp_path, CORPUS).names() == []
    monkeypatch.setattr("realm_lab.retrieval.building.write_shard", None)  # the shards are there
    assert publish(tmp_path, normal(20, SIZE), 8, search=search).manifest.search is not None


def test_a_lease_is_kept_while_an_index_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_backends, "ADDED_ROWS", 100)
    beats: list[None] = []
    faiss_backends.build_faiss("sq8", normal(1000, SIZE), beat=lambda: beats.append(None))
    assert len(beats) == 10
