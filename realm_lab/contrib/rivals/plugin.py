"""Declares the rival systems; named in pyproject.toml as an entry point of the group `realm_lab.plugins`."""

from realm_lab.engine.systems.registry import SYSTEMS

for _name, _class in {
    "bm25_dpr_reader": "dpr:Bm25DprReader",
    "bm25_reader": "bm25_reader:Bm25Reader",
    "closed_book": "closed_book:ClosedBook",
    "dpr": "dpr:Dpr",
    "drqa": "drqa:Drqa",
    "embedding": "embedding:Embedding",
    "fid": "fid:Fid",
    "graph_retriever": "graph_retriever:GraphRetriever",
    "hard_em": "hard_em:HardEm",
    "path_retriever": "path_retriever:PathRetriever",
    "rag": "rag:Rag",
}.items():
    SYSTEMS.declare(_name, f"realm_lab.contrib.rivals.{_class}")
