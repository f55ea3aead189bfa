"""The tiny system of tests/tiny_system.py as fixtures."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tiny_system import Reference, TinySystem


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """tests/tiny_system.py."""
    spec = importlib.util.spec_from_file_location("tiny_system", Path(__file__).parents[1] / "tiny_system.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def system(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> TinySystem:
    """An untrained system; tests leave it as it is."""
    return tiny.build_system(tiny.prepare_corpus(tmp_path_factory.mktemp("tiny") / "corpus"))


@pytest.fixture(scope="session")
def reference(tiny: ModuleType, system: TinySystem, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The same weights in transformers."""
    return tiny.Reference(system, tmp_path_factory.mktemp("reference"))
