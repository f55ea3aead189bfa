"""Files that custom code opens to read, noted by an audit hook of Python.

A mask that reads a list of words depends on that list, though no parameter names it. The stage that used the mask
records the file with its digest (records/code_record.py), as it does the code.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
import sysconfig
from collections.abc import Collection
from importlib.util import source_from_cache
from pathlib import Path
from types import FrameType
from typing import Any

from realm_lab.records.code import INSTALLED, PACKAGE

LIBRARIES = tuple(
    f"{os.path.realpath(path)}{os.sep}"
    for path in (str(PACKAGE), sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), "/proc", "/sys", "/dev")
)
# file -> its time and size when it was first opened (None: it did not exist), and the custom modules that opened it,
# directly or through a library
_read: dict[str, tuple[tuple[int, int] | None, set[str]]] = {}
_written: set[str] = set()


@functools.cache
def watch() -> None:
    """Note the files that this process opens from now on."""
    sys.addaudithook(_note)


def opened_by(modules: Collection[str]) -> dict[Path, bool]:
    """Return the files that these modules, or functions that they called, opened to read: file -> true if it has not
    changed since. Files of libraries, files that custom code also wrote and missing files are left out."""
    by_them = {path: one for path, one in _read.items() if path not in _written and not one[1].isdisjoint(modules)}
    now = {path: _version(path) for path in sorted(by_them)}
    return {Path(path): by_them[path][0] == version for path, version in now.items() if version}


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or isinstance(arguments[0], int):
        return
    path, mode, flags = arguments
    running = _running()
    if not running:
        return
    name = os.path.abspath(os.fsdecode(path))
    if any(one in mode for one in "wax+") if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR):
        _written.add(name)
    elif not name.startswith(LIBRARIES):
        source = _source(name)
        if source not in _read:
            _read[source] = _version(source), set()
        _read[source][1].update(running)


def _version(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return None if stat.S_ISDIR(found.st_mode) else (found.st_mtime_ns, found.st_size)


def _running() -> set[str]:
    """Return the names of the custom modules whose functions are running."""
    found: set[str] = set()
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if _is_custom(frame.f_code.co_filename):
            found.add(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    return found


@functools.cache
def _is_custom(file: str) -> bool:
    """True for code that is neither installed nor of Python or realm_lab."""
    path = os.path.realpath(file)
    return not file.startswith("<") and not path.startswith(LIBRARIES) and not INSTALLED & set(Path(path).parts)


def _source(name: str) -> str:
    """Return the source file of a .pyc file; another path unchanged."""
    try:
        return source_from_cache(name) if name.endswith(".pyc") else name
    except ValueError:
        return name
