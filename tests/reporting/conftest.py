"""The maker of synthetic run folders, as a fixture: test modules do not import each other."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """tests/reporting/synthetic.py."""
    spec = importlib.util.spec_from_file_location("synthetic_runs", Path(__file__).with_name("synthetic.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
