"""Folders: the right files, all of them, in order, and never anything but Parquet or WikiExtractor's."""

from __future__ import annotations

import bz2
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from realm_lab.corpus.readers import digest_input, files_of, read_documents
from realm_lab.errors import UserError


def pages(path: Path, *titles: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [f"{name} of {title}" for title in titles] for name in ("url", "text")}
    pq.write_table(pa.table({"id": [f"id {title}" for title in titles], **columns, "title": list(titles)}), path)
    return path


def titles(name: Path | str) -> list[str]:
    return [document.title for document in read_documents(name)]


def complaint(name: Path | str) -> str:
    with pytest.raises(UserError) as caught:
        files_of(name)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(name))


def test_a_folder_of_wikiextractor_is_read_in_order(tmp_path: Path) -> None:
    for place, title in (("AB/wiki_00", "c"), ("AA/wiki_01.bz2", "b"), ("AA/wiki_00", "a")):
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        line = json.dumps({"id": title, "revid": "1", "url": "u", "title": title, "text": f"{title} &lt;"}).encode()
        path.write_bytes(bz2.compress(line) if place.endswith(".bz2") else line)
    (tmp_path / "log.txt").write_text("done")
    assert [document.text for document in read_documents(tmp_path)] == ["a <", "b <", "c <"]


@pytest.mark.parametrize("folder", ["", "data", "20231101.en"])
def test_a_folder_in_the_layout_of_the_hub(tmp_path: Path, folder: str) -> None:
    pages(tmp_path / folder / "validation-00000-of-00001.parquet", "E")
    pages(tmp_path / folder / "test-00000-of-00001.parquet", "D")
    assert titles(tmp_path) == ["D", "E"], "splits without train are all read"
    pages(tmp_path / folder / "train-00001-of-00002.parquet", "C")
    pages(tmp_path / folder / "train-00000-of-00002.parquet", "A", "B")
    (tmp_path / "load.py").write_text("raise SystemExit")
    (tmp_path / "weights.pkl").write_bytes(b"no")
    assert titles(tmp_path) == ["A", "B", "C"]


def test_what_is_missing_from_a_folder_is_said(tmp_path: Path) -> None:
    assert "is a folder without wiki_*, Parquet or image files; name the files in it" in complaint(tmp_path)
    pages(tmp_path / "en" / "train-00000-of-00003.parquet", "A")
    pages(tmp_path / "en" / "train-00002-of-00003.parquet", "C")
    assert ": only 2 shards of 3 are there; fetch the rest" in complaint(tmp_path)
    pages(tmp_path / "de" / "train-00000-of-00001.parquet", "A")
    assert ": holds several data sets; name one of its folders, such as en" in complaint(tmp_path)
    assert titles(tmp_path / "de") == ["A"]


def test_digest_follows_the_bytes_of_every_file(tmp_path: Path) -> None:
    first = pages(tmp_path / "a" / "train-00000-of-00002.parquet", "A")
    pages(tmp_path / "a" / "train-00001-of-00002.parquet", "B")
    before = digest_input(tmp_path / "a")
    assert digest_input(first) != before
    (tmp_path / "a").rename(tmp_path / "b")
    assert digest_input(tmp_path / "b") == before
    pages(tmp_path / "b" / "train-00001-of-00002.parquet", "B2")
    assert digest_input(tmp_path / "b") != before
