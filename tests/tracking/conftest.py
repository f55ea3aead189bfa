"""The maker of run folders, as a fixture: test modules do not import each other."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def made() -> ModuleType:
    """tests/tracking/made_runs.py."""
    spec = importlib.util.spec_from_file_location("made_runs", Path(__file__).with_name("made_runs.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
