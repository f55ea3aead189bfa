"""Reading: SQuAD, records of texts and questions, DPR; compression; what is dropped; formats of one's own."""

from __future__ import annotations

import bz2
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from realm_lab.corpus import readers
from realm_lab.corpus.readers import (
    Record,
    find_reader,
    read_documents,
    read_questions,
    readable_title,
    register_reader,
    register_shape,
    registry,
)
from realm_lab.corpus.records import Document, Question
from realm_lab.corpus.text_files import Source
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
    assert dropped == {readers.DROPPED_UNANSWERABLE: 1}


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


def test_a_format_can_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "READERS", dict(registry.READERS))

    def read(source: Source, dropped: Counter[str]) -> Iterator[Document]:
        yield Document("poem", "", source.text(), "poem")

    register_reader("poem", lambda path, head: path.suffix == ".poem", read_documents=read)
    path = written(tmp_path / "a.poem", '{"text": "not JSON here"}')
    assert [document.text for document in read_documents(path)] == ['{"text": "not JSON here"}']


def test_a_shape_of_records_can_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "READERS", dict(registry.READERS))

    def recipe(record: Record, dropped: Counter[str]) -> Iterator[Document]:
        if record.text("kind") == "draft":
            dropped["recipe: draft"] += 1
            return
        yield Document(record.identity(), record.field("dish", str), "\n".join(record.texts("steps")), "recipes")

    register_shape("recipes", {"dish", "steps"}, "{dish, steps: [texts]}", documents=recipe)
    records = [{"dish": "Soup", "steps": ["Boil.", "Eat."]}, {"dish": "Pie", "steps": [], "kind": "draft"}]
    for name, content in (("a.jsonl", lines(*records)), ("b.json", json.dumps(records))):
        dropped: Counter[str] = Counter()
        [document] = read_documents(written(tmp_path / name, content), dropped)
        assert document == Document(f"{name}:1", "Soup", "Boil.\nEat.", "recipes")
        assert dropped == {"recipe: draft": 1}
    message = complaint(read_documents, written(tmp_path / "c.jsonl", lines(records[0], {"dish": "Pie"})))
    assert message == ", line 2: 'steps' is missing (found: dish); expected {dish, steps: [texts]}"
