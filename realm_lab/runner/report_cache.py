"""runs/.reports: what was written of a finished study, by the digest of all that it was made of.

Parsing and drawing a thousand runs takes a minute, digesting their files a second. Everything counts that the report
reads, byte by byte, and the code and libraries that write it: nothing here can be stale, and the folder may be deleted
at any time. A study with an unfinished stage is never kept: how it stands depends on processes and clocks too.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from realm_lab.core.files import MARK, atomic_directory, read_json
from realm_lab.errors import UserError
from realm_lab.reporting.document_files import remove_old_figures
from realm_lab.tracking.study_record import read_study_record, study_folder

FOLDER = ".reports"  # under runs/, which no version control sees
KEPT = 24  # studies; the least recently used goes first
LIBRARIES = ("numpy", "pandas", "scipy", "matplotlib", "pillow", "jinja2", "tabulate")
PACKAGE = Path(__file__).resolve().parents[1]


def kept_or_written(root: Path, name: str, write: Callable[[], Path]) -> Path:
    """reports/NAME as it was written from the same inputs before, or as `write` writes it now; returns the folder."""
    key = study_digest(root, name)
    folder = Path(root) / "reports" / name
    if key is None:
        return write()
    kept = Path(root) / "runs" / FOLDER / f"{name}-{key[:32]}"
    if not kept.is_dir():
        before = _marks(folder)
        write()
        written = [file for file, mark in _marks(folder).items() if before.get(file) != mark]
        with atomic_directory(kept) as scratch:
            for file in written:  # and nothing that others put beside the report
                target = scratch / file.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
        _forget(kept.parent)
        return folder
    os.utime(kept)
    _put(kept, folder)
    return folder


def study_digest(root: Path, name: str) -> str | None:
    """Of everything that the report of a study is made of; None for a study that is not finished or not readable."""
    runs = Path(root) / "runs"
    path = study_folder(runs, name) / "study.json"
    found = hashlib.sha256(_code().encode())
    try:
        record = read_study_record(path)
        _add(found, path)
        for run in sorted(run.run for run in record.everything().runs):
            _add(found, runs / run / "run.json")
            for place in read_json(runs / run / "run.json")["stages"].values():
                stage = runs / place
                if read_json(stage / "status.json")["state"] != "COMPLETE":
                    return None
                for file in _records(stage):
                    _add(found, file)
    except (UserError, OSError, KeyError, TypeError, AttributeError):
        return None  # the report says what is wrong
    return found.hexdigest()


def _records(stage: Path) -> list[Path]:
    """What a stage wrote down, without its weights and who held it."""
    files = [path for path in stage.iterdir() if path.is_file() and path.name != "lease"]
    return sorted(files + [path for path in (stage / "eval").rglob("*") if path.is_file()])


def _marks(folder: Path) -> dict[Path, tuple[int, int]]:
    """What changes of every file when it is written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def _add(found: Any, path: Path) -> None:
    """A file's name, length and bytes."""
    data = path.read_bytes()
    found.update(f"{path.parent.name}/{path.name} {len(data)}\n".encode())
    found.update(data)


def _code() -> str:
    """Of the package's files, and the versions that decide how numbers, drawings and pages are written."""
    found = hashlib.sha256()
    for path in sorted(path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        _add(found, path)
    versions = [f"{name} {_version(name)}" for name in LIBRARIES]
    return f"{found.hexdigest()} {sys.version} {versions}"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _put(kept: Path, folder: Path) -> None:
    """Make `folder` what is kept. What is the same stays untouched; drawings that belong to no report any more go."""
    remove_old_figures(folder, {path.stem for path in (kept / "figures").glob("*")})
    for source in sorted(path for path in kept.rglob("*") if path.is_file() and path.name != MARK):
        target = folder / source.relative_to(kept)
        data = source.read_bytes()
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = target.with_name(f".{target.name}.{os.getpid()}")
            scratch.write_bytes(data)
            os.replace(scratch, target)


def _forget(folder: Path) -> None:
    old = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for path in old[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)
