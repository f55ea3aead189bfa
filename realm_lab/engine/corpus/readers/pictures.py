"""Image files: each is a document without text, whose title is the file's name."""

from __future__ import annotations

from collections.abc import Iterator

from realm_lab.engine.corpus.readers.inputs import InputFile, is_picture
from realm_lab.engine.corpus.readers.registry import Dropped, register_reader
from realm_lab.engine.corpus.readers.squad import readable_title
from realm_lab.engine.corpus.records import PICTURE, Document


def _picture(file: InputFile, dropped: Dropped) -> Iterator[Document]:
    title = readable_title(file.path.stem)
    yield Document(file.name, title, "", title, PICTURE, str(file.path))


register_reader("picture", lambda path, head: is_picture(path), read_documents=_picture)
