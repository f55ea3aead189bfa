"""Paths of programs of the system."""

import os
import shutil
from collections.abc import Iterable

# Daemons are in folders that users rarely have on their path.
SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin"])


def find_program(name: str) -> str | None:
    """The path of a program; None if it is not here."""
    return shutil.which(name, path=SYSTEM_PATH)


def missing(names: Iterable[str]) -> list[str]:
    """Return those that are missing here."""
    return [name for name in names if not find_program(name)]
