"""The tiny line and the tiny system as fixtures: test modules do not import each other."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_line", Path(__file__).parents[1] / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_tiny_system = _load("tiny_system")
system, reference = _tiny_system.system, _tiny_system.reference


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """tests/tiny.py."""
    return _load("tiny")


@pytest.fixture(scope="session")
def tiny_system() -> ModuleType:
    """tests/tiny_system.py itself."""
    return _tiny_system
