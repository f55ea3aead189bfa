"""Readers of the formats of the field: files in, `Document` and `Question` records out. `docs/data.md` lists them.

A format is recognised by the file's name and first characters, whether the file is compressed (gzip, bzip2, Zstandard)
or not. `register_shape` adds a shape of JSON or Parquet records, `register_reader` any other format.

Bad input is a UserError that names file, line (or article and paragraph) and remedy. A record that is well-formed but
of no use is left out and counted by reason in the `dropped` argument.
"""

from realm_lab.corpus.readers import questions, running_text, squad, tables, tagged, texts, unknown, updates
from realm_lab.corpus.readers.containers import Record, register_shape
from realm_lab.corpus.readers.counts import FileCounts, count_input
from realm_lab.corpus.readers.data_sets import digest_input, files_of
from realm_lab.corpus.readers.registry import (
    DROPPED_DUPLICATE_DOCUMENT,
    DROPPED_DUPLICATE_QUESTION,
    DROPPED_EMPTY_ANSWER,
    DROPPED_EMPTY_QUESTION,
    DROPPED_EMPTY_TEXT,
    DROPPED_NO_ANSWER,
    INVALID_PATTERN,
    READERS,
    Reader,
    find_reader,
    read_documents,
    read_questions,
    register_reader,
)
from realm_lab.corpus.readers.squad import DROPPED_UNANSWERABLE, readable_title
from realm_lab.corpus.readers.texts import DROPPED_LINK

# From the general to the special: of the formats that match, the one registered last reads a file.
for _family in (unknown, running_text, tables, texts, questions, updates, squad, tagged):
    _family.register()

__all__ = [
    "DROPPED_DUPLICATE_DOCUMENT",
    "DROPPED_DUPLICATE_QUESTION",
    "DROPPED_EMPTY_ANSWER",
    "DROPPED_EMPTY_QUESTION",
    "DROPPED_EMPTY_TEXT",
    "DROPPED_LINK",
    "DROPPED_NO_ANSWER",
    "DROPPED_UNANSWERABLE",
    "INVALID_PATTERN",
    "READERS",
    "FileCounts",
    "Reader",
    "Record",
    "count_input",
    "digest_input",
    "files_of",
    "find_reader",
    "read_documents",
    "read_questions",
    "readable_title",
    "register_reader",
    "register_shape",
]
