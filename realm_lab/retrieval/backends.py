"""Search backends by name: exact, and FAISS's approximate ones."""

# Shapes: N passages, Q queries, D embedding size

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from realm_lab.errors import UserError
from realm_lab.params.sections import Search
from realm_lab.retrieval import faiss_backends
from realm_lab.retrieval.building import Building
from realm_lab.retrieval.exact import ExactSearch
from realm_lab.retrieval.faiss_backends import FaissSearch, FaissSettings, load_faiss
from realm_lab.retrieval.search import Matrix, SearchBackend
from realm_lab.retrieval.shards import NO_SPACE, Generation, SearchFile

NAMES = ("exact", *faiss_backends.KINDS)
SEARCH_FILE = "search.faiss"


def make_backend(
    name: str, embeddings_ND: Matrix, settings: FaissSettings | None = None, query_QD: Tensor | None = None
) -> SearchBackend:
    """Build a backend over embeddings; `settings` are of FAISS's.

    An approximate one is measured against exact search at once (`recall_at_8`): on the given queries, or on a sample
    of passages with noise.
    """
    if name not in NAMES:
        raise UserError(f"search backend {name!r} is not one of {', '.join(NAMES)}")
    return ExactSearch(embeddings_ND) if name == "exact" else measured_faiss(name, embeddings_ND, settings, query_QD)


def measured_faiss(
    kind: str,
    embeddings_ND: Matrix,
    settings: FaissSettings | None = None,
    query_QD: Tensor | None = None,
    exact: ExactSearch | None = None,
    beat: Callable[[], None] = lambda: None,
) -> FaissSearch:
    """Build one of FAISS's backends, measured beside `exact`, a search of the same embeddings (by default its own)."""
    backend = faiss_backends.build_faiss(kind, embeddings_ND, settings, beat)
    if query_QD is None:
        query_QD = faiss_backends.sample_queries(embeddings_ND, backend.settings.seed)
    if exact is None:
        exact = ExactSearch(embeddings_ND, half=False)  # no second copy for one measurement
    backend.recall_at_8 = faiss_backends.recall(backend, exact, query_QD)
    return backend


def write_search(kind: str, settings: FaissSettings, building: Building) -> SearchFile:
    """Build one of FAISS's indexes over the shards of a generation to come, measure it, and write it beside them."""
    backend = measured_faiss(kind, building.matrix(), settings, beat=building.beat)
    building.beat()
    path = building.folder / SEARCH_FILE
    try:
        sha256 = backend.save(path)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise UserError(f"{path}: the disk is full; make room and run again, which goes on from here") from None
    return SearchFile(file=SEARCH_FILE, sha256=sha256, **backend.record())


def read_search(generation: Generation) -> FaissSearch:
    """The approximate index of a generation; the embeddings behind it stay on disk."""
    search = generation.manifest.search
    if search is None:
        raise UserError(f"{generation.folder}: no approximate index; build one with `realm-lab index build --backend`")
    record = {"backend": search.backend, "settings": search.settings, "recall_at_8": search.recall_at_8}
    return load_faiss(generation.folder / Path(search.file).name, search.sha256, record, generation.matrix())


def faiss_settings(search: Search, seed: int) -> FaissSettings:
    """The settings that the parameters name."""
    return FaissSettings(
        lists=search.lists,
        probes=search.probes,
        parts=search.parts,
        bits=search.bits,
        links=search.links,
        neighbours=search.neighbours,
        overfetch=search.overfetch,
        rescore=search.rescore,
        seed=seed,
    )
