"""Search backends by name: exact, and FAISS's approximate ones."""

# Shapes: N passages, Q queries, D embedding size

from __future__ import annotations

from torch import Tensor

from realm_lab.errors import UserError
from realm_lab.retrieval import faiss_backends
from realm_lab.retrieval.exact import ExactSearch
from realm_lab.retrieval.faiss_backends import FaissSettings
from realm_lab.retrieval.search import SearchBackend

NAMES = ("exact", *faiss_backends.KINDS)


def make_backend(
    name: str, embeddings_ND: Tensor, settings: FaissSettings | None = None, query_QD: Tensor | None = None
) -> SearchBackend:
    """Build a backend over embeddings; `settings` are of FAISS's.

    An approximate one is measured against exact search at once (`recall_at_8`): on the given queries, or on a sample
    of passages with noise.
    """
    if name not in NAMES:
        raise UserError(f"search backend {name!r} is not one of {', '.join(NAMES)}")
    if name == "exact":
        return ExactSearch(embeddings_ND)
    backend = faiss_backends.build_faiss(name, embeddings_ND, settings)
    if query_QD is None:
        query_QD = faiss_backends.sample_queries(embeddings_ND, backend.settings.seed)
    exact = ExactSearch(embeddings_ND, half=False)  # no second copy for one measurement
    backend.recall_at_8 = faiss_backends.recall(backend, exact, query_QD)
    return backend
