"""Readers of text formats: files in, `Document` and `Question` records out. `docs/data.md` lists them; most are in
`realm_lab/contrib/formats/`.

A format is recognised by the file's name and first characters, whether the file is compressed (gzip, bzip2, Zstandard)
or not. `register_shape` adds a shape of JSON or Parquet records, `register_reader` any other format.

Bad input is a UserError that names file, line (or article and paragraph) and remedy. A record that is well-formed but
of no use is left out and counted by reason in the `dropped` argument.
"""

# From the general to the special: of realm_lab's formats that match, the one registered last reads a file.
from realm_lab.engine.corpus.readers import documents, pictures, questions, squad  # noqa: F401
from realm_lab.engine.corpus.readers.counts import FileCounts, count_inputs
from realm_lab.engine.corpus.readers.inputs import InputFile, digest_input, input_files
from realm_lab.engine.corpus.readers.json_records import Record, register_shape
from realm_lab.engine.corpus.readers.registry import (
    READERS,
    Dropped,
    find_reader,
    read_documents,
    read_questions,
    register_reader,
)

__all__ = [
    "READERS", "Dropped", "FileCounts", "InputFile", "Record", "count_inputs", "digest_input", "find_reader",
    "input_files", "read_documents", "read_questions", "register_reader", "register_shape",
]  # fmt: skip
