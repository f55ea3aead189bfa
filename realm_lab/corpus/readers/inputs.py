"""Names of inputs into files: a file, or a folder of WikiExtractor (AA/wiki_00, AB/wiki_17.bz2, ...), of Parquet, or of
pictures.

The Hub's data sets are such folders (train-00000-of-00041.parquet); `hf download --repo-type dataset` fetches one.
"""

from __future__ import annotations

import re
from pathlib import Path

from realm_lab.core.files import digest, digest_file
from realm_lab.errors import UserError

PICTURES = (".png", ".jpg", ".jpeg")
_SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})\.parquet$")


def files_of(name: Path | str) -> list[Path]:
    """The files that an input names, in their order; of Parquet with several splits those of `train`."""
    folder = Path(name)
    if not folder.is_dir():
        return [folder]
    extracted = sorted(found for found in folder.rglob("wiki_*") if found.is_file())
    tables = sorted(folder.rglob("*.parquet")) if not extracted else []
    files = extracted or tables or sorted(filter(is_picture, folder.rglob("*")))
    if not files:
        raise UserError(f"{name}: is a folder without wiki_*, Parquet or image files; name the files in it")
    if folders := sorted({file.parent.name for file in tables})[1:]:
        raise UserError(f"{name}: holds several data sets; name one of its folders, such as {folders[0]}")
    files = [file for file in files if file.name.startswith("train")] or files
    shards = [match for file in files if (match := _SHARD.match(file.name))]
    if shards and len(shards) < sum({match[1]: int(match[2]) for match in shards}.values()):
        raise UserError(f"{name}: only {len(shards)} shards of {int(shards[0][2])} are there; fetch the rest")
    return files


def is_picture(path: Path) -> bool:
    """Whether a file is an image, by its name."""
    return path.suffix.lower() in PICTURES


def digest_input(name: Path | str) -> str:
    """SHA-256 of what an input names: of its bytes, wherever they are."""
    digests = [digest_file(path) for path in files_of(name)]
    return digests[0] if len(digests) == 1 else digest(digests)
