"""Find the files of an input: a file, a data set of the Hub (hf-dataset://ORG/NAME/...), or a folder of WikiExtractor
(AA/wiki_00, AB/wiki_17.bz2, ...), Parquet, TFRecord, pictures or BEIR (corpus.jsonl, queries.jsonl, qrels/test.tsv).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from realm_lab.engine.core.hub import dataset, is_dataset
from realm_lab.engine.corpus.records import Split
from realm_lab.engine.corpus.text_files import TFRECORD, plain_name
from realm_lab.errors import UserError
from realm_lab.records.files import digest, digest_file

CORPUS, QRELS = "corpus.jsonl", "qrels"  # of a BEIR folder
PICTURES = (".png", ".jpg", ".jpeg")
SPLIT_NAMES: dict[Split, tuple[str, ...]] = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}
_SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})(?:-[0-9a-f]+)?(\.parquet|\.gz)?$")


class InputFile(NamedTuple):
    """A file of an input. Ids made for records without an id start with `name`."""

    path: Path
    name: str  # unique among the inputs of a parameter
    given: str  # the input that it belongs to

    @property
    def is_renamed(self) -> bool:
        """True if `name` is longer than the file's name, because another input file has the same file name."""
        return self.name != _name(self.path, 0)


def input_files(*inputs: Path | str, split: Split | None = None) -> list[InputFile]:
    """The files of all inputs of a parameter, in their order; `split` as in `files_of`.

    A file is named without its folder; files that would share a name get the shortest ends of their paths that differ,
    such as `2020/part-0.jsonl` and `2021/part-0.jsonl`.
    """
    given = [(path, str(name)) for name in inputs for path in files_of(name, split)]
    sharing: dict[str, dict[str, Path]] = {}
    for path, _ in given:
        sharing.setdefault(_name(path, 0), {}).setdefault(os.path.abspath(path), path)
    names = {file: name for files in sharing.values() for file, name in _distinct(files).items()}
    return [InputFile(path, names[os.path.abspath(path)], name) for path, name in given]


def _distinct(files: dict[str, Path]) -> dict[str, str]:
    """Return the shortest names that distinguish files, by their absolute paths."""
    names: dict[str, str] = {}
    length = 0
    while len(set(names.values())) < len(files):
        names = {file: _name(path, length) for file, path in files.items()}
        length += 1
    return names


def _name(path: Path, length: int) -> str:
    """Return a name of a file with `length` // 2 of its folders. If `length` is odd, the name keeps capital letters and
    the suffix of the compression. A picture's name always keeps them, and has one folder more."""
    folders = length // 2 + is_picture(path)
    is_plain = length % 2 == 0 and not is_picture(path)
    above = path.parts[:-1][-folders:] if folders else ()
    return Path(*above, plain_name(path) if is_plain else path.name).as_posix()


def files_of(name: Path | str, split: Split | None = None) -> list[Path]:
    """Return the files that an input names, in order. If the Parquet or TFRecord files of a folder have splits, return
    those of `split`, or of `train`. A BEIR folder gives its documents, or with `split` the judgements of this split."""
    folder = dataset(name) if is_dataset(name) else Path(name)
    if not folder.is_dir():
        return [folder]
    if (folder / QRELS).is_dir():
        return [_beir(folder, f"{QRELS}/{split}.tsv" if split else CORPUS)]
    extracted = sorted(
        found
        for found in folder.rglob("wiki_*")
        if found.is_file() and not is_picture(found) and found.suffix != ".parquet"
    )
    tables = sorted(folder.rglob("*.parquet")) or sorted(folder.rglob(f"*{TFRECORD}*")) if not extracted else []
    files = extracted or tables or sorted(filter(is_picture, folder.rglob("*")))
    if not files:
        raise UserError("is a folder without wiki_*, Parquet or image files", "name the files in it", path=name)
    if folders := sorted({file.parent.name for file in tables})[1:]:
        raise UserError("holds several data sets", f"name one of its folders, such as {folders[0]}", path=name)
    splits = {one: [file for file in tables if file.name.startswith(names)] for one, names in SPLIT_NAMES.items()}
    if split and not splits[split] and any(own and own != tables for own in splits.values()):
        has = ", ".join(one for one, own in splits.items() if own)
        raise UserError(f"has no split '{split}' (it has {has})", "name a file", path=name)
    files = splits[split or "train"] or files
    shards = [match for file in files if (match := _SHARD.match(file.name))]
    if shards and len(shards) < sum({match[1]: int(match[2]) for match in shards}.values()):
        raise UserError(f"only {len(shards)} shards of {int(shards[0][2])} are there", "fetch the rest", path=name)
    return files


def _beir(folder: Path, name: str) -> Path:
    """A file of a BEIR folder, which may be compressed."""
    found = [folder / f"{name}{suffix}" for suffix in ("", ".gz") if (folder / f"{name}{suffix}").exists()]
    if not found:
        has = ", ".join(sorted(path.name for path in (folder / QRELS).iterdir()))
        raise UserError(
            f"no such file in this BEIR folder (qrels has {has})", "name the files in it", path=folder / name
        )
    return found[0]


def find_queries(qrels: Path) -> tuple[Path | None, Path]:
    """Return the file with the texts of judged queries, if there is one, and its expected path. The file is
    queries.jsonl in the folder above or in the same folder (BEIR), a table with `queries` in its name instead of
    `qrels` (MS MARCO), or the only file in the folder with `queries` in its name (NIST)."""
    named = qrels.with_name(re.sub("qrels", "queries", qrels.name, flags=re.IGNORECASE))
    tables = [named.with_name(named.name.removesuffix(".gz")), named.with_name(f"{named.name}.gz")]
    lists = [
        folder / f"queries.jsonl{suffix}" for folder in (qrels.parent.parent, qrels.parent) for suffix in ("", ".gz")
    ]
    candidates = lists if named == qrels else [*tables, *lists]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        named_so = [path for path in qrels.parent.glob("*queries*") if path.is_file()]
        found = named_so[0] if len(named_so) == 1 else None
    return found, candidates[0]


def queries_of(qrels: Path) -> Path:
    """Return the file with the texts of judged queries. UserError: there is none."""
    found, expected = find_queries(qrels)
    if found is None:
        raise UserError("its queries are missing", f"put them at {expected}", path=qrels)
    return found


def is_picture(path: Path) -> bool:
    """True if a file is an image, by its name."""
    return path.suffix.lower() in PICTURES


def digest_input(name: Path | str, *splits: Split | None) -> str:
    """Return SHA-256 of an input's bytes, whatever their path, and of the names of pictures, which are their titles.
    Only the files of `splits` count; without splits, those of `files_of(name)`. Judgements of a BEIR folder never
    count."""
    folder = dataset(name) if is_dataset(name) else Path(name)
    read = splits if splits and not (folder / QRELS).is_dir() else (None,)
    digests = [
        digest([path.name, digest_file(path)]) if is_picture(path) else digest_file(path)
        for path in dict.fromkeys(path for split in read for path in files_of(name, split))
    ]
    return digests[0] if len(digests) == 1 else digest(digests)
