"""CoNLL files as a format of the registry: they hold neither documents nor questions, but are counted."""

from __future__ import annotations

from pathlib import Path

from realm_lab.corpus.readers.registry import register_reader
from realm_lab.corpus.text_files import Source, plain_name

SUFFIXES = (".conll", ".conll.txt", ".conllu", ".iob", ".iob2", ".bio")


def _count(source: Source) -> dict[str, int]:
    from realm_lab.corpus.conll import read_conll

    file = read_conll(source.path)
    entities = sum(len(sentence.entities) for sentence in file.sentences)
    return {"sentences": len(file.sentences), "tokens": file.tokens, "entities": entities, **file.repaired}


def register() -> None:
    """Register the formats of this file."""
    register_reader("conll", lambda path, head: plain_name(Path(path)).endswith(SUFFIXES), counts=_count)
