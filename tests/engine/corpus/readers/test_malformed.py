"""Every kind of bad input: read as it is, record skipped and counted, or refused with file and line."""

import gzip
import io
import json
import lzma
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from realm_lab.engine.corpus import text_files
from realm_lab.engine.corpus.readers import Dropped, input_files, json_records, read_documents, read_questions
from realm_lab.engine.corpus.readers import parquet as parquet_files
from tests.factories.errors import refused

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MB = 1 << 20


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def array(*records: Any) -> bytes:
    return json.dumps(list(records), indent=1).encode()


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    return sink.getvalue()


def squad(**item: Any) -> bytes:
    paragraph = {"context": "One.", "qas": [item]}
    return json.dumps({"data": [{"title": "T", "paragraphs": [paragraph]}]}, indent=1).encode()


GOOD = lines({"text": "Aé"})
BOM = b"\xef\xbb\xbf"
LONG = "x" * (10 * MB)
BOMB = (b" " * MB + b"\n") * 40
HEAD = b"id\ttext\ttitle\n"
TRIPLE = b'<a:b> <a:c> "d\\ne" .\n'
SMALL_SQUAD = squad(id="a", question="Who?", answers=[{"text": "Ann"}])
# An uncompressed Zstandard frame with a window of 2^31 bytes.
LONGEST_WINDOW = zstd.compress(b"")[:4] + bytes([0, 21 << 3]) + (1 | len(GOOD) << 3).to_bytes(3, "little") + GOOD
CATASTROPHIC = "(a+)+$"

# Each case has the file's name, its content (None: there is no such file), and the result of reading it.
# fmt: off
# Refused: the line, if it is known, and a word of the fault.
REFUSED: dict[str, tuple[Any, ...]] = {
    "missing": ("nowhere.jsonl", None, "no such file"),
    "empty": ("e.jsonl", b"", "empty"),
    "mark_alone": ("e.json", BOM, "empty"),
    "gzip_cut": ("c.jsonl.gz", gzip.compress(os.urandom(9000).hex().encode())[:-900], "cut off"),
    "gzip_in_name_only": ("c.jsonl.gz", GOOD, "named .gz"),
    "zstandard_cut": ("c.jsonl.zst", zstd.compress(GOOD * 99)[:-3], "cut off"),
    "parquet_cut": ("p.parquet", parquet(text=["A"] * 99)[:-20], "cut off"),
    "unknown_format": ("notes.md", b"Once upon a time\n", "not recognised"),
    "zip_archive": ("corpus.zip", b"PK\x03\x04" + bytes(99), "is a zip archive; unpack"),
    "tar_archive": ("corpus.tar.gz", gzip.compress(b"a.jsonl".ljust(257, b"\0") + b"ustar"), "is a tar archive"),
    "xz_file": ("corpus.jsonl.xz", lzma.compress(GOOD), "is an xz file; unpack"),
    "latin1_line": ("l.jsonl", GOOD * 2 + b'{"text": "A\xe9"}\n', 3, "not UTF-8"),
    "latin1_object": ("l.json", b'{"data": [\n{"title": "\xe9"}]}', 2, "not UTF-8"),
    "nul_at_the_start": ("n.jsonl", b'{"text": "\0"}\n', 1, "UTF-16"),
    "nul_far_on": ("n.jsonl", GOOD * 9000 + b'{"text": "\0"}\n', 9001, "a NUL byte"),
    "span_beyond_its_text": ("m.jsonl", lines({"text": "Oslo", "spans": [[0, 5]]}), 1, "the span [0, 5]"),
    "half_surrogate": ("s.jsonl", b'{"text": "\\ud800"}\n', 1, "'text' holds half of"),
    "cr_lines": ("r.jsonl", b'{"text": "A"}\r{"text": "B"}\r', 1, "CR alone"),
    "line_beyond_the_limit": ("m.jsonl", GOOD + lines({"text": LONG}), 2, "5 MB"),
    "member_beyond_the_limit": ("m.json", array({"text": "A"}, {"text": LONG}), 5, "5 MB"),
    "gzip_bomb": ("z.jsonl.gz", gzip.compress(GOOD + BOMB), "grows"),
    "parquet_bomb": ("z.parquet", parquet(text=[" " * MB + str(n) for n in range(30)]), "grows"),
    "lines_cut": ("c.jsonl", GOOD + GOOD[:-4], 2, "column 13: not valid JSON"),
    "object_cut": ("c.json", SMALL_SQUAD[:-40], 16, "column 4: not valid JSON"),
    "array_cut": ("c.json", array({"text": "A"}, {"text": "B"})[:-9], 6, "not valid JSON"),
    "array_not_closed": ("c.json", b'[{"text": "A"}', 1, "not valid JSON"),
    "array_and_more": ("c.json", b'[{"text": "A"}]\n[]', 2, "not valid JSON"),
    "array_of_numbers": ("c.json", b"[1, 2]", 1, "record 1: must be"),
    "line_is_a_list": ("d.jsonl", b"[1]\n", 1, "must be an"),
    "deep": ("d.jsonl", b'{"text": ' + b"[" * 100_000 + b"\n", 1, "not usable JSON"),
    "endless_number": ("d.jsonl", b'{"text": "A", "id": ' + b"9" * 5000 + b"}\n", 1, "not usable JSON"),
    "no_text": ("d.jsonl", GOOD + b'{"body": "x"}\n', 2, "'text' is missing"),
    "text_is_a_number": ("d.jsonl", b'{"text": 1}\n', 1, "'text' must be"),
    "squad_without_articles": ("s.json", b'{\n"data": []}', "'data'"),
    "squad_without_title": ("s.json", b'{"data": [{"paragraphs": []}]}', "article 1: 'title' is missing"),
    "table_without_header": ("p.tsv", b"1\tx\ty\n", "format 'question_table' holds no"),
    "table_cut": ("p.tsv", HEAD + b"1\ta\tT\n2\tb\n", 3, "2 columns, not 3"),
    "quote_left_open": ("p.tsv", HEAD + b'1\ta\tT\n2\t"b\tT\n3\tc\tT\n', 3, "not readable as TSV"),
    "date_within_a_record": ("z.parquet", parquet(text=["A"], other=pa.array([[10**17]], pa.list_(pa.timestamp("ms")))),
        "cut off"),
    "triple_cut": ("k.nt", TRIPLE + TRIPLE[:-3], 2, 'no triple; expected <subject> <relation> <object>'),
    "triple_with_a_wrong_escape": ("k.nt", b'<a:b> <a:c> "x\\y" .\n', 1, "no triple; expected"),
    "triple_with_half_a_character": ("k.nt", b'<a:b> <a:c> "\\uD800" .\n', 1, "the escape \\uD800, which is"),
    "triples_table_cut": ("k.tsv", b"subject\trelation\tobject\na\tb\tc\na\tb", 3, "2 of 3 columns; expec"),
    "tagged_words": ("c.txt", b"-DOCSTART- O\n\nAnn B-PER\nis O\n\nIn IN O I-LOC\nOslo NNP B-NP I-LOC\n", "CoNLL"),
    "parsed_words": ("c.txt", b"# text = Ann is\n1\tAnn\tAnn\tPROPN\n2\tis\tbe\tAUX\n\n1\tBob\tBob\tPROPN\n",
        "4 columns"),
    "table_as_text": ("c.txt", b"name\tage\nAnn\t9\n", "2 columns"),
    "bytes_within_a_character": ("s.jsonl", lines({"text": "Åse", "spans": {"start": [1], "limit": [3], "type": [""]}}),
        1, "spans 1: bytes 1"),
    "collection_cut": ("collection.tsv", b"0\tA.\n1", 2, "1 columns"),
    "hotpot_paragraph_without_sentences": ("h.json", array({"question": "", "answer": "", "supporting_facts": [],
        "context": [["T", "text"]]}), 2, "record 1: context 1 is not"),
}
# Read: the texts, and the counts of texts left out.
READ: dict[str, tuple[Any, ...]] = {
    "gzip_without_its_name": ("c.jsonl", gzip.compress(GOOD), ["Aé"]),
    "zstandard": ("c.jsonl.zst", zstd.compress(GOOD), ["Aé"]),
    "zstandard_with_the_longest_window": ("c.jsonl.zst", LONGEST_WINDOW, ["Aé"]),
    "mark_before_lines": ("b.jsonl", BOM + GOOD, ["Aé"]),
    "mark_before_object": ("b.json", BOM + SMALL_SQUAD, ["One."]),
    "crlf_table": ("r.tsv", b"id\ttext\ttitle\r\n1\tA\tT\r\n", ["A"]),
    "crlf_wikitext": ("r.txt", b" = T = \r\n\r\nOne .\r\n", ["One ."]),
    "blank_lines": ("r.jsonl", b"\n\n" + GOOD + b"  \n" + GOOD, ["Aé", "Aé"]),
    "unicode_line_ends_in_wikitext": ("r.txt", " = T = \na\u2028b\x85c\n".encode(), ["a\u2028b\x85c"]),
    "form_feed_in_a_table": ("r.tsv", HEAD + b"1\ta\x0bb\x0cc\tT\n", ["a\x0bb\x0cc"]),
    "ten_megabyte_line": ("m.jsonl", lines({"text": LONG}), [LONG]),
    "text_twice": ("d.jsonl", GOOD * 2, ["Aé", "Aé"]),
    "tab_in_quotes": ("p.tsv", HEAD + b'1\t"a\tb"\tT\n', ["a\tb"]),
    "quote_inside": ("p.tsv", HEAD + b'1\ta "b" c\tT\n', ['a "b" c']),
    "blank_nodes": ("k.nt", b"_:a <a:c> <a:d> .\n<a:b> <a:c> _:a.\n" + TRIPLE * 2, ["a:b | a:c | d e ."],
        {"triple: blank node": 2, "triple: duplicate": 1}),
    "text_that_ends_in_o": ("c.txt", b"Plan B-12\nO\tAnn O\nLine three.", ["Plan B-12\nO\tAnn O\nLine three."]),
    "date_beyond_python": ("z.parquet", parquet(text=["A"], when=pa.array([10**17], pa.timestamp("ms"))), ["A"]),
}
# The same for questions, by their answers.
REFUSED_QUESTIONS: dict[str, tuple[Any, ...]] = {
    "no_question": ("q.jsonl", b'{"answer": ["x"]}\n', 1, "'question' is missing"),
    "answer_is_a_number": ("q.jsonl", b'{"question": "x", "answer": ["a", 3]}\n', 1, "'answer 2' must be"),
    "kind_unknown": ("q.jsonl", lines({"question": "x", "answer": "Ann", "answer_kind": "glob"}),
        1, "answer_kind 'glob'"),
    "table_without_an_answer": ("q.tsv", b"who\tAnn\nwhen\n", 2, "1 columns, not 2"),
    "commas_without_a_header": ("q.csv", b"title,body\nOslo,A city.\n", 1, "no such header"),
    "list_cut": ("q.tsv", b"who\t['Ann']\nwhen\t[1969, 'x]\n", 2, "'answer' is no list"),
    "dpr_positives_of_text": ("d.json", array({"question": "q", "answers": [], "positive_ctxs": "T"}),
        2, "record 1: 'positive_ctxs' must be"),
    "kilt_provenance_without_a_page": ("k.jsonl", lines({"id": 1, "input": "q", "output": [{"provenance": [{}]}]}),
        1, "output 1, provenance 1: 'wikipedia_id'"),
    "nq_answer_beyond_the_text": ("n.jsonl", lines({"example_id": 1, "question_text": "q", "document_url": "u",
        "document_text": "A b", "annotations": [{"short_answers": [{"start_token": 1, "end_token": 3}]}]}),
        1, "annotations 1, short_answers 1: tokens"),
    "nq_without_a_url": ("n.jsonl", lines({"example_id": 1, "question_text": "q", "document_text": "A",
        "annotations": []}), 1, "'document_url' is missing"),
    "trivia_without_aliases": ("t.json", b'{"Data": [{"Question": "q", "QuestionId": "1", "Answer": {"Value": "a"}}]}',
        "Data 1, Answer: 'Aliases' is"),
    "qrels_without_queries": ("qrels.tsv", b"query-id\tcorpus-id\tscore\nq\td\t1\n", "queries"),
    "qrels_of_halves": ("qrels.tsv", b"query-id\tcorpus-id\tscore\nq\td\t1.5\n", 2, "the relevance '1.5' is"),
    "list_written_as_text": ("q.jsonl", lines({"question": "q", "answer": "['Ann', 'Bob']"}), 1, "is a list written"),
    "qrels_cut": ("qrels.dev.tsv", b"7\t0\t1\t1\n7\t0\n", 2, "2 columns"),
    "trec_table_cut": ("trec.tsv", b"7\tfactoid\tWhat?\ta\n8\tfactoid\tWh", 2, "3 columns"),
}
READ_QUESTIONS: dict[str, tuple[Any, ...]] = {
    "answer_is_one_text": ("q.jsonl", b'{"question": "x", "answer": "Ann"}\n', [("Ann",)]),
    "answers_that_are_nothing": ("q.jsonl", lines({"question": "x", "answer": ["x", "?", " "]}),
        [("x",)], {"answer: normalises to nothing": 2}),
    "no_answers": ("q.jsonl", lines({"question": "x", "answer": []}), [], {"question: no answer": 1}),
    "blank_question": ("q.jsonl", lines({"question": " ", "answer": "Ann"}), [], {"question: empty text": 1}),
    "question_id_twice": (
        "q.jsonl", lines({"id": 1, "question": "x", "answer": "Ann"}, {"id": "1", "question": "y", "answer": "Bob"}),
        [("Ann",), ("Bob",)], {"question: id of several, kept under others": 2}),
    "invalid_pattern": ("trec.jsonl", lines({"question": "x", "answer": ["(a"]}),
        [("(a",)], {"answer: not a valid regular expression, kept and matches nothing": 1}),
    "catastrophic_pattern": ("trec.jsonl", lines({"question": "x", "answer": [CATASTROPHIC]}), [(CATASTROPHIC,)]),
    "pattern_with_a_tab": ("trec.tsv", b"7\tfactoid\tWhat?\ta\tb|c\n", [("a\tb|c",)]),
}
# fmt: on
# Read with limits of 5 MB a line and a growth of 100 times.
TIGHT = {"line_beyond_the_limit", "member_beyond_the_limit", "gzip_bomb", "parquet_bomb"}


def texts(path: Path, dropped: Dropped) -> list[Any]:
    return [document.text for document in read_documents(input_files(path), dropped)]


def answers(path: Path, dropped: Dropped) -> list[Any]:
    return [question.answers for question in read_questions(input_files(path), dropped)]


@pytest.mark.parametrize("case", [*REFUSED, *REFUSED_QUESTIONS])
def test_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (text_files, json_records, parquet_files) if case in TIGHT else ():
        monkeypatch.setattr(module, "MAX_LINE_MB", 5, raising=False)
        monkeypatch.setattr(module, "MAX_EXPANSION", 100, raising=False)
    name, content, *line, word = (REFUSED | REFUSED_QUESTIONS)[case]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with refused(line=line[0] if line else None) as caught:
        (texts if case in REFUSED else answers)(path, Dropped())
    before, _, message = str(caught.value).partition(str(path))
    assert (before, word in message, len(message) < 1100) == ("", True, True), message
    assert "; " in message, "a remedy"


@pytest.mark.parametrize("case", [*READ, *READ_QUESTIONS])
def test_read(case: str, tmp_path: Path) -> None:
    name, content, expected, *counted = (READ | READ_QUESTIONS)[case]
    (tmp_path / name).write_bytes(content)
    dropped = Dropped()
    assert (texts if case in READ else answers)(tmp_path / name, dropped) == expected
    assert [dropped] == (counted or [{}])
