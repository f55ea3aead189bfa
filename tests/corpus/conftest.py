"""The tiny line as a fixture: test modules do not import each other."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """tests/tiny.py."""
    spec = importlib.util.spec_from_file_location("tiny_line", Path(__file__).parents[1] / "tiny.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
