"""The tiny system of tests/tiny_system.py, and a store of generations, as fixtures."""

from tests.retrieval.generations import store
from tests.tiny_system import reference, system, tiny

__all__ = ["reference", "store", "system", "tiny"]
