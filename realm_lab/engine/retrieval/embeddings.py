"""The store of document embeddings: each matrix is computed once, and then read by every process that needs it.

<store>/<key[:12]>/identity.json     the embedded corpus and the weights; written first
                   embeddings.bin    the matrix [N, D], little-endian, row after row
                   shard-00000.lock  held by the process that embeds this shard; not empty once it is finished
                   digests.json      of the files; the matrix is checked whenever it is opened, by blocks if it is large
                   manifest.json     written last, when all shards are finished: with it the matrix is published

Any number of processes (ranks, a job array) may ask for one matrix at the same time. Each embeds shards that no other
works on, and all return when the matrix is published. After a kill, finished shards are kept.
"""

# Shapes: N passages, R rows, D embedding size

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.shards import REMEDY, in_shards, publish, write_once
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.models.embedder import PARTS, Embedder
from realm_lab.engine.retrieval import index
from realm_lab.errors import UserError
from realm_lab.records.code_record import code_reader
from realm_lab.records.digests import check_file
from realm_lab.records.files import DiskFull, digest, is_disk_full, read_json
from realm_lab.records.run import KEY_LENGTH

FORMAT = 1
SHARD_ROWS = 8 * index.EMBED_CHUNK_ROWS  # whole chunks, so that vectors have the same bits as from embed_passages
DTYPES = {"float32": torch.float32, "float16": torch.float16}  # of stored matrices; stages use float32
IN_MEMORY_BYTES = 1 << 30  # a search on the CPU holds a matrix up to this size, and its reduced copy, in memory


@dataclass(frozen=True)
class Identity:
    """Inputs that determine a matrix. Settings that change only the rounding (the token budget, the device) are left
    out, as in the key of a run."""

    corpus_digest: str
    tower_digest: str  # digest of the document tower, see the function tower_digest
    passage_length: int  # wordpieces that a passage is cut to
    precision: str  # of the tower's matrix products: float32 or bfloat16
    dtype: str  # of the stored numbers: float32 or float16
    rows: int
    dimension: int
    code: str = ""  # digest of the code that embeds
    format: int = FORMAT

    @property
    def key(self) -> str:
        """SHA-256 of all fields."""
        return digest(asdict(self))

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
        return self.dimension * DTYPES[self.dtype].itemsize


class Embeddings:
    """A published matrix [N, D], float32 when it is read. A slice of rows is read from the file, so that a search
    that goes through the matrix piece by piece needs only the memory of a piece; single rows come through the memory
    map."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, folder: Path, identity: Identity):
        self.folder, self.identity, self.key = folder, identity, identity.key
        self.shape = torch.Size((identity.rows, identity.dimension))
        self._path = folder / "embeddings.bin"

    @cached_property
    def matrix(self) -> Tensor:
        """Return the memory map, [N, D] of the stored type; writing to it changes no file."""
        rows, size = self.shape
        stored = DTYPES[self.identity.dtype]
        return torch.from_file(str(self._path), shared=False, size=rows * size, dtype=stored).view(rows, size)

    def as_tensor(self, device: torch.device | str = "cpu") -> Tensor:
        """Return float32 [N, D] on a device; on the CPU the memory map itself, if it is stored as float32."""
        return self.matrix.to(device, torch.float32)

    def for_search(self, device: torch.device | str = "cpu") -> Tensor | Embeddings:
        """Return the form that a search on a device takes: a tensor, or this object for a large matrix on the CPU."""
        in_place = torch.device(device).type == "cpu" and self.matrix.nbytes > IN_MEMORY_BYTES
        return self if in_place else self.as_tensor(device)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, Tensor):
            return self.matrix[rows.cpu()].to(rows.device, torch.float32)
        first, end, step = rows.indices(len(self))
        assert step == 1, "slices are read in one piece"
        size, offset = self.shape[1], first * self.identity.row_bytes
        values = np.fromfile(self._path, self.identity.dtype, max(0, end - first) * size, offset=offset)
        return torch.from_numpy(values).view(-1, size).float()


class EmbeddingStore:
    """Embeddings by key in a folder, which need not exist yet."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def published(self) -> list[Embeddings]:
        """Return all published matrices in the order of their keys. UserError: one is damaged."""
        return [_open(path.parent) for path in sorted(self.folder.glob("*/manifest.json"))]

    def find(self, identity: Identity, accepts_other_code: bool = False) -> Embeddings | None:
        """Return the published matrix, or None. `accepts_other_code`: also take one made by other code. UserError: it
        is damaged, or its folder holds another matrix."""
        folder = self._folder(identity)
        if (folder / "manifest.json").exists():
            _check(folder, identity)
            return _open(folder)
        others = sorted(self.folder.glob("*/manifest.json")) if accepts_other_code else []
        same = (one.parent for one in others if replace(read_identity(one.parent), code=identity.code) == identity)
        return next(map(_open, same), None)

    def embeddings(
        self,
        embedder: Embedder,
        passages: Passages,
        inputs: index.Inputs,
        corpus_digest: str,
        *,
        reuse_from: tuple[Embeddings, Passages] | None = None,
        accepts_other_code: bool = False,
    ) -> Embeddings:
        """Return Embed_doc of every passage, from the store or embedded now and published.

        `corpus_digest` must be different for every list of passages. `reuse_from`: another corpus and its embeddings by
        the same tower. The vectors of passages in both corpora are copied, and only other passages are embedded (a
        vector depends on its batch, by about 1e-7).
        """
        tower, size = tower_digest(embedder), embedder.document_projection.out_features
        described = (inputs.passage_length, inputs.precision, "float32", len(passages), size)
        identity = Identity(corpus_digest, tower, *described, code=embedding_code(self.folder.parent))
        if (found := self.find(identity, accepts_other_code)) is not None:
            return found
        known_N = np.full(len(passages), -1) if reuse_from is None else equal_rows(passages, reuse_from[1])

        def embed(rows_R: np.ndarray) -> Tensor:
            new_R = known_N[rows_R] < 0
            new_RD = index.embed_passages(embedder, passages, rows_R[new_R], inputs, shared=False).cpu()
            if reuse_from is None:
                return new_RD
            rows_RD = torch.empty(len(rows_R), identity.dimension)
            rows_RD[torch.from_numpy(new_R)] = new_RD
            rows_RD[torch.from_numpy(~new_R)] = reuse_from[0][torch.from_numpy(known_N[rows_R[~new_R]])].float()
            return rows_RD

        return self.build(identity, embed)

    def build(
        self,
        identity: Identity,
        embed: Callable[[np.ndarray], Tensor],
        shard_rows: int = SHARD_ROWS,
    ) -> Embeddings:
        """Compute a matrix shard by shard and publish it. `embed` returns the vectors of rows [R], float32 [R, D].
        UserError: a vector is not finite, the disk is full, or the folder holds another matrix."""
        folder = self._folder(identity)
        write_once(folder / "identity.json", asdict(identity))
        _check(folder, identity)
        firsts = range(0, identity.rows, shard_rows)

        def write(number: int) -> None:
            rows_R = np.arange(firsts[number], min(firsts[number] + shard_rows, identity.rows))
            _write(folder / "embeddings.bin", _as_stored(embed(rows_R), identity, firsts[number]), firsts[number])
            if len(firsts) > 1:
                print(f"embedded {rows_R[-1] + 1:,} of {identity.rows:,} passages", file=sys.stderr)

        in_shards(folder, len(firsts), write)
        publish(folder, identity.key, ["embeddings.bin"])
        return _open(folder)

    def _folder(self, identity: Identity) -> Path:
        return self.folder / identity.key[:KEY_LENGTH]


def _check(folder: Path, identity: Identity) -> None:
    if read_identity(folder) != identity:
        raise UserError("embeddings of something else than asked for", REMEDY, path=folder)


def _open(folder: Path) -> Embeddings:
    identity, path = read_identity(folder), folder / "embeddings.bin"
    size, found = identity.rows * identity.row_bytes, path.stat().st_size if path.exists() else 0
    if found != size:
        raise UserError(f"{found} bytes, {size} were written", REMEDY, path=path)
    check_file(path)
    return Embeddings(folder, identity)


def embedding_code(runs: Path, encoder: str = __name__) -> str:
    """Return the digest of the code that embeds passages, with the module of an encoder."""
    return digest(code_reader(runs).reached([__name__, encoder]))


def tower_digest(embedder: Embedder) -> str:
    """Return SHA-256 over the document tower: the parameters as float32, and settings that their shapes do not show.
    The device, the precision and sharing between towers are left out."""
    shape = embedder.document_encoder.shape
    described: tuple[object, ...] = (shape.heads, shape.activation, shape.layer_norm_epsilon)
    described += ("mean",) if embedder.head.pooling == "mean" else ()
    described += (shape.config,) if shape.config else ()
    described += ("cosine",) if embedder.head.score_scale == "cosine" else ()
    found = hashlib.sha256(repr(described).encode())
    for part in PARTS:
        module = getattr(embedder, f"document_{part}")
        for name, value in sorted(module.state_dict().items()) if module is not None else ():
            found.update(f"{part}.{name} {tuple(value.shape)}".encode())
            found.update(value.detach().to("cpu", torch.float32).contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def equal_rows(passages: Passages, previous: Passages) -> np.ndarray:
    """Return, per passage, the row of `previous` with the same wordpieces in title and body, or -1; int64 [N]."""
    old_N2, new_N2 = _fingerprints(previous), _fingerprints(passages)
    order_N = np.argsort(old_N2)
    place_N = np.searchsorted(old_N2, new_N2, sorter=order_N).clip(max=len(order_N) - 1)
    row_N = order_N[place_N]
    return np.where(old_N2[row_N] == new_N2, row_N, -1)


def _fingerprints(passages: Passages) -> np.ndarray:
    """Return 16 bytes per passage, a hash of its wordpieces."""
    texts = ((passages.titles[row], passages.bodies[row]) for row in range(len(passages)))
    contents = (len(title).to_bytes(4, "little") + title.tobytes() + body.tobytes() for title, body in texts)
    return np.fromiter((hashlib.blake2b(content, digest_size=16).digest() for content in contents), "S16")


def read_identity(folder: Path) -> Identity:
    """Read the identity in a folder of the store. UserError: the folder has none of this format."""
    path = folder / "identity.json"
    try:
        identity = Identity(**read_json(path))
    except TypeError:
        identity = None
    if identity is None or identity.format != FORMAT:
        raise UserError(f"not embeddings of format {FORMAT}", REMEDY, path=path)
    return identity


def _as_stored(rows_RD: Tensor, identity: Identity, first: int) -> Tensor:
    """Convert rows to their stored type. UserError: a number is not finite."""
    stored_RD = rows_RD.detach().to("cpu", DTYPES[identity.dtype]).contiguous()
    bad_R = ~torch.isfinite(stored_RD).all(1)
    if bad_R.any():
        row = first + int(bad_R.nonzero()[0])
        raise UserError(f"the embedding of passage {row} is not finite: training diverged; lower the learning rates")
    return stored_RD


def _write(path: Path, rows_RD: Tensor, first: int) -> None:
    """Write rows into the matrix; they are on the disk when this returns."""
    assert sys.byteorder == "little", "the store is little-endian"
    try:
        path.touch()
        with open(path, "r+b") as file:
            file.seek(first * rows_RD[0].nbytes)
            file.write(rows_RD.view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if is_disk_full(error):
            raise DiskFull(path) from None
        raise UserError(error.strerror, "make it writable, and run again, which goes on from here", path=path) from None
