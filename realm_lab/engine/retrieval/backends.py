"""The search backends of pre-training by name. This file imports no torch.

A backend is called with (embeddings [N, D], seed) whenever the vectors of the index change. It returns an object with
`overfetch` and `propose(query_BD, count)` (approximate.Index). A custom backend is named by
`pretrain.search.backend: package.module:Class`, and may have options (records/plugins.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from realm_lab.records.plugins import Kind

PARAMETER, EXACT = "pretrain.search.backend", "exact"
SEARCH_BACKENDS: Kind[Callable[..., Any]] = Kind("search backend", "Class", "embeddings_ND, seed")
register_search = SEARCH_BACKENDS.register  # makes a backend selectable as `pretrain.search.backend: NAME`
SEARCH_BACKENDS.declare(EXACT, "realm_lab.engine.retrieval.exact:ExactSearch")
