"""The index of the tiny system as fixtures."""

from tests.engine.retrieval.tiny_index import queries, retriever, scores_BN

__all__ = ["queries", "retriever", "scores_BN"]
