"""What becomes of every kind of bad input: read as it is, record skipped and counted, or refused with file and line."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from realm_lab.corpus import text_files
from realm_lab.corpus.readers import containers, read_documents, read_questions
from realm_lab.corpus.readers import parquet as parquet_files
from realm_lab.errors import UserError

MB = 1 << 20


class Read(NamedTuple):
    """Read as it is: these texts (of questions: these answers)."""

    texts: list[Any]


class Skipped(NamedTuple):
    """Read without some records, which are counted."""

    texts: list[Any]
    dropped: dict[str, int]


class Refused(NamedTuple):
    """One line that begins with the file and goes on like this."""

    message: str


Outcome = Read | Skipped | Refused


class Case(NamedTuple):
    """A file, and what reading it comes to."""

    name: str  # of the file
    content: bytes | None  # None: there is no such file
    outcome: Outcome
    tight: bool = False  # read with limits of 5 MB a line and a growth of 100 times


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def array(*records: Any) -> bytes:
    return json.dumps(list(records), indent=1).encode()


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    return sink.getvalue()


def text_record(text: str) -> bytes:
    return json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"


def squad(**item: Any) -> bytes:
    paragraph = {"context": "One.", "qas": [item]}
    return json.dumps({"data": [{"title": "T", "paragraphs": [paragraph]}]}, indent=1).encode()


GOOD = lines({"text": "Aé"})
BOM = b"\xef\xbb\xbf"
LONG = "x" * (10 * MB)
BOMB = (b" " * MB + b"\n") * 40
DOC = b'<doc id="1" url="u" title="Oslo">\nOslo\n'
HEAD = b"id\ttext\ttitle\n"
SMALL_SQUAD = squad(id="a", question="Who?", answers=[{"text": "Ann"}])
DAMAGED_ZSTANDARD = bytearray(zstd.compress(b"".join(lines({"text": f"some text {n * n}"}) for n in range(3000))))
DAMAGED_ZSTANDARD[1000:1100] = bytes(100)


DOCUMENTS = {
    # Files that are not there, not whole, or not what they are called
    "missing": Case("nowhere.jsonl", None, Refused(": no such file; check the path")),
    "empty": Case("e.jsonl", b"", Refused(": the file is empty; fetch or write it again")),
    "blank": Case("e.json", b" \n\n", Refused(": the file is empty")),
    "mark_alone": Case("e.json", BOM, Refused(": the file is empty")),
    "gzip_of_nothing": Case("e.jsonl.gz", gzip.compress(b""), Refused(": the file is empty")),
    "gzip_cut": Case("c.jsonl.gz", gzip.compress(os.urandom(9000).hex().encode())[:-900], Refused(": cut off or dam")),
    "gzip_damaged": Case("c.jsonl.gz", gzip.compress(GOOD * 9)[:20] + b"\xff" * 40, Refused(": cut off or damaged")),
    "gzip_in_name_only": Case("c.jsonl.gz", GOOD, Refused(": named .gz but is not such a file; fetch it again or")),
    "gzip_without_its_name": Case("c.jsonl", gzip.compress(GOOD), Read(["Aé"])),
    "bzip2_cut": Case("c.jsonl.bz2", bz2.compress(GOOD * 99)[:-9], Refused(": cut off or damaged")),
    "zstandard_cut": Case("c.jsonl.zst", zstd.compress(GOOD * 99)[:-3], Refused(": cut off or damaged")),
    "zstandard": Case("c.jsonl.zst", zstd.compress(GOOD), Read(["Aé"])),
    "parquet_cut": Case("p.parquet", parquet(text=["A"] * 99)[:-20], Refused(": cut off or damaged")),
    "parquet_in_name_only": Case("p.parquet", b"A\n", Refused(": format not recognised; known are")),
    "unknown_format": Case("notes.md", b"Once upon a time\n", Refused(": format not recognised; known are")),
    # Encodings
    "mark_before_lines": Case("b.jsonl", BOM + GOOD, Read(["Aé"])),
    "mark_before_object": Case("b.json", BOM + SMALL_SQUAD, Read(["One."])),
    "mark_before_array": Case("b.json", BOM + array({"text": "A"}), Read(["A"])),
    "mark_before_table": Case("b.tsv", BOM + HEAD + b"1\tA\tT\n", Read(["A"])),
    "utf16_little_marked": Case("u.jsonl", b"\xff\xfe" + GOOD.decode().encode("utf-16-le"), Refused(", line 1: looks")),
    "utf16_big_marked": Case("u.jsonl", b"\xfe\xff" + GOOD.decode().encode("utf-16-be"), Refused(", line 1: looks l")),
    "utf16_unmarked": Case("u.jsonl", GOOD.decode().encode("utf-16-le"), Refused(", line 1: looks like UTF-16")),
    "latin1_line": Case("l.jsonl", GOOD * 2 + b'{"text": "A\xe9"}\n', Refused(", line 3: not UTF-8 (byte 0xe9); save")),
    "latin1_object": Case("l.json", b'{"data": [\n{"title": "\xe9"}]}', Refused(", line 2: not UTF-8 (byte 0xe9)")),
    "latin1_array": Case("l.json", b'[\n{"text": "a"},\n{"text": "\xe9"}]', Refused(", line 3: not UTF-8 (byte 0xe9)")),
    "latin1_table": Case("l.tsv", HEAD + b"1\t\xe9\tT\n", Refused(", line 2: not UTF-8")),
    "overlong": Case("l.jsonl", b'{"text": "\xc0\xaf"}\n', Refused(", line 1: not UTF-8 (byte 0xc0)")),
    "nul_at_the_start": Case(
        "n.jsonl", b'{"text": "\0"}\n', Refused(", line 1: looks like UTF-16 or binary data; save")
    ),
    "nul_far_on": Case(
        "n.jsonl", GOOD * 9000 + b'{"text": "\0"}\n', Refused(", line 9001: holds a NUL byte; save it as")
    ),
    "nul_escaped": Case("n.jsonl", b'{"text": "a\\u0000b"}\n', Read(["a\0b"])),
    "half_surrogate": Case("s.jsonl", b'{"text": "\\ud800"}\n', Refused(", line 1: 'text' holds half of a surrogate")),
    "whole_surrogates": Case("s.jsonl", b'{"text": "\\ud83d\\ude00"}\n', Read(["\U0001f600"])),
    # Line ends
    "crlf_lines": Case("r.jsonl", b'{"text": "A"}\r\n{"text": "B"}\r\n', Read(["A", "B"])),
    "crlf_table": Case("r.tsv", b"id\ttext\ttitle\r\n1\tA\tT\r\n", Read(["A"])),
    "crlf_wikitext": Case("r.txt", b" = T = \r\n\r\nOne .\r\n", Read(["One ."])),
    "cr_lines": Case("r.jsonl", b'{"text": "A"}\r{"text": "B"}\r', Refused(", line 1: lines end in CR alone; convert")),
    "cr_table": Case("r.tsv", b"id\ttext\ttitle\r1\tA\tT\r", Refused(", line 1: lines end in CR alone; convert them")),
    "cr_array": Case("r.json", b'[\r{"text": "A"}\r]', Read(["A"])),
    "no_line_end": Case("r.jsonl", GOOD[:-1], Read(["Aé"])),
    "blank_lines": Case("r.jsonl", b"\n\n" + GOOD + b"  \n" + GOOD, Read(["Aé", "Aé"])),
    "unicode_line_ends": Case("r.jsonl", text_record("a\u2028b\u2029c\x85d"), Read(["a\u2028b\u2029c\x85d"])),
    "doc_element_cut": Case("wiki_00", DOC + b"Oslo is", Refused(", line 1: <doc> without an end: the file looks cut")),
    "doc_within_doc": Case("wiki_00", DOC + b"a\n" + DOC, Refused(", line 4: <doc> within the <doc> of line 1, which")),
    "text_after_doc": Case("wiki_00", DOC + b"a\n</doc>\nb\n", Refused(", line 5: text outside of <doc> and </doc>")),
    "doc_of_its_title_alone": Case("wiki_00", DOC + b"</doc>\n", Skipped([], {"document: empty text": 1})),
    "unicode_line_ends_in_wikitext": Case("r.txt", " = T = \na\u2028b\x85c\n".encode(), Read(["a\u2028b\x85c"])),
    "form_feed_in_a_table": Case("r.tsv", HEAD + b"1\ta\x0bb\x0cc\tT\n", Read(["a\x0bb\x0cc"])),
    # Sizes
    "ten_megabyte_line": Case("m.jsonl", lines({"text": LONG}), Read([LONG])),
    "line_beyond_the_limit": Case(
        "m.jsonl",
        GOOD + lines({"text": LONG}),
        Refused(", line 2: longer than 5 MB; cut it into several records"),
        True,
    ),
    "member_beyond_the_limit": Case(
        "m.json",
        array({"text": "A"}, {"text": LONG}),
        Refused(", line 5: a record longer than 5 MB; cut it"),
        True,
    ),
    "gzip_bomb": Case("z.jsonl.gz", gzip.compress(GOOD + BOMB), Refused(": grows to more than 100 times its"), True),
    "bzip2_bomb": Case("z.jsonl.bz2", bz2.compress(GOOD + BOMB), Refused(": grows to more than 100 times its"), True),
    "zstandard_bomb": Case("z.jsonl.zst", zstd.compress(GOOD + BOMB), Refused(": grows to more than 100 times"), True),
    "parquet_bomb": Case(
        "z.parquet", parquet(text=[" " * MB + str(n) for n in range(30)]), Refused(": grows to more"), True
    ),
    # JSON
    "lines_cut": Case("c.jsonl", GOOD + GOOD[:-4], Refused(", line 2, column 13: not valid JSON (Invalid")),
    "line_broken": Case("c.jsonl", b"{}}\n" + GOOD, Refused(", line 1, column 3: not valid JSON (Extra data); repair")),
    "object_cut": Case("c.json", SMALL_SQUAD[:-40], Refused(", line 16, column 4: not valid JSON (Expecting")),
    "object_broken": Case("c.json", b'{"data": [\n,\n{"title": 1}]}', Refused(", line 2, column 1: not valid JSON")),
    "array_cut": Case(
        "c.json",
        array({"text": "A"}, {"text": "B"})[:-9],
        Refused(", line 6: not valid JSON (Expecting value); the file looks cut off"),
    ),
    "array_not_closed": Case(
        "c.json", b'[{"text": "A"}', Refused(", line 1: not valid JSON (Expecting ',' or ']'); the f")
    ),
    "array_broken": Case(
        "c.json", b'[{"text": "A"},\n{"text" "B"}' + b" " * 99 + b"]", Refused(", line 2: not valid JS")
    ),
    "array_comma_too_many": Case("c.json", b'[{"text": "A"},\n]' + b" " * 99, Refused(", line 2: not valid JSON")),
    "array_and_more": Case(
        "c.json", b'[{"text": "A"}]\n[]', Refused(", line 2: not valid JSON (text after the array)")
    ),
    "array_of_numbers": Case("c.json", b"[1, 2]", Refused(", record 1 (line 1): a int where an object should be")),
    "line_is_a_list": Case("d.jsonl", b"[1]\n", Refused(", line 1: a list where an object should be; expected")),
    "deep": Case("d.jsonl", b'{"text": ' + b"[" * 100_000 + b"\n", Refused(", line 1: not usable JSON")),
    "nested_beside": Case("d.jsonl", b'{"text": "A", "x": ' + b"[" * 99 + b"]" * 99 + b"}\n", Read(["A"])),
    "not_a_number_beside": Case("d.jsonl", b'{"text": "A", "score": NaN}\n', Read(["A"])),
    "not_a_number": Case("d.jsonl", b'{"text": NaN}\n', Refused(", line 1: 'text' is a float, not a str; expected")),
    "endless_number": Case(
        "d.jsonl", b'{"text": "A", "id": ' + b"9" * 5000 + b"}\n", Refused(", line 1: not usable JSO")
    ),
    "key_twice": Case("d.jsonl", b'{"text": "A", "text": "B"}\n', Read(["B"])),
    # Fields
    "no_text": Case(
        "d.jsonl", GOOD + b'{"body": "x"}\n', Refused(", line 2: 'text' is missing (found: body); expected")
    ),
    "no_text_in_an_array": Case(
        "d.json", b'[{"text": "a"},\n {}]', Refused(", record 2 (line 2): 'text' is missing (fou")
    ),
    "no_text_at_all": Case("d.jsonl", b'{"body": "x"}\n', Refused(", line 1: 'text' is missing (found: body)")),
    "no_text_in_parquet": Case(
        "d.parquet", parquet(body=["x"]), Refused(", record 1: 'text' is missing (found: body)")
    ),
    "text_is_null_in_parquet": Case(
        "d.parquet", parquet(text=["A", None]), Refused(", record 2: 'text' is a NoneType")
    ),
    "text_is_a_number": Case(
        "d.jsonl", b'{"text": 1}\n', Refused(", line 1: 'text' is a int, not a str; expected {id?")
    ),
    "sentence_is_a_number": Case(
        "d.json", array({"title": "T", "text": ["a", 1]}), Refused(", record 1 (line 2): 'text 2")
    ),
    "title_is_a_list": Case(
        "d.jsonl", b'{"text": "a", "title": []}\n', Refused(", line 1: 'title' is a list, not a str")
    ),
    "title_is_null": Case("d.jsonl", b'{"text": "a", "title": null}\n', Read(["a"])),
    "empty_text": Case("d.jsonl", lines({"text": " \n"}, {"text": "B"}), Skipped(["B"], {"document: empty text": 1})),
    "id_twice": Case(
        "d.jsonl",
        lines({"id": "a", "text": "A"}, {"id": "a", "text": "B"}),
        Skipped(["A"], {"document: duplicate id": 1}),
    ),
    "text_twice": Case("d.jsonl", GOOD * 2, Read(["Aé", "Aé"])),
    "link_outside": Case(
        "d.jsonl",
        lines(
            {"date": "2025-01-01", "text": "Oslo.", "links": [[0, 4, "Oslo"], [2, 9, "x"], [3, 3, "y"], [-1, 2, "z"]]}
        ),
        Skipped(["Oslo."], {"link: not a place in the text": 3}),
    ),
    "link_of_two": Case(
        "d.jsonl",
        lines({"date": "", "text": "A", "links": [[0, 1]]}),
        Refused(", line 1: a link is not [start, end, p"),
    ),
    "squad_without_articles": Case("s.json", b'{\n"data": []}', Refused(": no articles under 'data'; expected SQuAD")),
    "squad_without_title": Case(
        "s.json", b'{"data": [{"paragraphs": []}]}', Refused(", article 1: 'title' is missing")
    ),
    "squad_without_context": Case(
        "s.json",
        b'{"data": [{"title": "A", "paragraphs": [{"context": "x"}, {"qas": []}]}]}',
        Refused(", article 1 ('A'), paragraph 2: 'context' is missing (found: qas); expected"),
    ),
    "squad_of_text": Case("s.json", b'{"data": ["A"]}', Refused(", article 1: a str where an object should be")),
    # Tables
    "table_without_header": Case(
        "p.tsv", b"1\tx\ty\n", Refused(", line 1: header ['1', 'x', 'y']; expected three col")
    ),
    "table_of_a_header": Case("p.tsv", HEAD, Read([])),
    "table_cut": Case("p.tsv", HEAD + b"1\ta\tT\n2\tb\n", Refused(", line 3: 2 columns; expected three columns")),
    "tab_in_a_column": Case("p.tsv", HEAD + b"1\ta\tb\tT\n", Refused(", line 2: 4 columns; expected three columns")),
    "tab_in_quotes": Case("p.tsv", HEAD + b'1\t"a\tb"\tT\n', Read(["a\tb"])),
    "quote_left_open": Case("p.tsv", HEAD + b'1\ta\tT\n2\t"b\tT\n3\tc\tT\n', Refused(", line 3: not readable as TSV")),
    "quote_inside": Case("p.tsv", HEAD + b'1\ta "b" c\tT\n', Read(['a "b" c'])),
    "rows_of_one_id": Case("p.tsv", HEAD + b"1\ta\tT\n1\tb\tT\n", Skipped(["a"], {"document: duplicate id": 1})),
    # Text that is unusual but right
    "right_to_left": Case("t.jsonl", text_record("\u202eשלום\u202c مرحبا"), Read(["\u202eשלום\u202c مرحبا"])),
    "combining": Case("t.jsonl", text_record("e\u0301 is not é"), Read(["e\u0301 is not é"])),
    "joined_emoji": Case("t.jsonl", text_record("👩‍👩‍👧 🏳️‍🌈"), Read(["👩‍👩‍👧 🏳️‍🌈"])),
    "zero_width": Case("t.jsonl", text_record("zero\u200bwidth\ufeff"), Read(["zero\u200bwidth\ufeff"])),
    "special_tokens": Case("t.jsonl", text_record("[MASK] [SEP] [CLS] [UNK]"), Read(["[MASK] [SEP] [CLS] [UNK]"])),
    "escaped_html": Case(
        "wiki_00", lines({"id": "1", "url": "u", "title": "A &amp; B", "text": "1 &lt; 2"}), Read(["1 < 2"])
    ),
    "damaged_zstandard": Case("z.jsonl.zst", bytes(DAMAGED_ZSTANDARD), Refused(": cut off or damaged (")),
    "date_beyond_python": Case(
        "z.parquet", parquet(text=["A"], when=pa.array([10**17], pa.timestamp("ms"))), Read(["A"])
    ),
    "date_within_a_record": Case(
        "z.parquet",
        parquet(text=["A"], other=pa.array([[10**17]], pa.list_(pa.timestamp("ms")))),
        Refused(": cut off or damaged ("),
    ),
    "long_key": Case("k.jsonl", lines({"k" * 400_000: 1}), Refused(", line 1: 'text' is missing (found: kkkk")),
    "conll_column_missing": Case("t.conll", b"A\tB-PER\nB\n", Refused(", line 2: the number of columns is 1")),
    "conll_without_tags": Case("t.conll", b"A\nB\n", Refused(", line 1: the number of columns is 1")),
}

CATASTROPHIC = "(a+)+$"
QUESTIONS = {
    "hub_squad_answers_as_a_list": Case(
        "s.jsonl",
        lines({"title": "T", "context": "One.", "question": "Who?", "answers": ["Ann"]}),
        Refused(", line 1: 'answers' is a list, not a dict; expected {id, title, context, question, answers: {text"),
    ),
    "hub_squad_answers_without_text": Case(
        "s.jsonl",
        lines({"title": "T", "context": "One.", "question": "Who?", "answers": {}}),
        Refused(", line 1, answers: 'text' is missing"),
    ),
    "no_question": Case("q.jsonl", b'{"answer": ["x"]}\n', Refused(", line 1: 'question' is missing (found: answer)")),
    "no_answer_field": Case(
        "q.jsonl", b'{"question": "x"}\n', Refused(", line 1: 'answer' is missing (found: question)")
    ),
    "answer_is_a_number": Case(
        "q.jsonl", b'{"question": "x", "answer": ["a", 3]}\n', Refused(", line 1: 'answer 2' is a i")
    ),
    "answer_is_one_text": Case("q.jsonl", b'{"question": "x", "answer": "Ann"}\n', Read([("Ann",)])),
    "id_is_a_list": Case(
        "q.jsonl", b'{"question": "x", "answer": ["a"], "id": []}\n', Refused(", line 1: 'id' is a list")
    ),
    "kind_unknown": Case(
        "q.jsonl",
        lines({"question": "x", "answer": "Ann", "answer_kind": "glob"}),
        Refused(", line 1: answer_kind 'glob'; w"),
    ),
    "answers_that_are_nothing": Case(
        "q.jsonl",
        lines({"question": "x", "answer": ["x", "?", " "]}),
        Skipped([("x",)], {"answer: normalises to nothing": 2}),
    ),
    "no_answers": Case("q.jsonl", lines({"question": "x", "answer": []}), Skipped([], {"question: no answer": 1})),
    "only_an_article": Case(
        "q.jsonl",
        lines({"question": "x", "answer": ["The"]}),
        Skipped([], {"answer: normalises to nothing": 1, "question: no answer": 1}),
    ),
    "blank_question": Case(
        "q.jsonl", lines({"question": " ", "answer": "Ann"}), Skipped([], {"question: empty text": 1})
    ),
    "question_id_twice": Case(
        "q.jsonl",
        lines({"id": 1, "question": "x", "answer": "Ann"}, {"id": "1", "question": "y", "answer": "Bob"}),
        Skipped([("Ann",)], {"question: duplicate id": 1}),
    ),
    "unanswerable": Case(
        "s.json",
        squad(id="a", question="Who?", answers=[], is_impossible=True),
        Skipped([], {"question: unanswerable": 1}),
    ),
    "squad_question_without_text": Case(
        "s.json",
        squad(id="b", answers=[]),
        Refused(", paragraph T#0, question 1: 'question' is missing (found: id, ans"),
    ),
    "invalid_pattern": Case(
        "trec.jsonl",
        lines({"question": "x", "answer": ["(a"]}),
        Skipped([("(a",)], {"answer: not a valid regular expression, kept and matches nothing": 1}),
    ),
    "catastrophic_pattern": Case(
        "trec.jsonl", lines({"question": "x", "answer": [CATASTROPHIC]}), Read([(CATASTROPHIC,)])
    ),
    "blank_pattern": Case(
        "trec.jsonl",
        lines({"question": "x", "answer": [" "]}),
        Skipped([], {"answer: normalises to nothing": 1, "question: no answer": 1}),
    ),
    "pattern_of_punctuation": Case("trec.jsonl", lines({"question": "x", "answer": [r"\?"]}), Read([(r"\?",)])),
    "pattern_with_a_tab": Case("trec.tsv", b"7\tfactoid\tWhat?\ta\tb|c\n", Read([("a\tb|c",)])),
    "trec_table_cut": Case(
        "trec.tsv", b"7\tfactoid\tWhat?\ta\n8\tfactoid\tWh", Refused(", line 2: 3 columns; expected id")
    ),
}


def tighten(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.tight:
        for module in (text_files, containers, parquet_files):
            monkeypatch.setattr(module, "MAX_LINE_MB", 5)
            monkeypatch.setattr(module, "MAX_EXPANSION", 100, raising=False)


def check(case: Case, tmp_path: Path, read: Callable[[Path, Counter[str]], list[Any]]) -> None:
    path = tmp_path / case.name
    if case.content is not None:
        path.write_bytes(case.content)
    dropped: Counter[str] = Counter()
    if isinstance(case.outcome, Refused):
        with pytest.raises(UserError) as caught:
            read(path, dropped)
        message = str(caught.value)
        assert message.removeprefix(str(path)).startswith(case.outcome.message)
        assert message.startswith(str(path))
        assert len(message) < 1100
        assert "\n" not in message
        assert "; " in message, "a remedy"
        return
    assert read(path, dropped) == case.outcome.texts
    assert dropped == (case.outcome.dropped if isinstance(case.outcome, Skipped) else {})


@pytest.mark.parametrize("case", DOCUMENTS.values(), ids=DOCUMENTS)
def test_documents(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tighten(case, monkeypatch)
    check(case, tmp_path, lambda path, dropped: [d.text for d in read_documents(path, dropped)])


@pytest.mark.parametrize("case", QUESTIONS.values(), ids=QUESTIONS)
def test_questions(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tighten(case, monkeypatch)
    check(case, tmp_path, lambda path, dropped: [q.answers for q in read_questions(path, dropped)])


def test_there_is_a_case_for_everything() -> None:
    assert len(DOCUMENTS) + len(QUESTIONS) >= 60
    outcomes = Counter(type(case.outcome) for case in (*DOCUMENTS.values(), *QUESTIONS.values()))
    assert min(outcomes[Read], outcomes[Skipped], outcomes[Refused]) >= 10


def test_a_folder_without_a_known_layout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a folder without wiki_\* or Parquet files; name the files in it"):
        list(read_documents(tmp_path))


def test_an_invalid_pattern_is_named(tmp_path: Path) -> None:
    (tmp_path / "trec.jsonl").write_bytes(lines({"id": "t1", "question": "x", "answer": ["(a"]}))
    problems: list[str] = []
    list(read_questions(tmp_path / "trec.jsonl", problems=problems))
    assert len(problems) == 1
    assert problems[0].startswith("question 't1': '(a' is not a regular expression (missing )")


def test_lines_before_a_bad_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(GOOD + b"{\n")
    documents = read_documents(tmp_path / "d.jsonl")
    assert next(documents).text == "Aé"
    with pytest.raises(UserError, match="line 2"):
        next(documents)
