"""The code of a submission: a copy of this package that jobs use, so that edits reach no job that waits."""

from __future__ import annotations

import shutil
from pathlib import Path

import realm_lab
from realm_lab.core.files import atomic_directory, digest, digest_file
from realm_lab.errors import UserError
from realm_lab.tracking.run_dir import KEY_LENGTH

PACKAGE = Path(realm_lab.__file__).resolve().parent
LEFT_OUT = ("__pycache__", "*.pyc", ".*")


def freeze_code(folder: Path) -> Path:
    """Copy the package to `folder`/<digest>/realm_lab unless it is there; returns the folder to put on PYTHONPATH."""
    files = [path for path in sorted(PACKAGE.rglob("*")) if path.is_file() and _belongs(path.relative_to(PACKAGE))]
    name = digest({path.relative_to(PACKAGE).as_posix(): digest_file(path) for path in files})[:KEY_LENGTH]
    target = folder.absolute() / name
    if not target.exists():
        with atomic_directory(target) as scratch:
            shutil.copytree(PACKAGE, scratch / PACKAGE.name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    return target


def assert_frozen(code: str) -> None:
    """A UserError unless this process runs the package in folder `code`."""
    if PACKAGE.parent != Path(code).resolve():
        raise UserError(
            f"this job runs the code in {PACKAGE.parent}, not what was submitted ({code}); a line of "
            "launcher.slurm.setup changes PYTHONPATH, or the disk is not shared: mend that and submit again"
        )


def _belongs(path: Path) -> bool:
    return path.suffix != ".pyc" and not any(part == "__pycache__" or part.startswith(".") for part in path.parts)
