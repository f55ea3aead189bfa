"""Fetch models and data sets of the Hugging Face Hub by name into the Hub's cache (HF_HOME)."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError

DATASET = "hf-dataset:/"
_NAME = re.compile(r"hf-dataset:/{1,2}([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*?))?/?")
DATA_FILES = ("*.parquet", "*.json*", "*.tsv*", "*.csv*", "*.txt*", "*.nt*")  # compressed too; no script, no pickle


def is_dataset(name: Path | str) -> bool:
    """True for a name hf-dataset://ORG/NAME[@REVISION][/PATH]; only its start is checked."""
    return str(name).startswith(DATASET)


@functools.cache
def dataset(name: Path | str) -> Path:
    """Fetch hf-dataset://ORG/NAME[@REVISION][/PATH] and return the local file or folder. UserError: not found."""
    found = _NAME.fullmatch(str(name))
    if not found:
        raise UserError("no such name", "expected hf-dataset://ORG/NAME, @REVISION and /PATH are optional", path=name)
    repository, revision, inside = found[1], found[2], found[3] or ""
    patterns = (inside, f"{inside}/*") if inside else DATA_FILES
    tree = f"https://huggingface.co/datasets/{repository}/tree/{revision or 'main'} lists what there is"

    def needed(folder: Path) -> list[Path]:
        """The files asked for, and the list of all files, which snapshot_download compares with the folder."""
        return [folder / inside, folder.parents[1] / "trees" / f"{folder.name}.json"]

    path = fetched(str(name), repository, revision, patterns, tree, "dataset", needed) / inside
    if not path.exists():
        raise UserError(f"the data set has no file or folder '{inside}'", tree, path=name)
    return path


def fetched(
    name: str,
    repository: str,
    revision: str | None,
    patterns: Sequence[str],
    remedy: str,
    kind: str,
    needed: Callable[[Path], Sequence[Path]],
) -> Path:
    """Return the folder of a repository in the cache. The network is used only if this folder is incomplete, or lacks a
    path that it `needed`: another program may have fetched a part of it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    given: dict[str, Any] = {"revision": revision, "allow_patterns": list(patterns), "repo_type": kind}
    try:
        folder = Path(snapshot_download(repository, local_files_only=True, **given))
        first, *others = needed(folder)
        if first.exists():
            if all(path.exists() for path in others):
                return folder
            given["revision"] = folder.name  # the rest of the same commit
    except LocalEntryNotFoundError:  # the cache has nothing, or not everything
        pass
    except ValueError as error:
        raise UserError(error, path=name) from None
    print(f"fetching {name} from the Hub", file=sys.stderr)
    try:
        return Path(snapshot_download(repository, **given))
    except Exception as error:  # also errors of the HTTP library
        raise UserError(f"cannot be fetched ({error})", remedy, path=name) from None
