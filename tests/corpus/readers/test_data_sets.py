"""Folders and data sets of the Hub: the right files, all of them, in order, and never anything but Parquet."""

from __future__ import annotations

import bz2
import json
from pathlib import Path

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from realm_lab.corpus.files_corpus import FilesCorpus
from realm_lab.corpus.prepare import corpus_inputs
from realm_lab.corpus.readers import data_sets, digest_input, files_of, read_documents
from realm_lab.errors import UserError
from realm_lab.params.parameters import Corpus, Files, InverseCloze, Params, WarmStart

COMMIT = "0123456789abcdef0123456789abcdef01234567"


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
    assert "is a folder without wiki_* or Parquet files; name the files in it" in complaint(tmp_path)
    pages(tmp_path / "en" / "train-00000-of-00003.parquet", "A")
    pages(tmp_path / "en" / "train-00002-of-00003.parquet", "C")
    assert ": 2 of 3 shards are there; fetch the rest" in complaint(tmp_path)
    pages(tmp_path / "de" / "train-00000-of-00001.parquet", "A")
    assert f": name one of its configurations, as in {tmp_path}/NAME: de, en" in complaint(tmp_path)
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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The snapshot of hf://someone/wiki in a cache as the Hub's client keeps it, with two configurations."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    data_sets._hub_files.cache_clear()
    folder = tmp_path / "datasets--someone--wiki"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    snapshot = folder / "snapshots" / COMMIT
    pages(snapshot / "20231101.en" / "train-00000-of-00001.parquet", "A", "B")
    pages(snapshot / "20231101.de" / "train-00000-of-00001.parquet", "C")
    pages(snapshot / "20231101.de" / "test-00000-of-00001.parquet", "D")
    return snapshot


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf://someone/wiki/20231101.en", ["A", "B"]),
        ("hf://someone/wiki/20231101.de", ["C"]),
        ("hf://someone/wiki/20231101.de/test", ["D"]),
        (f"hf://someone/wiki@{COMMIT}/20231101.en", ["A", "B"]),
    ],
)
def test_a_data_set_of_the_hub_from_the_cache(cache: Path, name: str, expected: list[str]) -> None:
    assert titles(name) == expected
    assert digest_input(name)


def test_what_is_wrong_with_a_data_set_is_said(cache: Path) -> None:
    assert ": name one of its configurations, as in hf://someone/wiki/NAME: 20231101.de" in complaint(
        "hf://someone/wiki"
    )
    assert ": no split 'dev'; there are test, train" in complaint("hf://someone/wiki/20231101.de/dev")
    assert ": not in the cache, and HF_HUB_OFFLINE forbids the network; unset it" in complaint("hf://someone/other/en")
    assert ": not a data set; write hf://OWNER/NAME" in complaint("hf://wiki")


class Hub:
    """The two calls that reach the network, answered from a folder."""

    is_down = False

    def __init__(self, folder: Path):
        self.folder, self.asked = folder, list[tuple[str, str | None]]()

    def list_repo_files(self, identity: str, *, repo_type: str, revision: str | None) -> list[str]:
        assert repo_type == "dataset"
        if self.is_down or identity != "someone/wiki":
            raise ConnectionError("no route\nto host")
        return [path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()]

    def download(self, identity: str, file: str, *, repo_type: str, revision: str | None) -> str:
        self.asked.append((file, revision))
        return str(self.folder / file)


def test_only_the_files_that_are_read_are_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(cache)
    (cache / "wiki.py").write_text("raise SystemExit")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub.download)
    assert titles("hf://someone/wiki@v1/20231101.de") == ["C"]
    assert titles("hf://someone/wiki@v1/20231101.de") == ["C"], "looked up once in a process"
    assert hub.asked == [("20231101.de/train-00000-of-00001.parquet", "v1")]
    hub.is_down = True
    assert titles("hf://someone/wiki/20231101.en") == ["A", "B"], "from the cache"
    message = complaint("hf://someone/gone")
    assert ": cannot be fetched (ConnectionError: no route to host); check name and network, or fetch" in message


def test_a_data_set_without_parquet_is_refused() -> None:
    with pytest.raises(UserError, match=r"no Parquet files \(scripts are never run\)"):
        data_sets.choose_parquet(["load.py", "data.pkl"], "hf://someone/old", None, None)


def test_a_folder_is_a_knowledge_corpus_and_its_content_is_its_key(tmp_path: Path) -> None:
    page = tmp_path / "data" / "train-00000-of-00001.parquet"
    corpus = Corpus(files=Files(knowledge=[str(tmp_path)]))
    params = Params(corpus=corpus, warm_start=WarmStart(embedder=InverseCloze(initial_encoder="scratch")))
    pages(page, "A", "B")
    before = corpus_inputs(params, 0)
    assert [document.title for document in FilesCorpus(corpus).documents()] == ["A", "B"]
    pages(page, "A", "B", "C")
    assert corpus_inputs(params, 0) != before
