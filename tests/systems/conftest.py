"""An untrained embedder as a fixture."""

from __future__ import annotations

from types import ModuleType

import pytest

from realm_lab.models.embedder import Embedder
from realm_lab.models.initial import new_embedder


@pytest.fixture
def embedder(tiny: ModuleType) -> Embedder:
    return new_embedder(tiny.params(), 700, 0, None)
