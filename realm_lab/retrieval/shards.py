"""A generation of the index as it lies on disk: a manifest, and shards of raw embeddings that are memory-mapped.

gen-<step>-<embedder digest>/manifest.json   what it is, and the digest of every file
                            /shard-00000.bin rows of embeddings, little-endian, nothing else

Reading refuses what is not whole; it looks at sizes, `verify` also at every byte.
"""

# Shapes: N passages, R rows, D embedding size

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from realm_lab.core.files import atomic_write, digest_file, read_json
from realm_lab.errors import UserError

FORMAT = 1
NAME = re.compile(r"gen-\d{8,}-[0-9a-f]{8}")
SHARD_NAME = re.compile(r"shard-\d{5,}\.bin")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
CHECKED_ROWS = 1 << 16  # looked at together by verify
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
Dtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class Shard:
    """Rows [first, first + rows) of the corpus."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    file: str
    first: int
    rows: int
    sha256: str


@dataclass(frozen=True)
class SearchFile:
    """An approximate index beside the shards, and how well it finds what exact search finds."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    backend: str
    file: str
    sha256: str
    settings: dict[str, Any]
    recall_at_8: float | None = None


@dataclass(frozen=True)
class Manifest:
    """What a generation is. `step`: training steps behind its weights; `seconds`: spent on embedding, by all builders
    together; `created`: unix seconds."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    format: int
    corpus_digest: str
    embedder_digest: str
    step: int
    dtype: Dtype
    rows: int
    dimension: int
    shards: tuple[Shard, ...]
    search: SearchFile | None
    seconds: float
    created: float

    @property
    def row_bytes(self) -> int:
        """Bytes of one embedding."""
        return self.dimension * DTYPES[self.dtype].itemsize

    @property
    def name(self) -> str:
        """The folder's name."""
        return generation_name(self.step, self.embedder_digest)


MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Manifest)


@dataclass(frozen=True)
class Generation:
    """A published generation; made by GenerationStore.open, which has checked that it is whole."""

    name: str
    manifest: Manifest
    folder: Path

    def parts(self) -> list[Tensor]:
        """The shards, each memory-mapped: [R, D] of the generation's own dtype. Writing to them changes no file."""
        return [map_shard(self.folder / shard.file, shard.rows, self.manifest) for shard in self.manifest.shards]

    def embeddings(self) -> Tensor:
        """All embeddings, [N, D]: the memory map itself where there is one shard, else a copy in memory."""
        parts = self.parts()
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def matrix(self) -> ShardedRows:
        """All embeddings, of which only what is asked for is copied: for a search in bounded memory."""
        return ShardedRows(self.parts())

    def rows(self, first: int, count: int) -> Tensor:
        """Rows [first, first + count), [count, D]; a view of the memory map where they lie in one shard."""
        if not 0 <= first <= first + count <= self.manifest.rows:
            raise UserError(f"{self.folder}: rows {first} to {first + count} of {self.manifest.rows}; ask for fewer")
        found = []
        for shard in self.manifest.shards:
            start, end = max(first, shard.first), min(first + count, shard.first + shard.rows)
            if start < end:
                part_RD = map_shard(self.folder / shard.file, shard.rows, self.manifest)
                found.append(part_RD[start - shard.first : end - shard.first])
        if not found:
            return torch.empty(0, self.manifest.dimension, dtype=DTYPES[self.manifest.dtype])
        return found[0] if len(found) == 1 else torch.cat(found)

    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def check_embedder(self, embedder_digest: str) -> None:
        """Refuse queries of an embedder other than the one that made this generation."""
        if embedder_digest != self.manifest.embedder_digest:
            raise UserError(
                f"{self.folder}: built with embedder {self.manifest.embedder_digest}, the queries are of embedder "
                f"{embedder_digest}; choose the stage it was built for, or run `realm-lab index build`"
            )


class ShardedRows:
    """Memory-mapped shards that read like one matrix [N, D]: a slice of rows is a view where it lies in one shard, else
    a copy; chosen rows are a copy."""

    device = torch.device("cpu")

    def __init__(self, parts: Sequence[Tensor]):
        self._parts = list(parts)
        ends = list(itertools.accumulate(len(part) for part in self._parts))
        self._first_S = torch.tensor([0, *ends])  # of each shard, and the end
        self.shape = torch.Size((ends[-1], self._parts[0].shape[1]))
        self.dtype = self._parts[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, Tensor):
            found_RD = torch.empty(len(rows), self.shape[1], dtype=self.dtype)
            shard_R = torch.searchsorted(self._first_S, rows, right=True) - 1
            for number in shard_R.unique().tolist():
                place_R = (shard_R == number).nonzero()[:, 0]
                found_RD[place_R] = self._parts[number][rows[place_R] - self._first_S[number]]
            return found_RD
        start, end, step = rows.indices(len(self))
        if step != 1:
            return self[torch.arange(start, end, step)]
        found = []
        for first, part in zip(self._first_S.tolist(), self._parts, strict=False):
            if start < first + len(part) and first < end:
                found.append(part[max(start - first, 0) : end - first])
        if not found:
            return torch.empty(0, self.shape[1], dtype=self.dtype)
        return found[0] if len(found) == 1 else torch.cat(found)


def generation_name(step: int, embedder_digest: str) -> str:
    """The name that follows from what a generation is."""
    return f"gen-{step:08d}-{embedder_digest[:8]}"


def shard_name(number: int) -> str:
    """The file of a shard."""
    return f"shard-{number:05d}.bin"


def read_generation(folder: Path, corpus_digest: str) -> Generation:
    """Open a generation's folder without reading its shards.

    Raises:
        UserError: not a generation, not whole, of another corpus: with what was found, what was expected, the remedy.
    """
    name = folder.name
    if not NAME.fullmatch(name):
        raise UserError(f"'{name}' is no name of a generation, which is like gen-00001000-0a1b2c3d; see index list")
    if not (folder / "manifest.json").exists():
        there = "there is no such generation" if not folder.exists() else "not whole: it has no manifest.json"
        raise UserError(f"{folder}: {there}; see `realm-lab index list`, or run `realm-lab index build`")
    manifest = _read_manifest(folder / "manifest.json")
    remedy = "delete the folder and run `realm-lab index build`"
    if manifest.name != name:
        raise UserError(f"{folder}: its manifest is that of {manifest.name}; {remedy}")
    if manifest.corpus_digest != corpus_digest:
        raise UserError(
            f"{folder}: the index of corpus {manifest.corpus_digest}, this corpus is {corpus_digest}; {remedy}"
        )
    end = 0
    for shard in manifest.shards:
        if not SHARD_NAME.fullmatch(shard.file) or shard.first != end or shard.rows < 1:
            raise UserError(
                f"{folder}: '{shard.file}' begins at row {shard.first}, the shards before it end at row {end}; {remedy}"
            )
        end += shard.rows
    if end != manifest.rows:
        raise UserError(f"{folder}: its shards hold {end} rows, its manifest says {manifest.rows}; {remedy}")
    for shard in manifest.shards:
        _check_size(folder / shard.file, shard.rows * manifest.row_bytes, remedy)
    if manifest.search is not None and not (folder / Path(manifest.search.file).name).exists():
        raise UserError(f"{folder}: no file {manifest.search.file}; {remedy}")
    return Generation(name, manifest, folder)


def problems(generation: Generation, beat: Callable[[], None] = lambda: None) -> list[str]:
    """What is wrong with the bytes of a generation, a line each: digests, and rows that no embedder makes.

    `beat` is called now and then, so that a lease can be kept meanwhile.
    """
    found = []
    for shard in generation.manifest.shards:
        beat()
        sha256 = digest_file(generation.folder / shard.file)
        if sha256 != shard.sha256:
            found.append(f"{shard.file}: digest {sha256[:12]}, the manifest says {shard.sha256[:12]}")
        part_RD = map_shard(generation.folder / shard.file, shard.rows, generation.manifest)
        for start in range(0, shard.rows, CHECKED_ROWS):
            rows_RD = part_RD[start : start + CHECKED_ROWS]
            for what, bad_R in (("not finite", ~torch.isfinite(rows_RD).all(1)), ("all zero", (rows_RD == 0).all(1))):
                if bad_R.any():
                    row = shard.first + start + int(bad_R.nonzero()[0])
                    found.append(f"{shard.file}: {int(bad_R.sum())} rows are {what}, the first is row {row}")
    search = generation.manifest.search
    if search is not None and digest_file(generation.folder / Path(search.file).name) != search.sha256:
        found.append(f"{search.file}: its digest is not the manifest's {search.sha256[:12]}")
    return found


def write_shard(path: Path, rows_RD: Tensor, first: int, dtype: Dtype) -> str:
    """Write rows atomically in `dtype`; returns the SHA-256 of what the file should hold.

    Raises:
        UserError: a row is not finite or all zero in that dtype, or the disk is full: then nothing of it is left.
    """
    stored_RD = rows_RD.detach().to("cpu", DTYPES[dtype]).contiguous()
    bad_R = ~torch.isfinite(stored_RD).all(1)
    if bad_R.any():
        row = int(bad_R.nonzero()[0])
        largest = rows_RD[row].abs().max().item()
        remedy = "use bfloat16" if torch.isfinite(rows_RD[row]).all() else "training has diverged; lower its rates"
        raise UserError(f"the embedding of passage {first + row} is not finite as {dtype} ({largest:g}); {remedy}")
    zero_R = (stored_RD == 0).all(1)
    if zero_R.any():
        row = first + int(zero_R.nonzero()[0])
        raise UserError(f"the embedding of passage {row} is all zeros: the embedder is damaged; train it again")
    assert sys.byteorder == "little", "shards are little-endian"
    content = stored_RD.view(torch.uint8).numpy().data
    try:
        with atomic_write(path, "wb") as file:
            file.write(content)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        free = free_bytes(path.parent)
        raise UserError(
            f"{path}: the disk is full: {content.nbytes} bytes are needed, {free} are free; "
            "make room and run again, which goes on from here"
        ) from None
    return hashlib.sha256(content).hexdigest()


def free_bytes(folder: Path) -> int:
    """What an ordinary user may still write there."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def map_shard(path: Path, rows: int, manifest: Manifest) -> Tensor:
    """A shard's rows as a private memory map, [R, D]."""
    _check_size(path, rows * manifest.row_bytes, "see `realm-lab index list`, or run `realm-lab index build`")
    dtype = DTYPES[manifest.dtype]
    flat = torch.from_file(str(path), shared=False, size=rows * manifest.dimension, dtype=dtype)
    return flat.view(rows, manifest.dimension)


def _check_size(path: Path, wanted: int, remedy: str) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, {wanted} bytes were written; {remedy}") from None
    if found != wanted:
        raise UserError(f"{path}: {found} bytes, {wanted} were written; {remedy}")


def _read_manifest(path: Path) -> Manifest:
    values = read_json(path)
    version = values.get("format") if isinstance(values, dict) else None
    if version != FORMAT:
        raise UserError(f"{path}: format {version}, this engine reads {FORMAT}; build it again")
    try:
        return MANIFEST.validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"]) or "the whole file"
        raise UserError(f"{path}: {field}: {problem['msg']}; build it again") from None
