"""Declares the search backends of FAISS and their options; an entry point of `realm_lab.plugins` in pyproject.toml."""

from __future__ import annotations

from realm_lab.engine.params.sections import Positive, Section
from realm_lab.engine.retrieval.backends import SEARCH_BACKENDS

Suits = Positive | None  # None: the default of index.with_defaults


class FaissOptions(Section):
    """Options of every index of FAISS."""

    overfetch: Suits = None
    """Passages taken from FAISS per requested one."""


class InvertedLists(FaissOptions):
    """Options of ivf_flat."""

    nlist: Suits = None
    """Lists; empty: 4 sqrt(passages), at most passages / 39."""
    nprobe: Suits = None
    """Lists that are searched; empty: a sixteenth of them, at least 8."""


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


for _name, _options in {
    "faiss_flat": FaissOptions,
    "ivf_flat": InvertedLists,
    "ivf_pq": Quantised,
    "hnsw": Graph,
    "sq8": FaissOptions,
}.items():
    SEARCH_BACKENDS.declare(_name, f"realm_lab.contrib.faiss.index:{_name}", _options)
