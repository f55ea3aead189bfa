"""The tiny system of tests/tiny_system.py as fixtures; `tiny` is the tiny line here."""

from tests.tiny_system import reference, system
from tests.tiny_system import tiny as tiny_system

__all__ = ["reference", "system", "tiny_system"]
