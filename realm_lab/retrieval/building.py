"""A generation of the index that is being built: shards written one by one, by one process or several, then published.

<store>/building/<name>/       the shards
<store>/building/<name>.parts/ what is to be built, and the digest of every shard that is written: an interrupted build
                               goes on with the next missing one, and no file is trusted without its digest
"""

# Shapes: R rows, D embedding size

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from realm_lab.core.files import digest_file, read_json, write_json
from realm_lab.core.lease import Lease, drop_torn, exclusive
from realm_lab.errors import UserError
from realm_lab.retrieval.shards import (
    DTYPES,
    FORMAT,
    Dtype,
    Generation,
    Manifest,
    SearchFile,
    Shard,
    ShardedRows,
    free_bytes,
    generation_name,
    problems,
    read_generation,
    shard_name,
    write_shard,
)

BESIDE_BYTES = 1 << 16  # the manifest and the digests of the shards


class Missing(NamedTuple):
    """A shard to be written: its number, its first row and how many rows it has."""

    number: int
    first: int
    rows: int


@dataclass(frozen=True)
class Identity:
    """What two builds must share to be the same."""

    corpus_digest: str
    embedder_digest: str
    step: int
    dtype: Dtype
    rows: int
    dimension: int
    shard_rows: int

    @property
    def name(self) -> str:
        """The generation's name."""
        return generation_name(self.step, self.embedder_digest)

    @property
    def shards(self) -> list[Missing]:
        """All shards."""
        firsts = range(0, self.rows, self.shard_rows)
        return [Missing(number, first, min(self.shard_rows, self.rows - first)) for number, first in enumerate(firsts)]


class Building:
    """A generation to come; made by GenerationStore.begin."""

    def __init__(self, store: Path, wanted: Identity, lease: Lease):
        self.identity = wanted
        self.folder = store / "building" / wanted.name
        self._records = store / "building" / f"{wanted.name}.parts"
        self._store, self._lease = store, lease
        number, size = (int(word) for word in lease.name.removeprefix("part-").split("-of-"))
        shards = wanted.shards
        self.own = shards[number * len(shards) // size : (number + 1) * len(shards) // size]
        self._clock = time.monotonic()
        with store_lock(store):
            self._adopt()
        self._drop_torn()
        self._check_room()

    def missing(self) -> list[Missing]:
        """The shards of our part that are still to be written."""
        return self._without_record(self.own)

    def write(self, number: int, rows_RD: Tensor) -> None:
        """Write a shard, atomically.

        Raises:
            UserError: rows that are not finite, a full disk (nothing of the shard is left), or the lease is lost.
        """
        shard = self.identity.shards[number]
        assert shard in self.own, "a shard of another part"
        assert rows_RD.shape == (shard.rows, self.identity.dimension), "not the shape of this shard"
        self._lease.beat(force=True)
        path = self.folder / shard_name(number)
        sha256 = write_shard(path, rows_RD, shard.first, self.identity.dtype)
        now = time.monotonic()
        write_json(self._record(number), {"sha256": sha256, "seconds": now - self._clock})
        self._clock = now

    def beat(self) -> None:
        """Say that we are alive; a lease that was lost is a UserError."""
        self._lease.beat()

    def matrix(self) -> ShardedRows:
        """The embeddings, memory-mapped, once all are written."""
        self._check_all_written()
        return Generation(self.identity.name, self._manifest(None), self.folder).matrix()

    def publish(self, *, make_current: bool = True, search: WriteSearch | None = None) -> Generation:
        """Verify every byte and make the generation visible, whole, at one instant; again, it changes nothing.

        `search` writes an approximate index into the folder before.

        Raises:
            UserError: a shard is missing, or is not what was written: that one is then to be written again.
        """
        self._lease.beat(force=True)
        with exclusive(self._store / "building" / ".publish.lock"):  # parts that end at the same time
            generation = published(self._store, self.identity)
            if generation is None:
                self._check_all_written()
                self._seal(search(self) if search is not None else None)
            with store_lock(self._store):
                if generation is None:
                    os.replace(self.folder, self._store / self.identity.name)
                    generation = read_generation(self._store / self.identity.name, self.identity.corpus_digest)
                if make_current:
                    set_current(self._store, generation.name)
            shutil.rmtree(self._records, ignore_errors=True)
        return generation

    def publish_if_last(self, *, make_current: bool = True, search: WriteSearch | None = None) -> Generation | None:
        """Publish when every part is written; None while another part has shards to write."""
        if self._without_record(self.identity.shards):
            return None
        return self.publish(make_current=make_current, search=search)

    def _adopt(self) -> None:
        """Keep what is right of an interrupted build of the same identity, and nothing else."""
        if published(self._store, self.identity) is not None:
            shutil.rmtree(self._records, ignore_errors=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        path = self._records / "identity.json"
        if not path.exists() or read_json(path) != asdict(self.identity):
            shutil.rmtree(self._records, ignore_errors=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            write_json(path, asdict(self.identity))
        self.folder.mkdir(parents=True, exist_ok=True)

    def _drop_torn(self) -> None:
        """Of our part, forget what is not as it was written."""
        for shard in self.own:
            file = self.folder / shard_name(shard.number)
            for torn in self.folder.glob(f".{file.name}.*.tmp"):
                torn.unlink()
            if self._record(shard.number).exists() and not self._is_intact(shard):
                self._record(shard.number).unlink()

    def _is_intact(self, shard: Missing) -> bool:
        file = self.folder / shard_name(shard.number)
        return file.exists() and digest_file(file) == read_json(self._record(shard.number)).get("sha256")

    def _check_room(self) -> None:
        if not self.missing():
            return
        width = self.identity.dimension * DTYPES[self.identity.dtype].itemsize
        needed = sum(shard.rows for shard in self.missing()) * width + BESIDE_BYTES
        free = free_bytes(self.folder)
        if free < needed:
            raise UserError(
                f"{self.folder}: the disk is too full: {needed} bytes are needed, {free} are free; make room, or "
                "choose a smaller dtype"
            )

    def _check_all_written(self) -> None:
        missing = self._without_record(self.identity.shards)
        if missing:
            raise UserError(
                f"{self.folder}: {len(missing)} of {len(self.identity.shards)} shards are missing, the first is "
                f"{shard_name(missing[0].number)}; run the build again, which writes them"
            )

    def _without_record(self, shards: list[Missing]) -> list[Missing]:
        missing = [shard for shard in shards if not self._record(shard.number).exists()]
        # Asked afterwards: the records go when another part publishes.
        return missing if missing and published(self._store, self.identity) is None else []

    def _seal(self, search: SearchFile | None) -> None:
        """Write the manifest, and look at every byte once more."""
        manifest = self._manifest(search)
        files = {shard.file for shard in manifest.shards} | {search.file if search else ""}
        for path in self.folder.iterdir():
            if path.name not in files:
                path.unlink()
        write_json(self.folder / "manifest.json", asdict(manifest))
        found = problems(read_generation(self.folder, self.identity.corpus_digest), self._lease.beat)
        if found:
            raise UserError(
                f"{self.folder}: {'; '.join(found)}; run the build again, which writes anew what is not right"
            )
        self._lease.beat(force=True)

    def _manifest(self, search: SearchFile | None) -> Manifest:
        records = [read_json(self._record(shard.number)) for shard in self.identity.shards]
        return Manifest(
            FORMAT,
            self.identity.corpus_digest,
            self.identity.embedder_digest,
            self.identity.step,
            self.identity.dtype,
            self.identity.rows,
            self.identity.dimension,
            tuple(
                Shard(shard_name(shard.number), shard.first, shard.rows, record["sha256"])
                for shard, record in zip(self.identity.shards, records, strict=True)
            ),
            search,
            float(sum(record["seconds"] for record in records)),
            time.time(),
        )

    def _record(self, number: int) -> Path:
        return self._records / f"{shard_name(number)}.json"


WriteSearch = Callable[[Building], SearchFile]


def store_lock(store: Path) -> AbstractContextManager[None]:
    """For a short look and change; waits for other processes."""
    return exclusive(store / ".lock")


def set_current(store: Path, name: str) -> None:
    """Make a generation the one that is searched; inside the store's lock."""
    drop_torn(store)
    write_json(store / "current.json", {"generation": name})


def published(store: Path, wanted: Identity) -> Generation | None:
    """The generation, where it is already there; another one of the same name is a UserError."""
    if not (store / wanted.name).exists():
        return None
    generation = read_generation(store / wanted.name, wanted.corpus_digest)
    for field in ("embedder_digest", "dtype", "rows", "dimension"):
        found, asked = getattr(generation.manifest, field), getattr(wanted, field)
        if found != asked:
            raise UserError(
                f"{generation.folder}: already built with {field} {found}, not {asked}; delete it to build it again"
            )
    return generation
