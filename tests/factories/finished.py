"""Folders of finished stages that tests write by hand."""

from pathlib import Path
from typing import Any

from realm_lab.records.digests import write_digests
from realm_lab.records.files import read_json, write_json


def finished(folder: Path, results: Any = None) -> Path:
    """Write results.json, unless `results` is None, and the digests of all files as `finish` does."""
    if results is not None:
        write_json(folder / "results.json", results)
    write_digests(folder)
    return folder


def edit_finished(path: Path, **values: Any) -> None:
    """Change fields of a JSON file of a finished stage, as if they had been measured so."""
    write_json(path, read_json(path) | values)
    finished(path.parent)
