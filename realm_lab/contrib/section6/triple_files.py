"""Triples: N-Triples (the W3C's lines of RDF), and tables under a header. The triples of a subject are a document.

A document is made of consecutive lines with the same subject: sort a file by subject first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from realm_lab.contrib import formats  # noqa: F401  # registered first, since its tables are more general
from realm_lab.engine.corpus.readers.inputs import InputFile
from realm_lab.engine.corpus.readers.registry import Dropped, register_reader
from realm_lab.engine.corpus.readers.squad import readable_title
from realm_lab.engine.corpus.records import Document
from realm_lab.engine.corpus.text_files import plain_name, read_lines
from realm_lab.errors import UserError

HEADERS = ("subject\trelation\tobject", "subject\tpredicate\tobject")
LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
_HEX = r"\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}"
_IRI = rf'<((?:[^\x00-\x20<>"{{}}|^`\\]|{_HEX})*)>'
_LITERAL = rf'"((?:[^"\\\r\n]|\\[tbnrf"\'\\]|{_HEX})*)"(?:@([a-zA-Z]+(?:-[a-zA-Z0-9]+)*)|\^\^{_IRI})?'
_BLANK = r"(_:\w[\w.\-]*(?<!\.))"
_LINE = re.compile(
    rf"\s*(?:{_IRI}|{_BLANK})\s*{_IRI}\s*(?:{_IRI}|{_BLANK}|{_LITERAL})\s*\.\s*(?:#.*)?", re.ASCII | re.DOTALL
)
_ESCAPE = re.compile(rf"{_HEX}|\\.")
_CONTROLS = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f"}


class _Triple(NamedTuple):
    """A line of N-Triples; a blank node is None."""

    number: int
    subject: str | None
    relation: str
    iri: str | None  # the object, if it is an IRI
    literal: str | None  # the object, if it is a literal
    language: str  # of the literal


class _Named(NamedTuple):
    """A triple with names in place of IRIs."""

    number: int  # of its line
    identity: str  # of its subject
    subject: str
    relation: str
    value: str


def _n_triples(file: InputFile, dropped: Dropped) -> Iterator[Document]:
    """Read N-Triples with names in place of IRIs: a label (English if possible), or the end of the IRI. Labels
    themselves are left out."""
    labels: dict[str, str] = {}
    for triple in _lines(file.path):
        is_better = triple.language.partition("-")[0] == "en" or triple.subject not in labels
        if triple.relation == LABEL and triple.subject and triple.literal and is_better:
            labels[triple.subject] = triple.literal

    def named(iri: str) -> str:
        return " ".join(labels.get(iri, _readable(iri)).split())

    def found() -> Iterator[_Named]:
        for number, subject, relation, iri, literal, _ in _lines(file.path):
            value = named(iri) if iri is not None else literal
            if subject is None or value is None:
                dropped.leave_out("triple: blank node", f"{file.name}:{number}")
            elif relation != LABEL:
                yield _Named(number, subject, named(subject), named(relation), value)

    return _documents(file, found(), dropped)


def _lines(path: Path) -> Iterator[_Triple]:
    for number, line in read_lines(path):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if not found:
            remedy = 'expected <subject> <relation> <object> . or "text" as object (N-Triples), or the file is cut off'
            raise UserError("no triple", remedy, path=path, line=number)
        try:
            subject, _, relation, iri, _, literal = (
                part and _ESCAPE.sub(_character, part) for part in found.groups()[:6]
            )
        except ValueError as error:
            raise UserError(f"{error}, which is no character", "repair the text", path=path, line=number) from None
        yield _Triple(number, subject, relation, iri, literal, found[7] or "")


def _character(escape: re.Match[str]) -> str:
    code = escape[0][1:]
    if code[0] not in "uU":
        return _CONTROLS.get(code, code)
    number = int(code[1:], 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise ValueError(f"the escape {escape[0]}")
    return chr(number)


def _readable(iri: str) -> str:
    """Return the part after the last slash or hash, or all of it."""
    return readable_title(re.split(r"[/#]", iri.rstrip("/#"))[-1]) or iri


def _table(file: InputFile, dropped: Dropped) -> Iterator[Document]:
    """Read an unquoted table under the header subject, relation (or predicate), object."""

    def found() -> Iterator[_Named]:
        for number, line in read_lines(file.path):
            columns = [column.strip() for column in line.rstrip("\r\n").split("\t")]
            if number == 1 or columns == [""]:
                continue
            if len(columns) != 3 or not all(columns):
                remedy = "expected subject, relation, object, or the file is cut off"
                raise UserError(f"{sum(map(bool, columns))} of 3 columns", remedy, path=file.path, line=number)
            yield _Named(number, columns[0], *columns)

    return _documents(file, found(), dropped)


def _documents(file: InputFile, found: Iterable[_Named], dropped: Dropped) -> Iterator[Document]:
    """Yield a document for neighbouring triples of one subject, with a line for each triple."""
    for _, triples in groupby(found, key=lambda triple: triple.identity):
        rows = list(triples)
        subject = rows[0].subject
        lines: dict[str, None] = {}
        for row in rows:
            line = f"{subject} | {row.relation} | {' '.join(row.value.split())} ."
            if line in lines:
                dropped.leave_out("triple: duplicate", f"{file.name}:{row.number}")
            lines[line] = None
        yield Document(f"{file.name}:{rows[0].number}", subject, "\n".join(lines), subject, "triple")


register_reader("n_triples", lambda path, head: plain_name(path).endswith(".nt"), read_documents=_n_triples)
register_reader("triples_table", lambda path, head: head.lower().startswith(HEADERS), read_documents=_table)
