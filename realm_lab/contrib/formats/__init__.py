"""Formats of the field: tables, Wikipedia, data sets of questions; an entry point in pyproject.toml.

The core reads plain text, SQuAD, pictures, and JSON or Parquet records of texts and of questions.
"""

# From the general to the special: if several formats match a file, the one registered last reads it.
from realm_lab.contrib.formats import questions, questions_with_passages, swapped, tables, texts, trec  # noqa: F401
