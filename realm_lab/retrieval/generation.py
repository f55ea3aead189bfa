"""Generations of the index on disk: published by rename, pinned while in use, pruned, rolled back; how one is built.

<store>/gen-<step>-<embedder digest>/   published generations, see shards.py; nothing in them ever changes
<store>/current.json                    the one that is searched
<store>/pins/                           who uses which: these are not pruned
<store>/leases/                         who builds: one process, or one for each part of the shards
<store>/building/                       generations to come, see building.py
"""

# Shapes: N passages, R rows, D embedding size

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from realm_lab.core.files import digest, read_json, write_json
from realm_lab.core.lease import Lease, Owner, drop_torn, holders, read_owner, take, this_process
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.errors import UserError
from realm_lab.models.embedder import PARTS, Embedder
from realm_lab.retrieval import index
from realm_lab.retrieval.building import Building, Identity, WriteSearch, set_current, store_lock
from realm_lab.retrieval.shards import NAME, Dtype, Generation, Manifest, SearchFile, Shard, problems, read_generation

__all__ = [
    "Building",
    "Generation",
    "GenerationStore",
    "Manifest",
    "SearchFile",
    "Shard",
    "build_generation",
    "embedder_digest",
]

SHARD_ROWS = 8 * index.EMBED_CHUNK_ROWS  # a multiple: the vectors are then those of embed_passages to the bit
LEASE_LIMIT_SECONDS = 1800.0  # of silence; a slow CPU needs minutes for the passages between two signs of life
WHOLE = (0, 1)
_OWN_PINS: dict[Path, int] = {}  # how often this process pins; changed under the store's lock


class GenerationStore:
    """The generations of one corpus in a folder, which need not exist yet."""

    def __init__(self, folder: Path, corpus_digest: str):
        self.folder = Path(folder)
        self.corpus_digest = corpus_digest
        self._lease: Lease | None = None

    def names(self) -> list[str]:
        """Published generations by step, the oldest first; also broken ones, which `open` refuses."""
        return sorted(path.name for path in self.folder.glob("gen-*") if NAME.fullmatch(path.name))

    def current(self) -> str | None:
        """The name of the generation that is searched, None before the first."""
        path = self.folder / "current.json"
        if not path.exists():
            return None
        found = read_json(path)
        if not isinstance(found, dict) or not isinstance(found.get("generation"), str):
            raise UserError(f"{path}: names no generation; run `realm-lab index rollback NAME`")
        return str(found["generation"])

    def open(self, name: str | None = None) -> Generation:
        """A generation (the current one), checked to be whole and of this corpus; its shards are not read.

        Raises:
            UserError: unbuilt, partial, of another corpus or of the wrong size: with both values and the remedy.
        """
        name = name or self.current()
        if name is None:
            raise UserError(f"{self.folder}: no index has been built here; run `realm-lab index build`")
        return read_generation(self.folder / name, self.corpus_digest)

    def verify(self, name: str | None = None) -> list[str]:
        """What is wrong with a generation (the current one), every byte of it read; empty if nothing."""
        try:
            return problems(self.open(name))
        except UserError as error:
            return [str(error)]

    def rollback(self, name: str) -> Generation:
        """Search this generation from now on; one with a problem is refused."""
        found = self.verify(name)
        if found:
            raise UserError(f"{name} cannot be searched: {'; '.join(found)}")
        with store_lock(self.folder):
            generation = self.open(name)
            set_current(self.folder, name)
        return generation

    @contextmanager
    def pin(self, name: str | None = None) -> Iterator[Generation]:
        """Open a generation (the current one) and keep it from being pruned until the block or the process ends."""
        owner = this_process()
        with store_lock(self.folder):
            generation = self.open(name)
            path = self.folder / "pins" / f"{generation.name}.{owner.host}.{owner.pid}.json"
            drop_torn(path.parent)
            if not _OWN_PINS.get(path):
                write_json(path, {"owner": asdict(owner), "since": time.time()})
            _OWN_PINS[path] = _OWN_PINS.get(path, 0) + 1
        try:
            yield generation
        finally:
            with store_lock(self.folder):
                _OWN_PINS[path] -= 1
                if not _OWN_PINS[path]:
                    del _OWN_PINS[path]
                    path.unlink(missing_ok=True)

    def pinned_by(self, name: str) -> list[Owner]:
        """The processes that use a generation. A dead one of this machine does not count; of others, all do."""
        owners = [read_owner(path) for path in sorted((self.folder / "pins").glob(f"{name}.*.json"))]
        return [owner for owner in owners if not owner.is_dead]

    def prune(self, keep: int) -> list[str]:
        """Delete all but the newest `keep` generations, never the current or a pinned one; returns their names.

        What is left of builds that no process works on goes too.
        """
        assert keep >= 0, "a number of generations"
        building = self.folder / "building"
        with store_lock(self.folder):
            names = self.names()
            doomed = [name for name in names[: max(0, len(names) - keep)] if name != self.current()]
            doomed = [name for name in doomed if not self.pinned_by(name)]
            for name in doomed:
                building.mkdir(exist_ok=True)
                os.replace(self.folder / name, _trash(building / name))
            held = [other.work for other in holders(self.folder / "leases") if other.is_held(other.limit_seconds)]
            for path in sorted(building.glob("gen-*")):
                if not any(work.startswith(path.name.removesuffix(".parts")) for work in held):
                    os.replace(path, _trash(path))
            for path in (self.folder / "pins").glob("gen-*.json"):
                if read_owner(path).is_dead:
                    path.unlink()
        for path in building.glob(".trash-*"):
            shutil.rmtree(path, ignore_errors=True)  # another process may be at it too
        return doomed

    @contextmanager
    def lease(self, part: tuple[int, int] = WHOLE, limit_seconds: float = LEASE_LIMIT_SECONDS) -> Iterator[Lease]:
        """Be the one builder of this store, or of part i of n (counted from 0) of the shards, until the block ends.

        Raises:
            UserError: another process is: with its host, number and age. A dead one, or one that has been silent for
                `limit_seconds`, is taken over; if that one is alive after all, its next write is refused.
        """
        number, size = part
        if not 0 <= number < size:
            raise UserError(f"part {number}/{size}: parts are counted from 0, the last of {size} is {size - 1}/{size}")
        lease = take(
            self.folder / "leases",
            f"part-{number}-of-{size}",
            limit_seconds=limit_seconds,
            is_rival=lambda other: not other.name.endswith(f"-of-{size}"),
        )
        with lease:
            self._lease = lease
            try:
                yield lease
            finally:
                self._lease = None

    @property
    def is_leased(self) -> bool:
        """Whether this object holds a lease."""
        return self._lease is not None

    def begin(
        self,
        step: int,
        embedder_digest: str,
        rows: int,
        dimension: int,
        dtype: Dtype = "float32",
        shard_rows: int = SHARD_ROWS,
    ) -> Building:
        """Begin a generation, or go on with it where it was interrupted; inside `with store.lease():`.

        Raises:
            UserError: another generation of this name is published or being built, or the disk has no room.
        """
        assert self._lease is not None, "begin inside `with store.lease():`"
        assert min(rows, dimension, shard_rows) > 0, "an index of nothing"
        wanted = Identity(self.corpus_digest, embedder_digest, step, dtype, rows, dimension, shard_rows)
        self._lease.claim(f"{wanted.name} ({dtype}, {digest(asdict(wanted))[:8]})")
        return Building(self.folder, wanted, self._lease)


@torch.no_grad()
def build_generation(
    store: GenerationStore,
    embedder: Embedder,
    passages: Passages,
    special: SpecialIds,
    *,
    step: int,
    passage_length: int,
    token_budget: int,
    precision: str,
    dtype: Dtype = "float32",
    shard_rows: int = SHARD_ROWS,
    only: tuple[int, int] = WHOLE,
    make_current: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
    search: WriteSearch | None = None,
) -> Generation | None:
    """Embed the knowledge corpus shard by shard into a generation and publish it; memory does not grow with the corpus.

    Of `only` = (i, n), part i (from 0) of the shards; the process that ends last publishes, the others return None.
    `progress` gets rows done and rows of this part, first those that an interrupted build has left. A lease of the
    store that the caller holds is used, else one is taken. `search` adds an approximate index, see backends.py.
    """
    training = embedder.training
    embedder.eval()
    settings = (special, passage_length, token_budget, precision)
    try:
        with nullcontext() if store.is_leased else store.lease(only):
            dimension = embedder.document_projection.out_features
            building = store.begin(step, embedder_digest(embedder), len(passages), dimension, dtype, shard_rows)
            total = sum(shard.rows for shard in building.own)
            missing = building.missing()
            done = total - sum(shard.rows for shard in missing)
            progress(done, total)
            for shard in missing:
                parts = []
                for start in range(shard.first, shard.first + shard.rows, index.EMBED_CHUNK_ROWS):
                    rows = np.arange(start, min(start + index.EMBED_CHUNK_ROWS, shard.first + shard.rows))
                    parts.append(index.embed_rows(embedder, passages, rows, *settings).cpu())
                    building.beat()
                    done += len(rows)
                    progress(done, total)
                building.write(shard.number, torch.cat(parts))
            return building.publish_if_last(make_current=make_current, search=search)
    finally:
        embedder.train(training)


def embedder_digest(embedder: Embedder) -> str:
    """SHA-256 over the document tower: the parameters as float32 and what its shape does not show, not the device, the
    precision or how the towers share."""
    shape = embedder.document_encoder.shape
    described = (shape.heads, shape.activation, shape.layer_norm_epsilon)
    found = hashlib.sha256(repr(described).encode())
    for part in PARTS:
        module = getattr(embedder, f"document_{part}")
        for name, value in sorted(module.state_dict().items()) if module is not None else ():
            found.update(f"{part}.{name} {tuple(value.shape)}".encode())
            found.update(value.detach().to("cpu", torch.float32).contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _trash(path: Path) -> Path:
    return path.with_name(f".trash-{path.name}.{os.getpid()}")
