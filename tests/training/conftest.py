"""The tiny system of tests/tiny_system.py as fixtures."""

from tests.tiny_system import reference, system

__all__ = ["reference", "system"]
