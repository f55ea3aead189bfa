"""Builds that a full disk stops, or a kill at any instant: they go on, to the same bytes."""

# Shapes: N passages, R rows, D embedding size

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.errors import UserError
from realm_lab.retrieval import building as building_module
from realm_lab.retrieval.generation import GenerationStore
from tests.retrieval.generations import (
    CORPUS,
    DIMENSION,
    NAME,
    ROWS,
    SHARD_ROWS,
    begin,
    content,
    fill,
    in_child,
    left_over,
    publish,
    vectors,
)

# Full disks


def test_a_full_disk_is_seen_before_the_work(store: GenerationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ROWS * DIMENSION * 2 + building_module.BESIDE_BYTES
    monkeypatch.setattr(building_module, "free_bytes", lambda folder: needed - 1)
    with store.lease(), pytest.raises(UserError, match=rf"{needed} bytes are needed, {needed - 1} are free; make room"):
        begin(store, dtype="float16")
    monkeypatch.setattr(building_module, "free_bytes", lambda folder: needed)
    publish(store, dtype="float16")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_leaves_no_part_of_a_shard(
    store: GenerationStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with store.lease():
        building = begin(store)
        fill(building, most=1)
        with monkeypatch.context() as patch:

            def full(descriptor: int) -> None:
                raise OSError(number, os.strerror(number))

            patch.setattr(os, "fsync", full)
            patch.setattr(building._lease, "beat", lambda force: None)
            with pytest.raises(UserError, match=r"shard-00001.bin: the disk is full: 120 bytes are needed, \d+ "):
                fill(building)
        assert sorted(path.name for path in building.folder.iterdir()) == ["shard-00000.bin"]
        assert len(building.missing()) == 3
    assert torch.equal(publish(store).embeddings(), vectors())


# Deaths


class Reaper:
    """Kills this process at the n-th call or return of something of the operating system, or counts them."""

    def __init__(self, last: int):
        self.seen, self._last = 0, last

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """See sys.setprofile."""
        if event in ("c_call", "c_return") and getattr(argument, "__module__", None) in ("posix", "_io", None):
            self.seen += 1
            if self.seen == self._last:
                os.kill(os.getpid(), signal.SIGKILL)


def counted(store: GenerationStore, last: int, report: Path) -> None:
    reaper = Reaper(last)
    sys.setprofile(reaper)
    publish(store)
    sys.setprofile(None)
    report.write_text(str(reaper.seen))


def test_killed_at_any_moment_it_ends_in_the_same_bytes(tmp_path: Path) -> None:
    whole = GenerationStore(tmp_path / "whole", CORPUS)
    assert in_child(lambda: counted(whole, 0, tmp_path / "events")) == (0, 0)
    events, expected = int((tmp_path / "events").read_text()), content(whole.open().folder)
    assert events > 100
    moments = sorted(np.random.default_rng(0).choice(np.arange(1, events), 40, replace=False).tolist())
    resumed = 0
    for moment in moments:
        store = GenerationStore(tmp_path / f"killed-{moment}", CORPUS)
        assert in_child(functools.partial(counted, store, moment, tmp_path / "x"))[0] == signal.SIGKILL
        for name in store.names():
            assert store.verify(name) == []  # whatever is visible is whole
        with store.lease():
            resumed += len(begin(store).missing()) < 4
        assert content(publish(store).folder) == expected
        assert store.current() == NAME
        assert left_over(store) == []
    assert resumed > 5


def test_killed_inside_a_shard_it_writes_that_shard_again(store: GenerationStore) -> None:
    def torn() -> None:
        calls = 0
        original = os.fsync

        def fsync(descriptor: int) -> None:
            nonlocal calls
            if os.fstat(descriptor).st_size == SHARD_ROWS * DIMENSION * 4:
                calls += 1
                if calls == 3:
                    os.ftruncate(descriptor, 50)
                    os.kill(os.getpid(), signal.SIGKILL)
            original(descriptor)

        os.fsync = fsync  # type: ignore[assignment]
        publish(store)

    assert in_child(torn)[0] == signal.SIGKILL
    folder = store.folder / "building" / NAME
    assert [path.stat().st_size for path in folder.glob(".shard-00002.bin.*.tmp")] == [50]
    with store.lease():  # the dead builder's lease is no obstacle
        assert [shard.number for shard in begin(store).missing()] == [2, 3]
    assert torch.equal(publish(store).embeddings(), vectors())
    assert left_over(store) == []
