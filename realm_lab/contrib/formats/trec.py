"""Judged relevance as TREC writes it: qrels of BEIR folders and of MS MARCO, with their queries; MS MARCO's collection.

A file of judgements is read as the questions that it judges; their texts come from a file next to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from realm_lab.engine.corpus.readers.inputs import QRELS as QRELS_FOLDER
from realm_lab.engine.corpus.readers.inputs import InputFile, queries_of
from realm_lab.engine.corpus.readers.json_records import LINE_SUFFIXES, records
from realm_lab.engine.corpus.readers.registry import Dropped, register_reader
from realm_lab.engine.corpus.records import Document, Question
from realm_lab.engine.corpus.text_files import plain_name, read_lines
from realm_lab.errors import UserError

BEIR_HEADER = ["query-id", "corpus-id", "score"]
COLLECTION = (
    "expected the columns id, text (collection.tsv), or id, url, title, body (msmarco-docs.tsv), without a header"
)
QRELS = (
    "expected the columns query, 0, document, relevance (TREC), or query-id, corpus-id, score under this header (BEIR)"
)
QUERIES = "expected {_id, text}, or the columns id, text"
_PASSAGE, _DOCUMENT = re.compile(r"\d+\t[^\t]+"), re.compile(r"D\d+\t[^\t]*\t[^\t]*\t[^\t]*")
_TREC = re.compile(r"\S+\s+(\S+)\s+\S+\s+-?\d+(?:\.0*)?")


def _rows(path: Path, columns: tuple[int, ...], remedy: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, columns) of an unquoted table."""
    for number, line in read_lines(path):
        row = line.rstrip("\r\n").split("\t")
        if row == [""]:
            continue
        if len(row) not in columns:
            raise UserError(f"{len(row)} columns", f"{remedy}, or the file is cut off", path=path, line=number)
        yield number, row


def _collection(file: InputFile, dropped: Dropped) -> Iterator[Document]:
    for _, row in _rows(file.path, (2, 4), COLLECTION):
        identity, title = row[0], row[2].strip() if len(row) == 4 else ""
        yield Document(identity, title, row[-1], title or identity)


def judgements(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """Yield (line, query, document, relevance)."""
    has_header = False
    for number, line in read_lines(path):
        row = line.split("\t" if has_header else None)
        if number == 1 and row == BEIR_HEADER:
            has_header = True
        elif line.strip():
            if len(row) != (3 if has_header else 4):
                raise UserError(f"{len(row)} columns", f"{QRELS}, or the file is cut off", path=path, line=number)
            try:
                yield number, row[0], row[-2], _grade(row[-1])
            except ValueError:
                raise UserError(
                    f"the relevance '{row[-1].strip()}' is no whole number", QRELS, path=path, line=number
                ) from None


def _grade(text: str) -> int:
    """Read a grade, which pandas may write as 1.0. ValueError: it is no whole number."""
    whole, _, rest = text.strip().partition(".")
    if rest.strip("0"):
        raise ValueError
    return int(whole)


def _texts(path: Path, dropped: Dropped) -> Iterator[tuple[str, str]]:
    """Yield (id, text) of queries, JSON lines or a table."""
    if plain_name(path).endswith(LINE_SUFFIXES):
        for record in records(InputFile(path, plain_name(path), str(path)), QUERIES, dropped):
            yield record.given_id("_id", "id") or record.field("_id", str), record.field("text", str)
    else:
        for _, (identity, text) in _rows(path, (2,), QUERIES):
            yield identity, text


def _questions(file: InputFile, dropped: Dropped) -> Iterator[Question]:
    judged: dict[str, dict[str, int]] = {}
    lines: dict[str, int] = {}
    for line, query, document, relevance in judgements(file.path):
        judged.setdefault(query, {})[document] = relevance
        lines.setdefault(query, line)
    queries = queries_of(file.path)
    for identity, text in _texts(queries, dropped):
        if identity in judged:
            yield Question(identity, text, (), None, judged=tuple(judged.pop(identity).items()))
    for query in judged:
        problem, remedy = f"the query '{query[:60]}' is not in {queries}", "fetch both files of one version"
        raise UserError(problem, remedy, path=file.path, line=lines[query])


def _line_of(path: Path, document: str) -> int:
    return next(line for line, _, judged, _ in judgements(path) if judged == document)


def _is_collection(path: Path, head: str) -> bool:
    first = head.split("\n", 1)[0].rstrip("\r")
    return plain_name(path).endswith(".tsv") and bool(_PASSAGE.fullmatch(first) or _DOCUMENT.fullmatch(first))


def is_qrels(path: Path, head: str) -> bool:
    """Recognise BEIR's header, or TREC's columns if the file or its folder has a name of qrels, or the second column is
    0 or Q0."""
    first = head.split("\n", 1)[0]
    found = _TREC.fullmatch(first.strip())
    is_named = "qrels" in plain_name(path) or path.parent.name == QRELS_FOLDER
    return first.split() == BEIR_HEADER or (found is not None and (is_named or found[1] in ("0", "Q0")))


register_reader("ms_marco", _is_collection, read_documents=_collection)
register_reader("qrels", is_qrels, read_questions=_questions, judged_at=_line_of)
