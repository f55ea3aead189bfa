"""Readers: every format, every kind of bad file, nothing lost without being counted."""

from __future__ import annotations

import bz2
import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from realm_lab.corpus import readers
from realm_lab.corpus.readers import find_reader, read_documents, read_questions, readable_title, register_reader
from realm_lab.corpus.records import Document, Question
from realm_lab.errors import UserError


def squad(*articles: tuple[str, list[tuple[str, list[dict[str, Any]]]]]) -> dict[str, Any]:
    return {
        "version": "1.1",
        "data": [
            {"title": title, "paragraphs": [{"context": text, "qas": qas} for text, qas in paragraphs]}
            for title, paragraphs in articles
        ],
    }


def asked(identity: str, question: str, *answers: str) -> dict[str, Any]:
    return {"id": identity, "question": question, "answers": [{"text": a, "answer_start": 0} for a in answers]}


SMALL = squad(
    ("Jehovah%27s_Witnesses", [("One.", [asked("q1", "  Who? ", "Ann", "Ann", "Bob")]), ("Two.", [])]),
    ("Plain_Title", [("Three.", [asked("q2", "What?", "the")])]),
)


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def complaint(read: Callable[[Path], Iterator[Any]], path: Path) -> str:
    """The one line that reading a bad file ends with."""
    with pytest.raises(UserError) as caught:
        list(read(path))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


def test_squad_documents_are_paragraphs_with_readable_titles(tmp_path: Path) -> None:
    path = written(tmp_path / "train.json", json.dumps(SMALL))
    assert list(read_documents(path)) == [
        Document("Jehovah%27s_Witnesses#0", "Jehovah's Witnesses", "One.", "Jehovah%27s_Witnesses"),
        Document("Jehovah%27s_Witnesses#1", "Jehovah's Witnesses", "Two.", "Jehovah%27s_Witnesses"),
        Document("Plain_Title#0", "Plain Title", "Three.", "Plain_Title"),
    ]


def test_squad_questions_name_their_paragraph_and_drop_what_scores_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "train.json", json.dumps(SMALL))
    dropped: Counter[str] = Counter()
    assert list(read_questions(path, dropped)) == [Question("q1", "Who?", ("Ann", "Bob"), "Jehovah%27s_Witnesses#0")]
    assert dropped == {readers.DROPPED_EMPTY_ANSWER: 1, readers.DROPPED_NO_ANSWER: 1}


def test_squad_paragraphs_of_a_title_that_comes_twice_keep_apart(tmp_path: Path) -> None:
    content = squad(("T", [("One.", [asked("a", "Q?", "x")])]), ("T", [("Two.", [asked("b", "Q?", "y")])]))
    path = written(tmp_path / "twice.json", json.dumps(content))
    assert [document.id for document in read_documents(path)] == ["T#0", "T#1"]
    assert [question.document for question in read_questions(path)] == ["T#0", "T#1"]


def test_squad_v2_drops_unanswerable_questions(tmp_path: Path) -> None:
    content = squad(("T", [("One.", [{**asked("a", "Q?"), "is_impossible": True}, asked("b", "R?", "x")])]))
    dropped: Counter[str] = Counter()
    path = written(tmp_path / "v2.json", json.dumps(content))
    assert [question.id for question in read_questions(path, dropped)] == ["b"]
    assert dropped == {readers.DROPPED_NO_ANSWER: 1}


@pytest.mark.parametrize(
    ("title", "readable"),
    [("Super_Bowl_50", "Super Bowl 50"), ("Kievan_Rus%27", "Kievan Rus'"), ("100%_Pure", "100% Pure"), ("%ff", "%ff")],
)
def test_readable_title(title: str, readable: str) -> None:
    assert readable_title(title) == readable


@pytest.mark.parametrize("indent", [None, 2])
def test_squad_is_recognised_by_its_content(tmp_path: Path, indent: int | None) -> None:
    path = written(tmp_path / "no_suffix", json.dumps(SMALL, indent=indent))
    assert find_reader(path).name == "squad"


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d"])
def test_json_lines_documents(tmp_path: Path, name: str) -> None:
    long = "x" * 10_000  # longer than what a format is recognised by
    path = written(tmp_path / name, lines({"text": long, "id": 7, "title": " T "}, {"text": "B\u2028b", "title": None}))
    assert list(read_documents(path)) == [
        Document("7", "T", long, "T"),
        Document(f"{name}:2", "", "B\u2028b", f"{name}:2"),
    ]


def test_json_lines_questions_of_the_open_qa_sets(tmp_path: Path) -> None:
    records = [
        {"question": "who?", "answer": ["Ann", "Bob"]},
        {"question": "when?", "answers": "Sept?(ember)?", "id": "trec-2", "document": "d1"},
    ]
    path = written(tmp_path / "NQ.jsonl", "\n" + lines(*records))
    assert list(read_questions(path)) == [
        Question("nq.jsonl:2", "who?", ("Ann", "Bob"), None),
        Question("trec-2", "when?", ("Sept?(ember)?",), "d1"),
    ]


def test_json_array_documents(tmp_path: Path) -> None:
    path = written(
        tmp_path / "corpus.json", json.dumps([{"title": "T", "text": "A"}, {"title": "U", "text": "B"}], indent=1)
    )
    assert [(document.id, document.text) for document in read_documents(path)] == [
        ("corpus.json:1", "A"),
        ("corpus.json:2", "B"),
    ]


def test_dpr_passages_with_quotes_and_line_ends_inside(tmp_path: Path) -> None:
    path = written(tmp_path / "psgs_w100.tsv", 'id\ttext\ttitle\n1\t"He said ""no"".\nTwice."\tT\n2\tPlain.\tT\n')
    assert list(read_documents(path)) == [
        Document("1", "T", 'He said "no".\nTwice.', "T"),
        Document("2", "T", "Plain.", "T"),
    ]
    assert "holds no questions" in complaint(read_questions, path)


@pytest.mark.parametrize("name", ["d.jsonl.gz", "d.jsonl.bz2", "d.jsonl"])
def test_compression_is_recognised_by_content(tmp_path: Path, name: str) -> None:
    pack = bz2.compress if name.endswith("bz2") else gzip.compress
    path = written(tmp_path / name, pack(lines({"text": "Ä"}).encode()))
    assert [document.text for document in read_documents(path)] == ["Ä"]


def test_zstandard(tmp_path: Path) -> None:
    zstd = pytest.importorskip("backports.zstd", reason="backports.zstd is not installed")
    packed = zstd.compress(lines({"text": "Ä"}).encode())
    assert [d.text for d in read_documents(written(tmp_path / "d.jsonl.zst", packed))] == ["Ä"]
    assert "cut off" in complaint(read_documents, written(tmp_path / "cut.jsonl.zst", packed[:-3]))


def test_zstandard_without_the_module_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "backports.zstd", None)
    monkeypatch.setitem(__import__("sys").modules, "compression.zstd", None)
    assert "pip install backports.zstd" in complaint(
        read_documents, written(tmp_path / "d.jsonl.zst", b"\x28\xb5\x2f\xfd1234")
    )


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path / "bom.jsonl", b"\xef\xbb\xbf" + lines({"text": "A"}).encode())
    assert [document.text for document in read_documents(path)] == ["A"]
    path = written(tmp_path / "bom.json", b"\xef\xbb\xbf" + json.dumps(SMALL).encode())
    assert len(list(read_documents(path))) == 3


def test_dropped_documents_are_counted(tmp_path: Path) -> None:
    path = written(
        tmp_path / "d.jsonl", lines({"id": "a", "text": "A"}, {"id": "a", "text": "B"}, {"id": "b", "text": " \n"})
    )
    dropped: Counter[str] = Counter()
    assert [document.text for document in read_documents(path, dropped)] == ["A"]
    assert dropped == {readers.DROPPED_DUPLICATE_DOCUMENT: 1, readers.DROPPED_EMPTY_TEXT: 1}


def test_dropped_questions_are_counted(tmp_path: Path) -> None:
    records = [
        {"id": "a", "question": "q", "answer": ["x", "?", ""]},
        {"id": "a", "question": "q", "answer": ["x"]},
        {"id": "b", "question": "  ", "answer": ["x"]},
        {"id": "c", "question": "q", "answer": []},
    ]
    dropped: Counter[str] = Counter()
    assert [q.answers for q in read_questions(written(tmp_path / "q.jsonl", lines(*records)), dropped)] == [("x",)]
    assert dropped == {
        readers.DROPPED_EMPTY_ANSWER: 2,
        readers.DROPPED_DUPLICATE_QUESTION: 1,
        readers.DROPPED_EMPTY_QUESTION: 1,
        readers.DROPPED_NO_ANSWER: 1,
    }


GOOD_LINE = lines({"text": "Aé"}).encode()
BAD_FILES = {
    "empty": ("e.jsonl", b"", "the file is empty"),
    "blank": ("e.json", b" \n\n", "the file is empty"),
    "gzip_empty": ("e.jsonl.gz", gzip.compress(b""), "the file is empty"),
    "gzip_cut": ("c.jsonl.gz", gzip.compress(os.urandom(9000).hex().encode())[:-900], "cut off or damaged"),
    "gzip_damaged": ("c.jsonl.gz", gzip.compress(GOOD_LINE * 9)[:20] + b"\xff" * 40, "cut off or damaged"),
    "gzip_in_name_only": ("c.jsonl.gz", GOOD_LINE, "named .gz but is not"),
    "bzip2_cut": ("c.jsonl.bz2", bz2.compress(GOOD_LINE * 99)[:-9], "cut off or damaged"),
    "utf16": ("u.jsonl", GOOD_LINE.decode().encode("utf-16"), "line 1: looks like UTF-16"),
    "utf16_without_mark": ("u.jsonl", GOOD_LINE.decode().encode("utf-16-le"), "line 1: looks like UTF-16"),
    "latin1_lines": ("l.jsonl", GOOD_LINE * 2 + b'{"text": "A\xe9"}\n', ", line 3: not UTF-8 (byte 0xe9)"),
    "latin1_json": ("l.json", b'{"data": [\n{"title": "\xe9"}]}', ", line 2: not UTF-8"),
    "latin1_tsv": ("l.tsv", b"id\ttext\ttitle\n1\t\xe9\tT\n", ", line 2: not UTF-8"),
    "lines_cut": ("c.jsonl", GOOD_LINE + GOOD_LINE[:-4], "the file looks cut off"),
    "line_broken": (
        "c.jsonl",
        b"{}}\n" + GOOD_LINE,
        ", line 1, column 3: not valid JSON (Extra data); repair or delete",
    ),
    "json_cut": ("c.json", json.dumps(SMALL, indent=1)[:-40].encode(), "looks cut off"),
    "json_broken": ("c.json", b'{"data": [\n,\n{"title": 1}]}', ", line 2, column 1: not valid JSON"),
    "no_articles": ("s.json", b'{\n"data": []}', "no articles under 'data'"),
    "no_title": ("s.json", b'{"data": [{"paragraphs": []}]}', ", article 1: 'title' is missing"),
    "no_context": (
        "s.json",
        b'{"data": [{"title": "A", "paragraphs": [{"context": "x"}, {"qas": []}]}]}',
        ", article 1 ('A'), paragraph 2: 'context' is missing (found: qas)",
    ),
    "paragraphs_are_text": (
        "s.json",
        b'{"data": [{"title": "A", "paragraphs": "x"}]}',
        "'paragraphs' is a str, not a list",
    ),
    "article_is_text": ("s.json", b'{"data": ["A"]}', ", article 1: a str where an object should be"),
    "no_text": ("d.jsonl", GOOD_LINE + b'{"body": "x"}\n', ", line 2: 'text' is missing (found: body)"),
    "line_is_list": ("d.jsonl", b"[1]\n", ", line 1: a list where an object should be"),
    "text_is_number": ("d.jsonl", b'{"text": 1}\n', ", line 1: 'text' is a int, not a str"),
    "title_is_list": ("d.jsonl", b'{"text": "a", "title": []}\n', ", line 1: 'title' is a list, not a str"),
    "half_surrogate": ("d.jsonl", b'{"text": "\\ud800"}\n', ", line 1: 'text' holds half of a surrogate pair"),
    "deep": ("d.jsonl", b'{"text": ' + b"[" * 100_000 + b"\n", ", line 1: not"),
    "array_record": ("a.json", b'[{"text": "a"}, {}]', ", record 2: 'text' is missing (found: nothing)"),
    "tsv_header": ("p.tsv", b"1\tx\ty\n", ", line 1: header ['1', 'x', 'y']"),
    "tsv_columns": ("p.tsv", b"id\ttext\ttitle\n1\ta\tT\n2\tb\n", ", line 3: 2 columns"),
    "tsv_quote": ("p.tsv", b'id\ttext\ttitle\n1\t"a\tT\n', ", line 2: not readable as TSV"),
    "unknown": ("notes.txt", b"Once upon a time\n", "format not recognised"),
}


@pytest.mark.parametrize(("name", "content", "expected"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_document_files(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    assert expected in complaint(read_documents, written(tmp_path / name, content))


BAD_QUESTIONS = {
    "no_question": (b'{"answer": ["x"]}\n', ", line 1: 'question' is missing"),
    "no_answer": (b'{"question": "x"}\n', ", line 1: 'answer' is missing"),
    "answer_is_number": (b'{"question": "x", "answer": ["a", 3]}\n', ", line 1: 'answer 2' is a int, not a str"),
    "id_is_list": (b'{"question": "x", "answer": ["a"], "id": []}\n', ", line 1: 'id' is a list"),
}


@pytest.mark.parametrize(("content", "expected"), BAD_QUESTIONS.values(), ids=BAD_QUESTIONS.keys())
def test_bad_question_lines(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in complaint(read_questions, written(tmp_path / "q.jsonl", content))


def test_bad_squad_questions_name_paragraph_and_question(tmp_path: Path) -> None:
    content = squad(("T", [("One.", [asked("a", "Q?", "x"), {"id": "b", "answers": []}])]))
    message = complaint(read_questions, written(tmp_path / "s.json", json.dumps(content)))
    assert ", paragraph T#0, question 2: 'question' is missing" in message


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert ": no such file" in complaint(read_documents, tmp_path / "nowhere.jsonl")
    assert ": is a folder" in complaint(read_documents, tmp_path)


def test_lines_before_a_bad_one_are_read(tmp_path: Path) -> None:
    documents = read_documents(written(tmp_path / "d.jsonl", GOOD_LINE + b"{\n"))
    assert next(documents).text == "Aé"
    with pytest.raises(UserError, match="line 2"):
        next(documents)


def test_a_format_can_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READERS", dict(readers.READERS))

    def read(path: Path, dropped: Counter[str]) -> Iterator[Document]:
        yield Document("poem", "", path.read_text(), "poem")

    register_reader("poem", lambda path, head: path.suffix == ".poem", read_documents=read)
    path = written(tmp_path / "a.poem", '{"text": "not JSON here"}')
    assert [document.text for document in read_documents(path)] == ['{"text": "not JSON here"}']


DATA = os.environ.get("REALM_LAB_DATA")


@pytest.mark.skipif(not DATA, reason="REALM_LAB_DATA names no folder with squad/train-v1.1.json.gz and dev-v1.1.json")
@pytest.mark.parametrize(
    ("name", "articles", "paragraphs", "questions"),
    [("train-v1.1.json.gz", 442, 18_896, 87_599), ("dev-v1.1.json", 32, 1_396, 7_150)],
)
def test_real_squad(name: str, articles: int, paragraphs: int, questions: int) -> None:
    dropped: Counter[str] = Counter()
    path = Path(str(DATA)) / "squad" / name
    documents = list(read_documents(path, dropped))
    assert len(documents) == paragraphs
    assert len({document.article for document in documents}) == articles
    assert not dropped
    read = list(read_questions(path, dropped))
    assert len(read) + dropped[readers.DROPPED_NO_ANSWER] == questions
    assert {question.document for question in read} <= {document.id for document in documents}
