"""A folder of runs."""

from pathlib import Path

import pytest


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder runs/ that need not exist."""
    return tmp_path / "runs"
