"""Shards made by several processes and handed out in order; finished ones are taken from where they are kept."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from realm_lab.corpus.cutting import Article, CutSettings, Cutter
from realm_lab.corpus.shards import Kind, Shard, grouped, make_shard, read_shard, shard_key, write_shard
from realm_lab.errors import UserError

ONE_CORE = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
AHEAD = 2  # shards that wait beyond those that are being made


class _Waiting(NamedTuple):
    """A shard that is there, or is being made."""

    path: Path
    shard: Shard | None
    future: Future[None] | None


class ShardPool:
    """Use as a context. Memory is bounded: at most `workers` + AHEAD shards, with their documents, are held at a time.

    `counts` says how many shards were made, reused, and made again because the file was damaged.
    """

    def __init__(self, settings: CutSettings, made_by: str, folder: Path, workers: int):
        self._settings, self._made_by, self._folder, self._workers = settings, made_by, folder, workers
        self._cutter: Cutter | None = None
        self._executor: ProcessPoolExecutor | None = None
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> ShardPool:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def shards(self, articles: Iterable[Article], kind: Kind) -> Iterator[Shard]:
        """The shards of a corpus, in its order.

        Raises:
            UserError: a process was killed, or what one of them met.
        """
        waiting: deque[_Waiting] = deque()
        for run in grouped(articles):
            waiting.append(self._begin(run, kind))
            if len(waiting) >= self._workers + AHEAD:
                yield self._finished(waiting.popleft())
        while waiting:
            yield self._finished(waiting.popleft())

    def _begin(self, run: Sequence[Article], kind: Kind) -> _Waiting:
        path = self._folder / f"{shard_key(self._made_by, kind, run)}.shard"
        shard = read_shard(path)
        if shard is not None:
            self.counts["reused"] += 1
            return _Waiting(path, shard, None)
        if path.exists():
            self.counts["damaged"] += 1
        self.counts["made"] += 1
        if self._workers == 1:
            self._cutter = self._cutter or Cutter(self._settings)
            shard = make_shard(self._cutter, kind, run)
            write_shard(path, shard)
            return _Waiting(path, shard, None)
        try:
            with _as_for_workers():
                return _Waiting(path, None, self._pool().submit(_make, kind, run, path))
        except BrokenProcessPool:
            raise self._killed() from None

    def _finished(self, waiting: _Waiting) -> Shard:
        if waiting.future is not None:
            try:
                waiting.future.result()
            except BrokenProcessPool:
                raise self._killed() from None
        shard = waiting.shard or read_shard(waiting.path)
        if shard is None:
            raise UserError(f"{waiting.path}: was written and cannot be read; check the disk and prepare again")
        return shard

    def _killed(self) -> UserError:
        return UserError(
            f"one of the {self._workers} processes that prepare the corpus was killed, most likely for want of memory; "
            "lower launch.threads and run again: finished shards are kept"
        )

    def _pool(self) -> ProcessPoolExecutor:
        """Started when it is needed. The processes begin empty: none inherits threads or our main module."""
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self._workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start,
                initargs=(self._settings,),
            )
        return self._executor


@contextmanager
def _as_for_workers() -> Iterator[None]:
    """Processes that are started inside use one core each, and do not import our main module, and torch with it."""
    main, before = sys.modules["__main__"], {name: os.environ.get(name) for name in ONE_CORE}
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(ONE_CORE)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Process:
    """What a worker process keeps."""

    cutter: Cutter | None = None


def _start(settings: CutSettings) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _Process.cutter = Cutter(settings)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _make(kind: Kind, run: Sequence[Article], path: Path) -> None:
    assert _Process.cutter is not None
    write_shard(path, make_shard(_Process.cutter, kind, run))
