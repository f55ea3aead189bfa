"""The tiny system of tests/tiny_system.py and its index as fixtures."""

from tests.retrieval.tiny_index import queries, retriever, scores_BN
from tests.tiny_system import reference, system

__all__ = ["queries", "reference", "retriever", "scores_BN", "system"]
