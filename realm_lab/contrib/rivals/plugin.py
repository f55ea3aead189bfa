"""Declares the rival systems; named in pyproject.toml as an entry point of the group `realm_lab.plugins`."""

from realm_lab.systems.registry import SYSTEMS

for _name, _class in {
    "bm25_dpr_reader": "Bm25DprReader",
    "closed_book": "ClosedBook",
    "dpr": "Dpr",
    "drqa": "Drqa",
    "embedding": "Embedding",
    "fid": "Fid",
    "graph_retriever": "GraphRetriever",
    "hard_em": "HardEm",
    "path_retriever": "PathRetriever",
    "rag": "Rag",
}.items():
    SYSTEMS.declare(_name, f"realm_lab.contrib.rivals.{_name}:{_class}")
