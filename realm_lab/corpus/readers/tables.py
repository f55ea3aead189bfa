"""Tab-separated files: DPR's psgs_w100.tsv (quoted as CSV), and CuratedTREC as its authors distribute it (unquoted)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from realm_lab.corpus.readers.inputs import InputFile
from realm_lab.corpus.readers.registry import Dropped, register_reader
from realm_lab.corpus.records import Document, Question
from realm_lab.corpus.text_files import MAX_LINE_MB, MEGABYTE, plain_name, read_lines
from realm_lab.errors import UserError

DPR_HEADER = ["id", "text", "title"]
TREC_COLUMNS = 4


def _passages(file: InputFile, dropped: Dropped) -> Iterator[Document]:
    path = file.path
    csv.field_size_limit(MAX_LINE_MB * MEGABYTE)  # a quote without its end would read all the rest
    rows = csv.reader((line for _, line in read_lines(path)), delimiter="\t", strict=True)
    remedy = "expected three columns: id, text, title (psgs_w100.tsv of DPR)"
    start = 1
    try:
        header = next(rows)
        if header[:3] != DPR_HEADER:
            raise UserError(f"{path}, line 1: header {str(header)[:80]}; {remedy}")
        start = rows.line_num + 1
        for row in rows:
            if len(row) != 3:
                raise UserError(f"{path}, line {start}: {len(row)} columns; {remedy}, or the file is cut off")
            identity, text, title = row
            yield Document(identity, title.strip(), text, title.strip() or identity)
            start = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {start}: not readable as TSV ({error}); close its quotes; {remedy}") from None


def _trec_questions(file: InputFile, dropped: Dropped) -> Iterator[Question]:
    """id, type, question, pattern. A tab further on belongs to the pattern (the line of question 462 has one)."""
    for number, line in read_lines(file.path):
        if not line.strip():
            continue
        columns = line.rstrip("\r\n").split("\t", TREC_COLUMNS - 1)
        if len(columns) < TREC_COLUMNS:
            raise UserError(
                f"{file.path}, line {number}: {len(columns)} columns; expected id, type, question, pattern "
                "(CuratedTREC), or the file is cut off"
            )
        identity, _, question, pattern = columns
        yield Question(identity, question, (pattern,), None, "regex")


def _is_trec(path: Path, head: str) -> bool:
    first = head.split("\n", 1)[0].split("\t")
    return len(first) >= TREC_COLUMNS and first[0].isdecimal() and not head.startswith(("{", "["))


register_reader(
    "dpr_passages",
    lambda path, head: plain_name(path).endswith(".tsv") or head.startswith("\t".join(DPR_HEADER)),
    read_documents=_passages,
)
register_reader("curated_trec_table", _is_trec, read_questions=_trec_questions)
