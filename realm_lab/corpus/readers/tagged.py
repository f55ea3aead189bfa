"""CoNLL files as text: the tokens of a sentence with blanks between, one document each; tags are not read.

A line is a token and its tags, a blank line ends a sentence. `-DOCSTART-` lines and `# newdoc` comments begin
documents; other lines that begin with "# " are comments. Where the first column counts the tokens of each sentence
(CoNLL-U, Universal NER, WikiNEuRal), the second one is the token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from realm_lab.corpus.readers.registry import register_reader
from realm_lab.corpus.records import Document
from realm_lab.corpus.text_files import plain_name, read_lines
from realm_lab.errors import UserError

SUFFIXES = (".conll", ".conll.txt", ".conllu", ".iob", ".iob2", ".bio")
DOCUMENT_STARTS = ("-DOCSTART-", "# newdoc")


def _documents(path: Path, dropped: Counter[str]) -> Iterator[Document]:
    name = plain_name(path)
    document: list[str] = []
    sentence: list[list[str]] = []
    first = columns = 0
    is_numbered = False

    def end_sentence() -> None:
        nonlocal is_numbered, sentence
        counts = [row[0] for row in sentence if row[0].isdecimal()]  # CoNLL-U has 1-2 and 1.1 between
        if len(counts) > 1 or not document:
            consecutive = [[str(number) for number in range(start, start + len(counts))] for start in (0, 1)]
            is_numbered = columns > 2 and bool(counts) and counts in consecutive
        rows = [row for row in sentence if row[0].isdecimal()] if is_numbered else sentence
        document.extend([" ".join(row[is_numbered] for row in rows)] if rows else [])
        sentence = []

    for number, line in read_lines(path):
        begins, fields = line.startswith(DOCUMENT_STARTS), line.split("\t" if "\t" in line else None)
        if begins or not line.strip():
            end_sentence()
            if begins and document:
                yield Document(f"{name}:{first}", "", "\n".join(document), f"{name}:{first}")
                document = []
        elif not line.startswith("# "):
            columns = columns or len(fields)
            if len(fields) != columns or columns < 2:
                raise UserError(
                    f"{path}, line {number}: the number of columns is {len(fields)}, of the lines before "
                    f"{columns}: '{line.strip()[:60]}'; each line is a token and its tags"
                )
            first = first if document or sentence else number
            sentence.append(fields)
    end_sentence()
    if document:
        yield Document(f"{name}:{first}", "", "\n".join(document), f"{name}:{first}")


register_reader("conll", lambda path, head: plain_name(path).endswith(SUFFIXES), read_documents=_documents)
