"""Image files: each is a document without text, whose title is the file's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from realm_lab.corpus.readers.inputs import is_picture
from realm_lab.corpus.readers.registry import register_reader
from realm_lab.corpus.readers.squad import readable_title
from realm_lab.corpus.records import PICTURE, Document


def _picture(path: Path, dropped: Counter[str]) -> Iterator[Document]:
    title = readable_title(path.stem)
    yield Document(f"{path.parent.name}/{path.name}", title, "", title, PICTURE, str(path))


register_reader("picture", lambda path, head: is_picture(path), read_documents=_picture)
