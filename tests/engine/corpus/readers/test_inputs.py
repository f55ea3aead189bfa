"""Folders and files as input: the right files are read, all of them and in order, and records keep their ids."""

import bz2
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from realm_lab.engine.corpus.files_corpus import FilesCorpus
from realm_lab.engine.corpus.readers import Dropped, digest_input, input_files, read_documents, read_questions
from realm_lab.engine.corpus.records import SPLITS
from realm_lab.engine.params.corpus import Corpus, Files
from tests.factories.errors import refused


def pages(path: Path, *titles: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [f"{name} of {title}" for title in titles] for name in ("url", "text")}
    pq.write_table(pa.table({"id": [f"id {title}" for title in titles], **columns, "title": list(titles)}), path)
    return path


def titles(name: Path | str) -> list[str]:
    return [document.title for document in read_documents(input_files(name))]


def test_a_folder_of_wikiextractor_is_read_in_order(tmp_path: Path) -> None:
    for place, title in (("AB/wiki_00", "c"), ("AA/wiki_01.bz2", "b"), ("AA/wiki_00", "a")):
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        line = json.dumps({"id": title, "revid": "1", "url": "u", "title": title, "text": f"{title} &lt;"}).encode()
        path.write_bytes(bz2.compress(line) if place.endswith(".bz2") else line)
    (tmp_path / "log.txt").write_text("done")
    assert [document.text for document in read_documents(input_files(tmp_path))] == ["a <", "b <", "c <"]


@pytest.mark.parametrize("folder", ["", "data", "20231101.en"])
def test_a_folder_in_the_layout_of_the_hub(tmp_path: Path, folder: str) -> None:
    pages(tmp_path / folder / "validation-00000-of-00001.parquet", "E")
    pages(tmp_path / folder / "test-00000-of-00001.parquet", "D")
    assert titles(tmp_path) == ["D", "E"], "splits without train are all read"
    pages(tmp_path / folder / "train-00001-of-00002.parquet", "C")
    pages(tmp_path / folder / "train-00000-of-00002.parquet", "A", "B")
    (tmp_path / "load.py").write_text("raise SystemExit")
    assert titles(tmp_path) == ["A", "B", "C"]


def test_questions_of_a_folder_are_those_of_their_split(tmp_path: Path) -> None:
    names = {"train": "train-00000-of-00001", "dev": "validation-00000-of-00001", "test": "test-00000-of-00001"}
    for split in ("train", "dev"):
        pages(tmp_path / f"{names[split]}.parquet", split)
    with refused("no split 'test' (it has train, dev)", path=tmp_path):
        input_files(tmp_path, split="test")
    first = digest_input(tmp_path, "train")
    pages(tmp_path / f"{names['test']}.parquet", "test")
    for split in SPLITS:
        assert [file.path.stem for file in input_files(tmp_path, split=split)] == [names[split]]
    assert digest_input(tmp_path) == digest_input(tmp_path, None, "train") == first
    assert len({first, digest_input(tmp_path, "test"), digest_input(tmp_path, "train", "test")}) == 3
    alone = pages(tmp_path / "alone" / "train-00000-of-00001.parquet", "only")
    assert [file.path for file in input_files(alone.parent, split="test")] == [alone]


def test_pictures_are_all_read_under_any_name_and_renaming_changes_the_digest(tmp_path: Path) -> None:
    for name in ("train.png", "wiki_flag.png", "a/Oslo.jpg"):
        put(tmp_path / name, name)
    assert titles(tmp_path) == ["Oslo", "train", "wiki flag"]
    before, alone = digest_input(tmp_path), digest_input(tmp_path / "train.png")
    (tmp_path / "train.png").rename(tmp_path / "trains.png")
    assert digest_input(tmp_path) != before
    assert digest_input(tmp_path / "trains.png") != alone


def test_what_is_missing_from_a_folder_is_said(tmp_path: Path) -> None:
    with refused("without wiki_*", path=tmp_path, remedy="name the files in it"):
        input_files(tmp_path)
    pages(tmp_path / "en" / "train-00000-of-00003.parquet", "A")
    pages(tmp_path / "en" / "train-00002-of-00003.parquet", "C")
    with refused("only 2 shards of 3", path=tmp_path):
        input_files(tmp_path)
    pages(tmp_path / "de" / "train-00000-of-00001.parquet", "A")
    with refused("such as en", path=tmp_path):
        input_files(tmp_path)
    assert titles(tmp_path / "de") == ["A"]


def put(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["2020/Part-0.jsonl", "2021/part-1.jsonl.gz"], ["part-0.jsonl", "part-1.jsonl"]),
        (["2020/part-0.jsonl", "{}/2021/part-0.jsonl"], ["2020/part-0.jsonl", "2021/part-0.jsonl"]),
        (["x/1/a.txt", "y/1/a.txt", "y/2/a.txt"], ["x/1/a.txt", "y/1/a.txt", "y/2/a.txt"]),
        (["x/a.jsonl", "x/a.jsonl.gz", "x/A.jsonl"], ["a.jsonl", "a.jsonl.gz", "A.jsonl"]),
        (["a/x.txt", "a/../a/x.txt", "b/x.txt"], ["a/x.txt", "a/x.txt", "b/x.txt"]),
    ],
)
def test_files_of_one_name_are_told_apart_by_the_shortest_end_of_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], names: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in files:
        put(Path(file.format(tmp_path)), "x")
    assert [file.name for file in input_files(*(file.format(tmp_path) for file in files))] == names


def test_records_without_an_id_in_files_of_one_name_are_all_kept(tmp_path: Path) -> None:
    """Records here are texts, paragraphs, articles, triples and questions."""
    triple = "<http://x.org/{}> <http://x.org/in> <http://x.org/Norway> .\n"
    forms = {"a.jsonl": '{{"text": "{}"}}\n', "b.txt": "{}", "c.txt": " = {} = \n Text . \n", "d.nt": triple}
    for name, form in forms.items():
        inputs = input_files(*(put(tmp_path / year / name, form.format(f"In_{year}")) for year in ("2020", "2021")))
        dropped = Dropped()
        documents = list(read_documents(inputs, dropped))
        assert [document.id for document in documents] == [f"2020/{name}:1", f"2021/{name}:1"]
        assert len({document.article for document in documents}) == 2
        assert not dropped
    record = '{"question": "who", "answer": "Ann"}\n'
    inputs = input_files(*(put(tmp_path / year / "dev.jsonl", record) for year in ("2020", "2021")))
    assert [question.id for question in read_questions(inputs)] == ["2020/dev.jsonl:1", "2021/dev.jsonl:1"]


def test_a_document_whose_id_is_taken_gets_the_next_free_one(tmp_path: Path) -> None:
    records = [("a", "A"), ("a~2", "B"), ("a", "C"), ("a", "A"), ("a", "D"), ("a", "C"), ("b", "A")]
    path = put(tmp_path / "d.jsonl", "\n".join(json.dumps({"id": i, "text": text}) for i, text in records))
    dropped = Dropped()
    found = [(document.id, document.text) for document in read_documents(input_files(path), dropped)]
    assert found == [("a", "A"), ("a~2", "B"), ("a~3", "C"), ("a~4", "D"), ("b", "A")]
    assert dropped == {"document: copy of an earlier one": 2, "document: id of an earlier one, kept under another": 2}


def test_an_id_that_several_questions_have_is_kept_by_none(tmp_path: Path) -> None:
    records = [("a", "who"), ("a~1", "where"), ("a", "when"), ("a", "who"), ("b", "why")]
    lines = [json.dumps({"id": identity, "question": text, "answer": "Ann"}) for identity, text in records]
    first = put(tmp_path / "1.jsonl", "\n".join(lines[:2]))
    second = put(tmp_path / "2.jsonl", "\n".join(lines[2:]))
    dropped = Dropped()
    found = {question.id: question.question for question in read_questions(input_files(first, second), dropped)}
    assert found == {"a~2": "who", "a~1": "where", "a~3": "when", "b": "why"}
    assert dropped == {"question: id of several, kept under others": 2, "question: copy of an earlier one": 1}
    assert set(dropped.first.values()) == {"a"}


@pytest.mark.parametrize(
    ("record", "identity", "counted"),
    [
        ({"passage_id": "a", "pageId": 5}, "d.jsonl:1", {
            "id: 'passage_id' is not read, file and line are": 1, "id: 'pageId' is not read, file and line are": 1}),
        ({"_id": "a", "docid": "b"}, "a", {"id: 'docid' is not read, '_id' is": 1}),
        ({"id": None, "_id": "a"}, "a", {}),
        ({"valid": 1, "idea": "x", "metadata_id": {}}, "d.jsonl:1", {}),
    ],
)  # fmt: skip
def test_an_unread_id_is_counted(
    tmp_path: Path, record: dict[str, Any], identity: str, counted: dict[str, int]
) -> None:
    path, dropped = put(tmp_path / "d.jsonl", json.dumps(record | {"text": "A"})), Dropped()
    assert [document.id for document in read_documents(input_files(path), dropped)] == [identity]
    assert dropped == counted


@pytest.mark.parametrize(
    ("qrels", "queries", "rows"),
    [
        ("qrels/test.tsv", "queries.jsonl", "query-id\tcorpus-id\tscore\nq1\td1\t1.0\nq1\td2\t0\n"),  # as pandas writes
        ("qrels/dev.tsv", "queries.jsonl", "q1 Q0 d1 1\nq1 Q0 d2 0\n"),
        ("judged.txt", "queries.jsonl", "q1\t0\td1\t1\nq1\t0\td2\t0.\n"),
        ("2019qrels-pass.txt", "2019queries-pass.txt", "q1 Q0 d1 1\nq1 Q0 d2 0\n"),
    ],
)
def test_judgements_are_known_by_their_columns(tmp_path: Path, qrels: str, queries: str, rows: str) -> None:
    path = tmp_path / qrels
    path.parent.mkdir(exist_ok=True)
    path.write_text(rows)
    text = '{"_id": "q1", "text": "who ?"}\n' if queries.endswith("jsonl") else "q1\twho ?\n"
    (tmp_path / queries).write_text(text)
    [question] = read_questions(input_files(path))
    assert (question.id, question.question, question.judged) == ("q1", "who ?", (("d1", 1), ("d2", 0)))
    corpus = Corpus(files=Files(questions_test=[str(path)]))
    before = FilesCorpus.identity(corpus, None, 0)
    (tmp_path / queries).write_text(text.replace("who", "where"))
    assert FilesCorpus.identity(corpus, None, 0) != before
