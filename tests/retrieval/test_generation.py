"""Generations on disk: what is published is whole, what is in use stays, and no failure leaves anything else behind."""

# Shapes: N passages, R rows, D embedding size

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.core.files import digest_file
from realm_lab.errors import UserError
from realm_lab.retrieval import shards
from realm_lab.retrieval.generation import GenerationStore
from tests.retrieval.generations import (
    CORPUS,
    DIMENSION,
    EMBEDDER,
    NAME,
    ROWS,
    SHARD_ROWS,
    begin,
    content,
    fill,
    left_over,
    publish,
    vectors,
)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shard_rows", [SHARD_ROWS, 100])
def test_what_is_written_is_read(store: GenerationStore, dtype: str, shard_rows: int) -> None:
    generation = publish(store, dtype=dtype, shard_rows=shard_rows)
    expected_ND = vectors().to(getattr(torch, dtype))
    opened = store.open()
    assert (opened.name, opened.folder) == (generation.name, store.folder / NAME)
    assert torch.equal(opened.embeddings(), expected_ND)
    for first, count in ((0, 1), (5, 2), (6, 6), (0, ROWS), (22, 1), (3, 0), (4, 15)):
        assert torch.equal(opened.rows(first, count), expected_ND[first : first + count])
    raw = b"".join(content(opened.folder).values())
    words = np.frombuffer(raw, "<u4" if dtype == "float32" else "<u2")
    assert words.tolist() == [
        w % 2 ** (8 * words.itemsize)
        for w in expected_ND.view(torch.int32 if dtype == "float32" else torch.int16).flatten().tolist()
    ]
    manifest = json.loads((opened.folder / "manifest.json").read_text())
    assert {name: manifest[name] for name in ("format", "corpus_digest", "embedder_digest", "step", "dtype")} == {
        "format": 1,
        "corpus_digest": CORPUS,
        "embedder_digest": EMBEDDER,
        "step": 7,
        "dtype": dtype,
    }
    assert (manifest["rows"], manifest["dimension"], manifest["search"]) == (ROWS, DIMENSION, None)
    assert [(s["first"], s["rows"]) for s in manifest["shards"]] == [
        (first, min(shard_rows, ROWS - first)) for first in range(0, ROWS, shard_rows)
    ]
    assert [s["sha256"] for s in manifest["shards"]] == [
        digest_file(opened.folder / s["file"]) for s in manifest["shards"]
    ]
    assert store.verify() == []
    assert left_over(store) == []
    with pytest.raises(UserError, match="rows 20 to 24 of 23"):
        opened.rows(20, 4)


def test_one_shard_is_mapped_and_not_read(store: GenerationStore) -> None:
    generation = publish(store, shard_rows=100)
    embeddings_ND = generation.embeddings()
    assert str(generation.folder / "shard-00000.bin") in Path("/proc/self/maps").read_text()
    embeddings_ND.zero_()  # a private map: the file stays
    assert store.verify() == []


def damage(store: GenerationStore, how: str) -> None:
    folder = store.folder / NAME
    shard, manifest = folder / "shard-00001.bin", folder / "manifest.json"
    values = json.loads(manifest.read_text())
    if how == "unbuilt":
        shutil.rmtree(store.folder)
        return
    if how == "gone":
        shutil.rmtree(folder)
        return
    if how == "no manifest":
        manifest.unlink()
        return
    if how == "cut":
        os.truncate(shard, 60)
        return
    if how == "lost":
        shard.unlink()
        return
    changes: dict[str, Any] = {
        "corpus": {"corpus_digest": "d" * 64},
        "format": {"format": 2},
        "renamed": {"step": 8},
        "rows": {"rows": ROWS + 1},
        "gap": {"shards": values["shards"][1:]},
        "outside": {"shards": [values["shards"][0] | {"file": "../../x.bin"}, *values["shards"][1:]]},
        "dtype": {"dtype": "float64"},
        "field": {"colour": "red"},
        "search": {"search": {"backend": "x", "file": "x.faiss", "sha256": "0", "settings": {}, "recall_at_8": 1.0}},
    }
    manifest.write_text(json.dumps(values | changes[how]))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("unbuilt", "no index has been built here; run `realm-lab index build`"),
        ("gone", f"{NAME}: there is no such generation; see .*run `realm-lab index build`"),
        ("no manifest", "not whole: it has no manifest.json; .*run `realm-lab index build`"),
        ("cut", r"shard-00001.bin: 60 bytes, 120 were written; .*index build"),
        ("lost", r"shard-00001.bin: no such file, 120 bytes were written; .*index build"),
        ("corpus", f"the index of corpus {'d' * 64}, this corpus is {CORPUS}; .*index build"),
        ("format", "format 2, this engine reads 1"),
        ("renamed", f"{NAME}: its manifest is that of gen-00000008-01234567"),
        ("rows", "its shards hold 23 rows, its manifest says 24"),
        ("gap", "'shard-00001.bin' begins at row 6, the shards before it end at row 0"),
        ("outside", "'../../x.bin' begins at row 0"),
        ("dtype", "dtype: .*'float32'"),
        ("field", "colour: Unexpected keyword argument"),
        ("search", "no file x.faiss"),
    ],
)
def test_what_is_not_whole_and_ours_is_refused(store: GenerationStore, how: str, said: str) -> None:
    publish(store)
    store.open()
    damage(store, how)
    with pytest.raises(UserError, match=said):
        store.open()
    with pytest.raises(UserError), store.pin():
        pass
    assert len(store.verify()) == 1


@pytest.mark.parametrize("name", ["../store", "gen-7-01234567", "building", ""])
def test_only_a_generation_has_its_name(store: GenerationStore, name: str) -> None:
    publish(store)
    if name:
        with pytest.raises(UserError, match="no name of a generation"):
            store.open(name)
    assert store.names() == [NAME]


def test_queries_of_another_embedder_are_refused(store: GenerationStore) -> None:
    generation = publish(store)
    generation.check_embedder(EMBEDDER)
    other = EMBEDDER[:-1] + "0"  # the name is the same
    with pytest.raises(UserError, match=rf"(?s){EMBEDDER}.*{other}.*index build"):
        generation.check_embedder(other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "digest"),
        (lambda raw: np.full(30, np.nan, np.float32).tobytes(), "6 rows are not finite, the first is row 6"),
        (lambda raw: raw[:20] + bytes(20) + raw[40:], "1 rows are all zero, the first is row 7"),
    ],
)
def test_verify_reads_every_byte(store: GenerationStore, change: Callable[[bytes], bytes], said: str) -> None:
    shard = publish(store).folder / "shard-00001.bin"
    shard.write_bytes(change(shard.read_bytes()))
    found = store.verify(NAME)
    assert any(said in line for line in found)
    assert all("shard-00001.bin" in line for line in found)
    with pytest.raises(UserError, match="cannot be searched: shard-00001"):
        store.rollback(NAME)


def test_rows_that_no_embedder_makes_are_not_written(store: GenerationStore) -> None:
    with store.lease():
        building = begin(store, dtype="float16")
        for value, said in (
            (torch.nan, "passage 8 is not finite as float16 .*diverged"),
            (1e5, "passage 8 is not finite as float16 .*use bfloat16"),
        ):
            rows_RD = vectors()[6:12].clone()
            rows_RD[2, 0] = value
            with pytest.raises(UserError, match=said):
                building.write(1, rows_RD)
        rows_RD[2] = 0.0
        with pytest.raises(UserError, match="passage 8 is all zeros"):
            building.write(1, rows_RD)
        assert len(building.missing()) == 4


def test_nothing_is_published_while_a_shard_is_missing(store: GenerationStore) -> None:
    with store.lease():
        building = begin(store)
        fill(building, most=3)
        with pytest.raises(UserError, match=r"1 of 4 shards are missing, the first is shard-00003.bin; run the build"):
            building.publish()
        assert building.publish_if_last() is None
    assert store.names() == []
    assert store.current() is None


def test_what_changed_on_disk_before_publishing_is_not_published(store: GenerationStore) -> None:
    with store.lease():
        building = begin(store)
        fill(building)
        shard = building.folder / "shard-00002.bin"
        raw = shard.read_bytes()
        shard.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        with pytest.raises(UserError, match=r"shard-00002\.bin: digest"):
            building.publish()
    assert store.names() == []
    with store.lease():
        building = begin(store)
        assert [shard.number for shard in building.missing()] == [2]
    assert content(publish(store).folder)["shard-00002.bin"] == raw


def test_an_interrupted_build_goes_on_and_another_one_starts_anew(store: GenerationStore) -> None:
    with store.lease():
        fill(begin(store), most=2)
    (store.folder / "building" / NAME / ".shard-00002.bin.1.tmp").write_bytes(b"torn")
    os.truncate(store.folder / "building" / NAME / "shard-00001.bin", 50)
    with store.lease():
        assert [shard.number for shard in begin(store).missing()] == [1, 2, 3]
        assert not list((store.folder / "building" / NAME).glob(".*"))
    with store.lease():
        assert len(begin(store, dtype="bfloat16").missing()) == 4  # the same name, other bytes
    publish(store, dtype="bfloat16")
    assert store.open().manifest.dtype == "bfloat16"
    with store.lease():
        again = begin(store, dtype="bfloat16")
        assert again.missing() == []
        before = store.open()
        assert again.publish() == before
        with pytest.raises(UserError, match="already built with dtype bfloat16, not float32; delete it"):
            begin(store)


def test_the_search_file_is_part_of_the_generation(store: GenerationStore) -> None:
    with store.lease():
        building = begin(store)
        with pytest.raises(UserError, match="4 of 4 shards are missing"):
            building.matrix()
        fill(building)
        assert torch.equal(building.matrix()[:ROWS], vectors())
        file = building.folder / "search.faiss"
        file.write_bytes(b"lists")
        found = shards.SearchFile("ivf", file.name, digest_file(file), {"lists": 2}, 0.9)
        generation = building.publish(search=lambda _: found)
    assert store.open() == generation
    assert generation.manifest.search is not None
    assert generation.manifest.search.recall_at_8 == 0.9
    (generation.folder / "search.faiss").write_bytes(b"other")
    assert "search.faiss" in store.verify()[0]


# Who builds


def test_the_second_builder_is_refused(store: GenerationStore) -> None:
    other = GenerationStore(store.folder, CORPUS)
    with store.lease():
        begin(store)
        said = rf"process {os.getpid()} on {socket.gethostname()} builds {NAME} .*last heard of 0 s ago; wait"
        for part in ((0, 1), (0, 2)):
            with pytest.raises(UserError, match=said), other.lease(part):
                pass
    with other.lease():
        pass
    with store.lease((0, 2)), other.lease((1, 2)):
        begin(store)
        with pytest.raises(UserError, match=f"to build {NAME} .bfloat16"):
            begin(other, dtype="bfloat16")
        begin(other)
    with pytest.raises(UserError, match="parts are counted from 0, the last of 2 is 1/2"), store.lease((2, 2)):
        pass


def test_a_builder_that_was_taken_over_writes_nothing_more(store: GenerationStore) -> None:
    other = GenerationStore(store.folder, CORPUS)
    with store.lease():
        building = begin(store)
        fill(building, most=1)
        path = store.folder / "leases" / "part-0-of-1.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"heard": time.time() - 1e4}))
        with other.lease():
            assert len(begin(other).missing()) == 3
            with pytest.raises(UserError, match="taken over"):
                fill(building)
            with pytest.raises(UserError, match="taken over"):
                building.publish()


# What is kept


def test_pruning_spares_the_newest_the_current_and_the_pinned(store: GenerationStore) -> None:
    names = [publish(store, step).name for step in (3, 1, 2, 5, 4)]
    assert store.names() == sorted(names)
    store.rollback(names[1])  # step 1
    with store.pin(names[2]) as pinned, store.pin(names[2]):
        assert pinned.manifest.step == 2
        assert store.prune(1) == ["gen-00000003-01234567", "gen-00000004-01234567"]
        assert [owner.pid for owner in store.pinned_by(names[2])] == [os.getpid()]
    assert store.names() == ["gen-00000001-01234567", "gen-00000002-01234567", "gen-00000005-01234567"]
    assert store.prune(1) == ["gen-00000002-01234567"]
    assert store.current() == "gen-00000001-01234567"
    assert left_over(store) == []
    with pytest.raises(UserError, match="no such generation"), store.pin(names[2]):
        pass


def test_the_inner_of_two_pins_does_not_unpin(store: GenerationStore) -> None:
    publish(store, 1)
    publish(store, 2)
    with store.pin("gen-00000001-01234567"):
        with store.pin("gen-00000001-01234567"):
            pass
        assert store.prune(1) == []
    assert store.prune(1) == ["gen-00000001-01234567"]


def test_a_dead_process_pins_nothing_and_one_elsewhere_does(store: GenerationStore) -> None:
    publish(store, 1)
    publish(store, 2)
    first = "gen-00000001-01234567"
    number = os.fork()
    if not number:
        with store.pin(first):
            os._exit(0)
    os.waitpid(number, 0)
    assert list((store.folder / "pins").iterdir())
    assert store.pinned_by(first) == []
    elsewhere = store.folder / "pins" / f"{first}.far.1.json"
    elsewhere.write_text(json.dumps({"owner": {"host": "far", "pid": 1, "born": 1.0}, "since": 1.0}))
    assert store.prune(1) == []
    elsewhere.unlink()
    assert store.prune(1) == [first]


def test_pruning_clears_abandoned_builds_only(store: GenerationStore) -> None:
    with store.lease():
        fill(begin(store), most=1)
        assert GenerationStore(store.folder, CORPUS).prune(0) == []
        assert len(begin(store).missing()) == 3
    store.prune(0)
    with store.lease():
        assert len(begin(store).missing()) == 4


def test_a_rollback_lasts_until_the_next_generation(store: GenerationStore) -> None:
    first, second = publish(store, 1).name, publish(store, 2).name
    assert store.current() == second
    assert store.rollback(first).name == first
    assert store.open().name == first
    with pytest.raises(UserError, match="no such generation"):
        store.rollback("gen-00000009-01234567")
    assert store.current() == first
    with store.lease():
        building = begin(store, 3)
        fill(building)
        building.publish(make_current=False)
    assert store.open().name == first
