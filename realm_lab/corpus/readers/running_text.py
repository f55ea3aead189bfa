"""Running text: WikiText's articles under " = Title = ", WikiExtractor's in <doc>, and plain text in paragraphs."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from realm_lab.corpus.readers.registry import register_reader
from realm_lab.corpus.records import Document
from realm_lab.corpus.text_files import Source, plain_name
from realm_lab.errors import UserError

_OPENING = re.compile(r'<doc id="(?P<id>[^"]*)".*? title="(?P<title>.*)">\s*$')  # a title may hold quotation marks
_CLOSING = "</doc>"
LONGEST_PARAGRAPH = 100_000  # characters: a text without blank lines is cut at line ends


def _heading(line: str) -> tuple[int, str]:
    """(level, title) of a line " = = Title = = "; level 0: no heading."""
    words = line.split()
    level = 0
    while 2 * level + 2 < len(words) and words[level] == "=" == words[-1 - level]:
        level += 1
    return level, " ".join(words[level : len(words) - level])


def _wikitext(source: Source, dropped: Counter[str]) -> Iterator[Document]:
    """An article each, a paragraph a line; headings of sections are left out."""
    title, first = "", 0
    lines: list[str] = []

    def document() -> Document:
        identity = f"{plain_name(source.path)}:{first}"
        return Document(identity, title, "\n".join(lines), identity)  # "<unk>" is the title of several

    for number, line in source.lines():
        level, heading = _heading(line)
        if level == 1:
            if first:
                yield document()
            title, lines, first = heading, [], number
        elif not level and line.strip():
            lines.append(line.strip())
            first = first or number
    if first:
        yield document()


def _wikitext_words(source: Source) -> dict[str, int]:
    """The data set's own measure: blank-separated words of the file, headings included."""
    return {"words": sum(len(line.split()) for _, line in source.lines())}


def _doc_elements(source: Source, dropped: Counter[str]) -> Iterator[Document]:
    """WikiExtractor without --json: <doc id url title>, the title, a blank line, paragraphs, </doc>."""
    opened: re.Match[str] | None = None
    first, lines = 0, list[str]()
    for number, line in source.lines():
        where = f"{source.path}, line {number}"
        opening = _OPENING.match(line)
        if opening and opened:
            raise UserError(f"{where}: <doc> within the <doc> of line {first}, which has no end; repair it")
        if opening:
            opened, first, lines = opening, number, []
        elif line.strip() == _CLOSING and opened:
            title = html.unescape(opened["title"]).strip()
            text = html.unescape("\n".join(lines)).strip()
            if title and text.split("\n", 1)[0].strip() == title:
                text = text.partition("\n")[2].strip()
            yield Document(opened["id"], title, text, title or opened["id"])
            opened = None
        elif opened:
            lines.append(line.rstrip("\r\n"))
        elif line.strip():
            raise UserError(f"{where}: text outside of <doc> and </doc>; repair or delete the line")
    if opened:
        raise UserError(f"{source.path}, line {first}: <doc> without an end: the file looks cut off; fetch it again")


def _paragraphs(source: Source, dropped: Counter[str]) -> Iterator[Document]:
    """Paragraphs are set apart by blank lines; those of one file are one article, without a title."""
    name = plain_name(source.path)
    lines: list[str] = []
    first = size = 0
    for number, line in source.lines():
        is_blank = not line.strip()
        if lines and (is_blank or size > LONGEST_PARAGRAPH):
            yield Document(f"{name}:{first}", "", "\n".join(lines), name)
            lines, size = [], 0
        if not is_blank:
            first = first if lines else number
            lines.append(line.rstrip("\r\n"))
            size += len(line)
    if lines:
        yield Document(f"{name}:{first}", "", "\n".join(lines), name)


def _is_wikitext(path: Path, head: str) -> bool:
    first = next((line for line in head.split("\n") if line.strip()), "")
    return _heading(first)[0] == 1


def register() -> None:
    """Register the formats of this file."""
    register_reader(
        "plain_text",
        lambda path, head: plain_name(path).endswith(".txt") and not head.lstrip().startswith(("{", "[")),
        read_documents=_paragraphs,
    )
    register_reader(
        "wikiextractor_doc",
        lambda path, head: _OPENING.match(head.lstrip().split("\n", 1)[0]) is not None,
        read_documents=_doc_elements,
    )
    register_reader("wikitext", _is_wikitext, read_documents=_wikitext, counts=_wikitext_words)
