"""Every format of docs/data.md, on samples in the form in which it is distributed."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from realm_lab.corpus.readers import find_reader, read_documents, read_questions
from realm_lab.corpus.readers.containers import passage_id
from realm_lab.corpus.records import Document, Question, Span


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def parquet(**columns: list[Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


PAGE = {"id": "12", "url": "https://en.wikipedia.org/wiki?curid=12", "title": "Salt &amp; Pepper"}
EXTRACTED = PAGE | {"revid": "7", "text": "Salt &amp; Pepper\n\nSalt is &lt;white&gt;."}

# name of the file, its content, the format, its documents
TEXTS = {
    "wikiextractor": (
        "wiki_00",
        lines(EXTRACTED),
        "wikiextractor",
        [Document("12", "Salt & Pepper", "Salt is <white>.", "Salt & Pepper")],
    ),
    "wikiextractor_doc": (
        "wiki_03.bz2",
        bz2.compress(
            b'<doc id="12" url="u" title="The "Salt" &amp; Co">\nThe "Salt" &amp; Co\n\n'
            b"Salt is &lt;white&gt;.\nMore.\n\n</doc>\n"
            b'<doc id="13" revid="7" url="u" title="">\n\nNo title\n</doc>\n'
            b'<doc id="14" url="u" title="Oslo">\nOslo is.\n</doc>'
        ),
        "wikiextractor_doc",
        [
            Document("12", 'The "Salt" & Co', "Salt is <white>.\nMore.", 'The "Salt" & Co'),
            Document("13", "", "No title", "13"),
            Document("14", "Oslo", "Oslo is.", "Oslo"),
        ],
    ),
    "hub_wikipedia": (
        "train-00000-of-00001.parquet",
        parquet(id=["12"], url=["u"], title=["R&amp;D"], text=["About &amp;.\n\nMore."]),
        "hub_wikipedia",
        [Document("12", "R&amp;D", "About &amp;.\n\nMore.", "R&amp;D")],
    ),
    "hotpotqa": (
        "wiki_01.json",
        json.dumps([{"title": "Oslo", "text": ["Oslo is a city.", " It is large."]}]).encode(),
        "hotpotqa",
        [Document("wiki_01.json:1", "Oslo", "Oslo is a city. It is large.", "Oslo")],
    ),
    "hotpotqa_whole_articles": (
        "wiki_02",
        lines({"id": "5", "url": "u", "title": "Oslo", "text": [["Oslo"], ["It is.", " So."]], "charoffset": []}),
        "hotpotqa",
        [Document("5", "Oslo", "Oslo\nIt is. So.", "Oslo")],
    ),
    "2wiki": (
        "corpus.json",
        json.dumps([{"title": "Oslo", "text": "A city."}], indent=4).encode(),
        "texts",
        [Document("corpus.json:1", "Oslo", "A city.", "Oslo")],
    ),
    "dated_news": (
        "news.jsonl",
        lines(
            {
                "id": "n1",
                "date": "2025-01-02",
                "category": "c",
                "title": "T",
                "text": "Oslo won.",
                "links": [[0, 4, "O"]],
            }
        ),
        "dated_news",
        [Document("n1", "T", "Oslo won.", "T", "2025-01-02", (Span(0, 4, "O"),))],
    ),
    "wikitext": (
        "wiki.test.tokens",
        b" \n = Oslo = \n \n Oslo is a <unk> . \n \n = = History = = \n \n Old . \n = Bergen = \n Rain . \n",
        "wikitext",
        [
            Document("wiki.test.tokens:2", "Oslo", "Oslo is a <unk> .\nOld .", "wiki.test.tokens:2"),
            Document("wiki.test.tokens:9", "Bergen", "Rain .", "wiki.test.tokens:9"),
        ],
    ),
    "wikitext_equation": (
        "w.txt",
        b" = Sums = \n x = y = z \n = = \n",
        "wikitext",
        [Document("w.txt:1", "Sums", "x = y = z\n= =", "w.txt:1")],
    ),
    "plain_text": (
        "tale.txt.gz",
        gzip.compress(b"Once upon\na time.\n\n\nThe end."),
        "plain_text",
        [
            Document("tale.txt:1", "", "Once upon\na time.", "tale.txt"),
            Document("tale.txt:5", "", "The end.", "tale.txt"),
        ],
    ),
    "swapped_paragraphs": (
        "swap.jsonl",
        lines(
            {
                "title": "Old_Oslo",
                "paragraph": 3,
                "old_context": "Ann won.",
                "new_context": "Bob won.",
                "swapped": [],
                "unchanged": [],
            }
        ),
        "swapped_paragraphs",
        [
            Document("Old_Oslo#3", "Old Oslo", "Ann won.", "Old_Oslo"),
            Document("Old_Oslo#3@new", "Old Oslo", "Bob won.", "Old_Oslo"),
        ],
    ),
}


@pytest.mark.parametrize(("name", "content", "kind", "expected"), TEXTS.values(), ids=TEXTS)
def test_documents(tmp_path: Path, name: str, content: bytes, kind: str, expected: list[Document]) -> None:
    path = put(tmp_path / name, content)
    assert find_reader(path).name == kind
    dropped: Counter[str] = Counter()
    assert list(read_documents(path, dropped)) == expected
    assert not dropped


SWAPPED = {
    "title": "T",
    "paragraph": 0,
    "old_context": "a",
    "new_context": "b",
    "swapped": [{"id": "s1", "question": "Who?", "type": "PERSON", "old_answer": "Ann", "new_answer": "Bob"}],
    "unchanged": [{"id": "s2", "question": "When?", "answer": "1969"}],
}
CLOZE = {
    "id": "c",
    "cloze": "In [MASK].",
    "answer": "Oslo",
    "source_id": "n1",
    "evidence_ids": ["n2"],
    "in_Zold": False,
}
# name of the file, its content, the format, its questions
ASKED = {
    "nq_open": (
        "NQ-open.dev.jsonl",
        lines({"question": "who won", "answer": ["Ann", "Ann B."]}),
        "open_questions",
        [Question("nq-open.dev.jsonl:1", "who won", ("Ann", "Ann B."), None)],
    ),
    "nq_open_of_the_hub": (
        "validation-00000-of-00001.parquet",
        parquet(question=["who won"], answer=[["Ann"]]),
        "open_questions",
        [Question("validation-00000-of-00001.parquet:1", "who won", ("Ann",), None)],
    ),
    "webquestions": (
        "main.json",
        b'[\n {"qId": "w4", "answers": ["Bahamian dollar"], "qText": "what money?"}\n]',
        "webquestions",
        [Question("w4", "what money?", ("Bahamian dollar",), None)],
    ),
    "curated_trec": (
        "CuratedTrec-test.txt",
        lines({"question": "When?", "answer": ["Sept?(ember)? "]}),
        "curated_trec",
        [Question("curatedtrec-test.txt:1", "When?", ("Sept?(ember)? ",), None, "regex")],
    ),
    "curated_trec_table": (
        "large.tsv",
        b'462\tfactoid\tWhat is in "curies"?\tRAO|wastes?\\\t1 Sv\n',
        "curated_trec_table",
        [Question("462", 'What is in "curies"?', ("RAO|wastes?\\\t1 Sv",), None, "regex")],
    ),
    "patterns_by_record": (
        "mine.jsonl",
        lines({"id": "a", "question": "When?", "answer": "19\\d\\d", "answer_kind": "regex"}),
        "open_questions",
        [Question("a", "When?", ("19\\d\\d",), None, "regex")],
    ),
    "hub_squad_without_ids": (
        "s.jsonl",
        lines({"title": "A%27s_b", "context": "One.", "question": " Who? ", "answers": {"text": ["Ann", "Ann"]}}),
        "hub_squad",
        [Question("s.jsonl:1", "Who?", ("Ann",), passage_id("A%27s_b", "One."))],
    ),
    "timeqa": (
        "t.jsonl",
        lines(
            {"id": "x#0", "title": "T", "question": "Who in 1811?", "answer": ["Ann"], "level": "easy"},
            {"id": "x#0", "title": "T", "question": "Who before 1812?", "answer": ["Ann"], "level": "hard"},
        ),
        "timeqa",
        [
            Question("x#0?easy", "Who in 1811?", ("Ann",), None),
            Question("x#0?hard", "Who before 1812?", ("Ann",), None),
        ],
    ),
    "swapped_paragraphs": (
        "swap.jsonl",
        lines(SWAPPED),
        "swapped_paragraphs",
        [
            Question("s1", "Who?", ("Ann",), "T#0", answers_updated=("Bob",)),
            Question("s2", "When?", ("1969",), "T#0", answers_updated=("1969",)),
        ],
    ),
    "cloze": ("cloze.jsonl", lines(CLOZE), "cloze", [Question("c", "In [MASK].", ("Oslo",), "n1")]),
}


@pytest.mark.parametrize(("name", "content", "kind", "expected"), ASKED.values(), ids=ASKED)
def test_questions(tmp_path: Path, name: str, content: bytes, kind: str, expected: list[Question]) -> None:
    path = put(tmp_path / name, content)
    assert find_reader(path).name == kind
    dropped: Counter[str] = Counter()
    assert list(read_questions(path, dropped)) == expected
    assert not dropped


GOLD = {"title": "Oslo", "passage": "Oslo is a city.", "answer": ["a city"]}
QED = {
    "example_id": -4,
    "title_text": "Oslo",
    "url": "u",
    "question_text": "what is oslo",
    "paragraph_text": "Oslo is a city .",
    "original_nq_answers": [[{"start": 8, "end": 14, "string": "a city"}], [{"string": "a"}, {"string": "town"}]],
}


@pytest.mark.parametrize(
    ("kind", "records", "identity", "answers"),
    [
        ("nq_gold_passages", [GOLD | {"question": "q1"}, GOLD | {"question": "q2"}], "g.jsonl:1", ("a city",)),
        ("qed", [QED, QED | {"example_id": 5}], "-4", ("a city", "a town")),
    ],
)
def test_questions_with_their_gold_passage(
    tmp_path: Path, kind: str, records: list[Any], identity: str, answers: tuple[str, ...]
) -> None:
    path = put(tmp_path / "g.jsonl", lines(*records))
    assert find_reader(path).name == kind
    dropped: Counter[str] = Counter()
    [document] = read_documents(path, dropped)
    assert dropped == {"document: duplicate id": 1}, "one passage of two questions"
    first, second = read_questions(path)
    assert (first.id, first.answers, first.document) == (identity, answers, document.id)
    assert second.document == document.id
    assert (document.title, document.article) == ("Oslo", "Oslo")


def test_squad_of_the_hub_is_a_paragraph_for_several_questions(tmp_path: Path) -> None:
    table = parquet(
        id=["a", "b", "c"],
        title=["Old_Oslo"] * 3,
        context=["Ann won.", "Ann won.", "Bob lost."],
        question=["Who won?", "Why?", "What?"],
        answers=[{"text": texts, "answer_start": [0] * len(texts)} for texts in (["Ann"], [], ["a"])],
    )
    path = put(tmp_path / "validation-00000-of-00001.parquet", table)
    assert find_reader(path).name == "hub_squad"
    dropped: Counter[str] = Counter()
    first, second = read_documents(path, dropped)
    assert (first.title, first.article, first.text, second.text) == ("Old Oslo", "Old_Oslo", "Ann won.", "Bob lost.")
    assert [(q.id, q.question, q.document) for q in read_questions(path, dropped)] == [("a", "Who won?", first.id)]
    assert dropped == {
        "document: duplicate id": 1,
        "question: unanswerable": 1,
        "answer: normalises to nothing": 1,
        "question: no answer": 1,
    }


def test_a_record_longer_than_the_head_is_recognised_by_the_keys_before_its_text(tmp_path: Path) -> None:
    path = put(tmp_path / "wiki_00", lines(EXTRACTED | {"text": "x" * 100_000}))
    assert find_reader(path).name == "wikiextractor"


def test_plain_text_without_blank_lines_is_cut_at_line_ends(tmp_path: Path) -> None:
    path = put(tmp_path / "long.txt", b"A sentence of the tale.\n" * 10_000)
    documents = list(read_documents(path))
    assert [document.id for document in documents] == ["long.txt:1", "long.txt:4168", "long.txt:8335"]
    assert sum(document.text.count("tale") for document in documents) == 10_000


def test_an_array_is_read_without_being_held(tmp_path: Path) -> None:
    """Members before a fault are given out, however far on it is; numbers, blanks and chunks' ends do no harm."""
    records = [{"text": f"{number} " + "é" * 3000, "n": [1.5e3, None, {"a": number}]} for number in range(1000)]
    text = json.dumps(records, ensure_ascii=False, indent=1)
    path = put(tmp_path / "a.json", text.encode())
    assert path.stat().st_size > 5_000_000
    assert [document.text for document in read_documents(path)] == [record["text"] for record in records]
    put(path, (text[:-1] + ",\n\n5]").encode())
    documents = read_documents(path)
    assert [next(documents).text.split()[0] for _ in range(1000)] == [str(number) for number in range(1000)]
    with pytest.raises(ValueError, match=rf"record 1001 \(line {text.count(chr(10)) + 3}\): a int where"):
        next(documents)


@pytest.mark.parametrize(
    "content",
    [
        "0\tNew\tB-LOC\n1\tYork\tI-LOC\n\n0\tOslo\tB-LOC\n",  # WikiNEuRal
        "# text = x\n1\tNew\tNew\tNNP\n2\tYork\tYork\tNNP\n\n1\tOslo\tOslo\tNNP\n",  # CoNLL-U
        "1-2\tNewYork\t_\n1\tNew\t_\n2\tYork\t_\n\n1\tOslo\t_\n",  # with a word of two tokens
        "New B-LOC\nYork I-LOC\n\nOslo B-LOC\n",
    ],
)
def test_the_index_of_a_token_is_not_read_as_the_token(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.conllu").write_text(content)
    [document] = read_documents(tmp_path / "a.conllu")
    assert document.text == "New York\nOslo"


def test_numbers_in_a_text_stay_tokens_and_documents_are_apart(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("-DOCSTART- O\n\nIn O\n1 O\n\n-DOCSTART- O\n\n7 CD\n3 CD\n")
    assert [document.text for document in read_documents(tmp_path / "a.conll")] == ["In 1", "7 3"]
