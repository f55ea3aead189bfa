"""Every kind of bad input: read as it is, record skipped and counted, or refused with file and line."""

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import sys
import tempfile
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


def packed(kind: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        (Path(folder) / "in" / "a.jsonl").write_bytes(GOOD)
        return Path(shutil.make_archive(f"{folder}/a", kind, f"{folder}/in")).read_bytes()


GOOD = lines({"text": "Aé"})
BOM = b"\xef\xbb\xbf"
LONG = "x" * (10 * MB)
BOMB = (b" " * MB + b"\n") * 40
HEAD = b"id\ttext\ttitle\n"
TRIPLE = b'<a:b> <a:c> "d\\ne" .\n'
SMALL_SQUAD = squad(id="a", question="Who?", answers=[{"text": "Ann"}])
DAMAGED_ZSTANDARD = bytearray(zstd.compress(b"".join(lines({"text": f"some text {n * n}"}) for n in range(3000))))
DAMAGED_ZSTANDARD[1000:1100] = bytes(100)


def frame(exponent: int, eighths: int = 0) -> bytes:
    """Return GOOD as an uncompressed Zstandard frame; its window has 2^exponent bytes and this many eighths more."""
    return (
        zstd.compress(b"")[:4]
        + bytes([0, exponent - 10 << 3 | eighths])
        + (1 | len(GOOD) << 3).to_bytes(3, "little")
        + GOOD
    )


CATASTROPHIC = "(a+)+$"

# Each case has the file's name, its content (None: there is no such file), and the result of reading it.
# fmt: off
# Refused: the line, if it is known, and a word of the fault.
REFUSED: dict[str, tuple[Any, ...]] = {
    "missing": ("nowhere.jsonl", None, "no such file"),
    "empty": ("e.jsonl", b"", "empty"),
    "blank": ("e.json", b" \n\n", "empty"),
    "mark_alone": ("e.json", BOM, "empty"),
    "gzip_of_nothing": ("e.jsonl.gz", gzip.compress(b""), "empty"),
    "gzip_cut": ("c.jsonl.gz", gzip.compress(os.urandom(9000).hex().encode())[:-900], "cut off"),
    "gzip_damaged": ("c.jsonl.gz", gzip.compress(GOOD * 9)[:20] + b"\xff" * 40, "cut off"),
    "gzip_in_name_only": ("c.jsonl.gz", GOOD, "named .gz"),
    "bzip2_cut": ("c.jsonl.bz2", bz2.compress(GOOD * 99)[:-9], "cut off"),
    "zstandard_cut": ("c.jsonl.zst", zstd.compress(GOOD * 99)[:-3], "cut off"),
    "parquet_cut": ("p.parquet", parquet(text=["A"] * 99)[:-20], "cut off"),
    "parquet_in_name_only": ("p.parquet", b"A\n", "not recognised"),
    "wikiextractor_xml": ("wiki_00", b'<doc id="1" url="u" title="Oslo">\nOslo is.\n</doc>', "not recognised"),
    "unknown_format": ("notes.md", b"Once upon a time\n", "not recognised"),
    "zip_archive": ("corpus.zip", packed("zip"), "is a zip archive; unpack"),
    "tar_archive": ("corpus.tar.gz", packed("gztar"), "is a tar archive; unpack"),
    "xz_file": ("corpus.jsonl.xz", lzma.compress(GOOD), "is an xz file; unpack"),
    "utf16_little_marked": ("u.jsonl", b"\xff\xfe" + GOOD.decode().encode("utf-16-le"), 1, "UTF-16"),
    "utf16_big_marked": ("u.jsonl", b"\xfe\xff" + GOOD.decode().encode("utf-16-be"), 1, "UTF-16"),
    "utf16_unmarked": ("u.jsonl", GOOD.decode().encode("utf-16-le"), 1, "UTF-16"),
    "latin1_line": ("l.jsonl", GOOD * 2 + b'{"text": "A\xe9"}\n', 3, "not UTF-8"),
    "latin1_object": ("l.json", b'{"data": [\n{"title": "\xe9"}]}', 2, "not UTF-8"),
    "latin1_array": ("l.json", b'[\n{"text": "a"},\n{"text": "\xe9"}]', 3, "not UTF-8"),
    "latin1_table": ("l.tsv", HEAD + b"1\t\xe9\tT\n", 2, "not UTF-8"),
    "overlong": ("l.jsonl", b'{"text": "\xc0\xaf"}\n', 1, "not UTF-8"),
    "nul_at_the_start": ("n.jsonl", b'{"text": "\0"}\n', 1, "UTF-16"),
    "nul_far_on": ("n.jsonl", GOOD * 9000 + b'{"text": "\0"}\n', 9001, "a NUL byte"),
    "span_beyond_its_text": ("m.jsonl", lines({"text": "Oslo", "spans": [[0, 5]]}), 1, "the span [0, 5]"),
    "half_surrogate": ("s.jsonl", b'{"text": "\\ud800"}\n', 1, "'text' holds half of"),
    "cr_lines": ("r.jsonl", b'{"text": "A"}\r{"text": "B"}\r', 1, "CR alone"),
    "cr_table": ("r.tsv", b"id\ttext\ttitle\r1\tA\tT\r", 1, "CR alone"),
    "line_beyond_the_limit": ("m.jsonl", GOOD + lines({"text": LONG}), 2, "5 MB"),
    "member_beyond_the_limit": ("m.json", array({"text": "A"}, {"text": LONG}), 5, "5 MB"),
    "gzip_bomb": ("z.jsonl.gz", gzip.compress(GOOD + BOMB), "grows"),
    "bzip2_bomb": ("z.jsonl.bz2", bz2.compress(GOOD + BOMB), "grows"),
    "zstandard_bomb": ("z.jsonl.zst", zstd.compress(GOOD + BOMB), "grows"),
    "parquet_bomb": ("z.parquet", parquet(text=[" " * MB + str(n) for n in range(30)]), "grows"),
    "lines_cut": ("c.jsonl", GOOD + GOOD[:-4], 2, "column 13: not valid JSON"),
    "line_broken": ("c.jsonl", b"{}}\n" + GOOD, 1, "column 3: not valid JSON"),
    "object_cut": ("c.json", SMALL_SQUAD[:-40], 16, "column 4: not valid JSON"),
    "object_broken": ("c.json", b'{"data": [\n,\n{"title": 1}]}', 2, "column 1: not valid JSON"),
    "array_cut": ("c.json", array({"text": "A"}, {"text": "B"})[:-9], 6, "not valid JSON"),
    "array_not_closed": ("c.json", b'[{"text": "A"}', 1, "not valid JSON"),
    "array_broken": ("c.json", b'[{"text": "A"},\n{"text" "B"}' + b" " * 99 + b"]", 2, "not valid JSON"),
    "array_comma_too_many": ("c.json", b'[{"text": "A"},\n]' + b" " * 99, 2, "not valid JSON"),
    "array_and_more": ("c.json", b'[{"text": "A"}]\n[]', 2, "not valid JSON"),
    "array_of_numbers": ("c.json", b"[1, 2]", 1, "record 1: must be"),
    "line_is_a_list": ("d.jsonl", b"[1]\n", 1, "must be an"),
    "deep": ("d.jsonl", b'{"text": ' + b"[" * 100_000 + b"\n", 1, "not usable JSON"),
    "not_a_number": ("d.jsonl", b'{"text": NaN}\n', 1, "'text' must be"),
    "endless_number": ("d.jsonl", b'{"text": "A", "id": ' + b"9" * 5000 + b"}\n", 1, "not usable JSON"),
    "no_text": ("d.jsonl", GOOD + b'{"body": "x"}\n', 2, "'text' is missing"),
    "no_text_in_an_array": ("d.json", b'[{"text": "a"},\n {}]', 2, "record 2: 'text' is missing"),
    "no_text_in_parquet": ("d.parquet", parquet(body=["x"]), "record 1: 'text' is missing"),
    "text_is_null_in_parquet": ("d.parquet", parquet(text=["A", None]), "record 2: 'text' must be"),
    "text_is_a_number": ("d.jsonl", b'{"text": 1}\n', 1, "'text' must be"),
    "squad_without_articles": ("s.json", b'{\n"data": []}', "'data'"),
    "squad_without_title": ("s.json", b'{"data": [{"paragraphs": []}]}', "article 1: 'title' is missing"),
    "squad_without_context": ("s.json", b'{"data": [{"title": "A", "paragraphs": [{"context": "x"}, {"qas": []}]}]}',
        "article 1, paragraph 2: 'context'"),
    "squad_of_text": ("s.json", b'{"data": ["A"]}', "article 1: must be"),
    "table_without_header": ("p.tsv", b"1\tx\ty\n", "format 'question_table' holds no"),
    "table_cut": ("p.tsv", HEAD + b"1\ta\tT\n2\tb\n", 3, "2 columns, not 3"),
    "tab_in_a_column": ("p.tsv", HEAD + b"1\ta\tb\tT\n", 2, "4 columns, not 3"),
    "quote_left_open": ("p.tsv", HEAD + b'1\ta\tT\n2\t"b\tT\n3\tc\tT\n', 3, "not readable as TSV"),
    "damaged_zstandard": ("z.jsonl.zst", bytes(DAMAGED_ZSTANDARD), "cut off"),
    "window_beyond_the_limit": ("z.jsonl.zst", frame(31, 1), "window"),
    "date_within_a_record": ("z.parquet", parquet(text=["A"], other=pa.array([[10**17]], pa.list_(pa.timestamp("ms")))),
        "cut off"),
    "triple_cut": ("k.nt", TRIPLE + TRIPLE[:-3], ', line 2: no triple; expected <subject> <relation> <object>'),
    "triple_about_a_text": ("k.nt", b'"Oslo" <a:c> <a:d> .\n', ", line 1: no triple; expected"),
    "triple_with_a_blank_in_a_name": ("k.nt", b"<a:b c> <a:c> <a:d> .\n", ", line 1: no triple; expected"),
    "triple_with_a_wrong_escape": ("k.nt", b'<a:b> <a:c> "x\\y" .\n', ", line 1: no triple; expected"),
    "triple_with_half_a_character": ("k.nt", b'<a:b> <a:c> "\\uD800" .\n', ", line 1: the escape \\uD800, which is"),
    "triple_beyond_unicode": ("k.nt", b'<a:b> <a:c> "\\U00110000" .\n', ", line 1: the escape \\U00110000, which"),
    "triples_table_cut": ("k.tsv", b"subject\trelation\tobject\na\tb\tc\na\tb", ", line 3: 2 of 3 columns; expec"),
    "triples_table_with_nothing": ("k.tsv", b"subject\trelation\tobject\na\t\tc\n", ", line 2: 2 of 3 columns; expec"),
    "tagged_words": ("c.txt", b"-DOCSTART- O\n\nAnn B-PER\nis O\n\nIn IN O I-LOC\nOslo NNP B-NP I-LOC\n", "CoNLL"),
    "parsed_words": ("c.txt", b"# text = Ann is\n1\tAnn\tAnn\tPROPN\n2\tis\tbe\tAUX\n\n1\tBob\tBob\tPROPN\n",
        "4 columns"),
    "table_as_text": ("c.txt", b"name\tage\nAnn\t9\n", "2 columns"),
    "bytes_within_a_character": ("s.jsonl", lines({"text": "Åse", "spans": {"start": [1], "limit": [3], "type": [""]}}),
        1, "spans 1: bytes 1"),
    "bytes_beyond_the_text": ("s.jsonl", lines({"text": "Åse", "spans": [{"start": 0, "limit": 5}]}),
        1, "spans 1: bytes 0"),
    "salient_spans_without_limits": ("s.jsonl", lines({"text": "A", "spans": {"start": [0], "limit": None}}),
        1, "spans: 'limit' must be"),
    "collection_cut": ("collection.tsv", b"0\tA.\n1", 2, "1 columns"),
    "kilt_page_without_text": ("k.jsonl", lines({"wikipedia_id": "7", "wikipedia_title": "T", "text": 7}),
        1, "'text' must be"),
    "hotpot_paragraph_without_sentences": ("h.json", array({"question": "", "answer": "", "supporting_facts": [],
        "context": [["T", "text"]]}), 2, "record 1: context 1 is not"),
    "dpr_passage_without_text": ("d.json", array({"question": "q", "positive_ctxs": [{"title": "T"}]}),
        2, "record 1, positive_ctxs 1: 'text' is missing"),
    "long_key": ("k.jsonl", lines({"k" * 400_000: 1}), 1, "'text' is missing"),
}
# Read: the texts, and the counts of texts left out.
READ: dict[str, tuple[Any, ...]] = {
    "gzip_without_its_name": ("c.jsonl", gzip.compress(GOOD), ["Aé"]),
    "zstandard": ("c.jsonl.zst", zstd.compress(GOOD), ["Aé"]),
    "zstandard_after_a_skippable_frame": ("c.jsonl.zst", b"\x50\x2a\x4d\x18\x04\0\0\0" + bytes(4) + zstd.compress(GOOD),
        ["Aé"]),
    "zstandard_with_a_long_window": ("c.jsonl.zst", frame(28), ["Aé"]),
    "zstandard_with_the_longest_window": ("c.jsonl.zst", frame(31), ["Aé"]),
    "mark_before_lines": ("b.jsonl", BOM + GOOD, ["Aé"]),
    "mark_before_object": ("b.json", BOM + SMALL_SQUAD, ["One."]),
    "mark_before_array": ("b.json", BOM + array({"text": "A"}), ["A"]),
    "mark_before_table": ("b.tsv", BOM + HEAD + b"1\tA\tT\n", ["A"]),
    "whole_surrogates": ("s.jsonl", b'{"text": "\\ud83d\\ude00"}\n', ["\U0001f600"]),
    "crlf_lines": ("r.jsonl", b'{"text": "A"}\r\n{"text": "B"}\r\n', ["A", "B"]),
    "crlf_table": ("r.tsv", b"id\ttext\ttitle\r\n1\tA\tT\r\n", ["A"]),
    "crlf_wikitext": ("r.txt", b" = T = \r\n\r\nOne .\r\n", ["One ."]),
    "cr_array": ("r.json", b'[\r{"text": "A"}\r]', ["A"]),
    "no_line_end": ("r.jsonl", GOOD[:-1], ["Aé"]),
    "blank_lines": ("r.jsonl", b"\n\n" + GOOD + b"  \n" + GOOD, ["Aé", "Aé"]),
    "unicode_line_ends_in_wikitext": ("r.txt", " = T = \na\u2028b\x85c\n".encode(), ["a\u2028b\x85c"]),
    "form_feed_in_a_table": ("r.tsv", HEAD + b"1\ta\x0bb\x0cc\tT\n", ["a\x0bb\x0cc"]),
    "ten_megabyte_line": ("m.jsonl", lines({"text": LONG}), [LONG]),
    "nested_beside": ("d.jsonl", b'{"text": "A", "x": ' + b"[" * 99 + b"]" * 99 + b"}\n", ["A"]),
    "not_a_number_beside": ("d.jsonl", b'{"text": "A", "score": NaN}\n', ["A"]),
    "key_twice": ("d.jsonl", b'{"text": "A", "text": "B"}\n', ["B"]),
    "title_is_null": ("d.jsonl", b'{"text": "a", "title": null}\n', ["a"]),
    "empty_text": ("d.jsonl", lines({"text": " \n"}, {"text": "B"}), ["B"], {"document: empty text": 1}),
    "text_twice": ("d.jsonl", GOOD * 2, ["Aé", "Aé"]),
    "table_of_a_header": ("p.tsv", HEAD, []),
    "tab_in_quotes": ("p.tsv", HEAD + b'1\t"a\tb"\tT\n', ["a\tb"]),
    "quote_inside": ("p.tsv", HEAD + b'1\ta "b" c\tT\n', ['a "b" c']),
    "escaped_html": ("wiki_00", lines({"id": "1", "url": "u", "title": "A &amp; B", "text": "1 &lt; 2"}), ["1 < 2"]),
    "blank_nodes": ("k.nt", b"_:a <a:c> <a:d> .\n<a:b> <a:c> _:a.\n" + TRIPLE * 2, ["a:b | a:c | d e ."],
        {"triple: blank node": 2, "triple: duplicate": 1}),
    "text_that_ends_in_o": ("c.txt", b"Plan B-12\nO\tAnn O\nLine three.", ["Plan B-12\nO\tAnn O\nLine three."]),
    "one_line_with_a_tab": ("c.txt", b"a\tb", ["a\tb"]),
    "date_beyond_python": ("z.parquet", parquet(text=["A"], when=pa.array([10**17], pa.timestamp("ms"))), ["A"]),
}
# The same for questions, by their answers.
REFUSED_QUESTIONS: dict[str, tuple[Any, ...]] = {
    "no_question": ("q.jsonl", b'{"answer": ["x"]}\n', 1, "'question' is missing"),
    "no_answer_field": ("q.jsonl", b'{"question": "x"}\n', 1, "'answer' is missing"),
    "answer_is_a_number": ("q.jsonl", b'{"question": "x", "answer": ["a", 3]}\n', 1, "'answer 2' must be"),
    "id_is_a_list": ("q.jsonl", b'{"question": "x", "answer": ["a"], "id": []}\n', 1, "'id' must be"),
    "kind_unknown": ("q.jsonl", lines({"question": "x", "answer": "Ann", "answer_kind": "glob"}),
        1, "answer_kind 'glob'"),
    "table_of_three_columns": ("q.tsv", b"1\twho\tAnn\n", 1, "3 columns, not 2"),
    "table_without_an_answer": ("q.tsv", b"who\tAnn\nwhen\n", 2, "1 columns, not 2"),
    "commas_without_a_header": ("q.csv", b"title,body\nOslo,A city.\n", 1, "no such header"),
    "list_cut": ("q.tsv", b"who\t['Ann']\nwhen\t[1969, 'x]\n", 2, "'answer' is no list"),
    "list_of_numbers": ("q.tsv", b"who\t['Ann']\nwhen\t[1969]\n", 2, "'answer 1' must be"),
    "dpr_positives_of_text": ("d.json", array({"question": "q", "answers": [], "positive_ctxs": "T"}),
        2, "record 1: 'positive_ctxs' must be"),
    "kilt_provenance_without_a_page": ("k.jsonl", lines({"id": 1, "input": "q", "output": [{"provenance": [{}]}]}),
        1, "output 1, provenance 1: 'wikipedia_id'"),
    "hotpot_fact_of_text": ("h.json", array({"question": "q", "answer": "a", "context": [], "supporting_facts": ["T"]}),
        2, "record 1: supporting_facts 1 is not"),
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
    "qrels_of_words": ("qrels.tsv", b"query-id\tcorpus-id\tscore\nq\td\thigh\n", 2, "the relevance 'high' is"),
    "qrels_cut": ("qrels.dev.tsv", b"7\t0\t1\t1\n7\t0\n", 2, "2 columns"),
    "squad_question_without_text": ("s.json", squad(id="b", answers=[]), "paragraph T#0, question 1: 'question'"),
    "trec_table_cut": ("trec.tsv", b"7\tfactoid\tWhat?\ta\n8\tfactoid\tWh", 2, "3 columns"),
}
READ_QUESTIONS: dict[str, tuple[Any, ...]] = {
    "answer_is_one_text": ("q.jsonl", b'{"question": "x", "answer": "Ann"}\n', [("Ann",)]),
    "answer_in_brackets": ("q.jsonl", lines({"question": "x", "answer": "[Ann]"}), [("[Ann]",)]),
    "answers_that_are_nothing": ("q.jsonl", lines({"question": "x", "answer": ["x", "?", " "]}),
        [("x",)], {"answer: normalises to nothing": 2}),
    "no_answers": ("q.jsonl", lines({"question": "x", "answer": []}), [], {"question: no answer": 1}),
    "only_an_article": ("q.jsonl", lines({"question": "x", "answer": ["The"]}),
        [], {"answer: normalises to nothing": 1, "question: no answer": 1}),
    "blank_question": ("q.jsonl", lines({"question": " ", "answer": "Ann"}), [], {"question: empty text": 1}),
    "question_id_twice": (
        "q.jsonl", lines({"id": 1, "question": "x", "answer": "Ann"}, {"id": "1", "question": "y", "answer": "Bob"}),
        [("Ann",), ("Bob",)], {"question: id of several, kept under others": 2}),
    "invalid_pattern": ("trec.jsonl", lines({"question": "x", "answer": ["(a"]}),
        [("(a",)], {"answer: not a valid regular expression, kept and matches nothing": 1}),
    "catastrophic_pattern": ("trec.jsonl", lines({"question": "x", "answer": [CATASTROPHIC]}), [(CATASTROPHIC,)]),
    "blank_pattern": ("trec.jsonl", lines({"question": "x", "answer": [" "]}),
        [], {"answer: normalises to nothing": 1, "question: no answer": 1}),
    "pattern_of_punctuation": ("trec.jsonl", lines({"question": "x", "answer": [r"\?"]}), [(r"\?",)]),
    "pattern_with_a_tab": ("trec.tsv", b"7\tfactoid\tWhat?\ta\tb|c\n", [("a\tb|c",)]),
}
# fmt: on
# Read with limits of 5 MB a line and a growth of 100 times.
TIGHT = {
    "line_beyond_the_limit",
    "member_beyond_the_limit",
    "gzip_bomb",
    "bzip2_bomb",
    "zstandard_bomb",
    "parquet_bomb",
}


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


def test_lines_before_a_bad_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(GOOD + b"{\n")
    documents = read_documents(input_files(tmp_path / "d.jsonl"))
    assert next(documents).text == "Aé"
    with refused(path=tmp_path / "d.jsonl", line=2):
        next(documents)
