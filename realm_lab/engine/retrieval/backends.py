"""The search backends of pre-training and their options. No torch, no faiss.

A backend is called with (embeddings [N, D], seed), each time that a vector of the index has changed, and returns an
index with `overfetch` and `propose(query_BD, count)`, rows of passages (approximate.py). A custom backend is named by
`pretrain.search.backend: package.module:Class`, and may have options (records/plugins.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from realm_lab.engine.params.sections import Positive, Section
from realm_lab.records.plugins import Kind

PARAMETER, EXACT = "pretrain.search.backend", "exact"
SEARCH_BACKENDS: Kind[Callable[..., Any]] = Kind("search backend", "Class", "embeddings_ND, seed")
register_search = SEARCH_BACKENDS.register  # makes a backend selectable as `pretrain.search.backend: NAME`

Suits = Positive | None  # None: chosen by the number of passages


class FaissOptions(Section):
    """Options of every index of FAISS."""

    overfetch: Suits = None
    """Passages taken from FAISS per requested one."""


class InvertedLists(FaissOptions):
    """Options of ivf_flat."""

    nlist: Suits = None
    """Lists; empty: 4 sqrt(passages)."""
    nprobe: Suits = None
    """Lists that are searched; empty: a sixteenth of them."""


class Quantised(InvertedLists):
    """Options of ivf_pq."""

    M: Suits = None
    """Parts that a vector is cut into."""
    nbits: Suits = None
    """Bits of a part."""


class Graph(FaissOptions):
    """Options of hnsw."""

    M: Suits = None
    """Neighbours of a passage."""
    efConstruction: Suits = None
    """Passages looked at while the graph is built."""
    efSearch: Suits = None
    """Passages looked at in a search."""


SEARCH_BACKENDS.declare(EXACT, "realm_lab.engine.retrieval.exact:ExactSearch")
for _name, _options in {
    "faiss_flat": FaissOptions,
    "ivf_flat": InvertedLists,
    "ivf_pq": Quantised,
    "hnsw": Graph,
    "sq8": FaissOptions,
}.items():
    SEARCH_BACKENDS.declare(_name, f"realm_lab.engine.retrieval.faiss_backends:{_name}", _options)
