"""The models of the tiny system, written into folders."""

from pathlib import Path

import pytest

from realm_lab.engine.models.folders import write_embedder, write_reader
from tests.tiny_system import TinySystem


@pytest.fixture
def reader_folder(system: TinySystem, tmp_path: Path) -> Path:
    write_reader(system.reader, tmp_path / "reader")
    return tmp_path / "reader"


@pytest.fixture
def embedder_folder(system: TinySystem, tmp_path: Path) -> Path:
    write_embedder(system.embedder, tmp_path / "embedder", 1.25)
    return tmp_path / "embedder"
