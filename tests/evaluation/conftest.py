"""The tiny system of tests/tiny_system.py as fixtures."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

_spec = importlib.util.spec_from_file_location("tiny_system", Path(__file__).parents[1] / "tiny_system.py")
assert _spec is not None
assert _spec.loader is not None
_tiny = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_tiny)

system, reference = _tiny.system, _tiny.reference


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """tests/tiny_system.py itself."""
    return _tiny
