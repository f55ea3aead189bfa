"""The editions of a corpus that a finished run is asked with: read, prepared with the run's own wordpieces, embedded.

Between two editions only what changed is embedded: a passage of the same wordpieces keeps its vector.
"""

# Shapes: N passages of the new edition, O of the old, D embedding size

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm_lab.core.files import atomic_write, digest
from realm_lab.corpus.files_corpus import FilesCorpus
from realm_lab.corpus.prepare import corpus_inputs, prepare
from realm_lab.corpus.readers import read_documents
from realm_lab.corpus.readers.updates import LATER
from realm_lab.corpus.records import Document
from realm_lab.corpus.store import Passages, PreparedCorpus
from realm_lab.errors import UserError
from realm_lab.params.parameters import Corpus, Files, Params
from realm_lab.retrieval.retriever import Retriever
from realm_lab.systems.context import Context


class Edition(NamedTuple):
    """A knowledge corpus to ask with."""

    name: str  # "old" or "new"
    passages: Passages
    digest: str
    source: str  # where it is from, in words


def documents_of(paths: Sequence[Path], later: bool) -> dict[str, Document]:
    """The documents of files by id. A file that holds both editions of a document gives the one that is asked for."""
    documents: dict[str, Document] = {}
    for path in paths:
        for document in read_documents(path):
            identity = document.id.removesuffix(LATER)
            if identity == document.id or later:
                documents[identity] = document._replace(id=identity)
    if not documents:
        raise UserError(f"{', '.join(map(str, paths))}: no documents")
    return documents


def rest_of(params: Params, named: Iterable[str], most: int) -> list[Document]:
    """Documents of the run's own files whose id is not among `named`, evenly spaced; -1: all.

    Raises:
        UserError: the run is not of files.
    """
    if not most:
        return []
    if params.corpus.source != "files":
        raise UserError(f"--rest {most}: the run's corpus is no files; leave it at 0")
    left_out = set(named)
    own = [d for d in FilesCorpus(params.corpus.files, params.corpus, None).documents() if d.id not in left_out]
    if most < 0 or len(own) <= most:
        return own
    return [own[number * len(own) // most] for number in range(most)]


def prepare_edition(context: Context, documents: Iterable[Document], folder: Path) -> PreparedCorpus:
    """Cut documents into passages as the run's corpus was, into `folder`; what is there already is taken as it is."""
    text = folder / "documents.jsonl"
    with atomic_write(text) as file:
        for document in documents:
            record = {"id": document.id, "title": document.title, "text": document.text}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    own = context.params.corpus
    params = context.params.model_copy(
        update={
            "corpus": Corpus(
                source="files",
                passage_length=own.passage_length,
                sentence_length=own.sentence_length,
                tagger="rule",  # the sentences of an edition are not trained on
                files=Files(knowledge=[str(text)]),
            ),
            "tokenizer": context.params.tokenizer.model_copy(
                update={"checkpoint": str(context.corpus.tokenizer_folder)}
            ),
        }
    )
    prepared = folder / "prepared"
    if (prepared / "manifest.json").exists():
        corpus = PreparedCorpus(prepared)
        if corpus.manifest.key == digest(corpus_inputs(params, 0)):
            return corpus
    prepare(params, prepared, 0)
    return PreparedCorpus(prepared)


def open_prepared(context: Context, folder: Path) -> PreparedCorpus:
    """A folder that `realm-lab prepare` made; one of other wordpieces is refused."""
    corpus = PreparedCorpus(folder)
    wanted, found = context.corpus.manifest.tokenizer_digest, corpus.manifest.tokenizer_digest
    if wanted != found:
        raise UserError(
            f"{folder}: prepared with another tokenizer ({found[:12]}) than the run's corpus ({wanted[:12]}); "
            "name its files instead"
        )
    return corpus


def embed_changed(retriever: Retriever, old: Passages | None, old_OD: Tensor | None) -> tuple[Tensor, int]:
    """Vectors of the retriever's corpus [N, D], and how many were made anew: those that no old passage has."""
    passages = retriever.passages
    if old is None or old_OD is None:
        return retriever.embed_passages(), len(passages)
    known = {_content(old, row): row for row in range(len(old))}
    source_N = np.array([known.get(_content(passages, row), -1) for row in range(len(passages))], np.int64)
    vectors_ND = old_OD[torch.from_numpy(source_N.clip(min=0)).to(old_OD.device)]
    new_U = np.flatnonzero(source_N < 0)
    if len(new_U):
        vectors_ND[torch.from_numpy(new_U).to(old_OD.device)] = retriever.embed_passages(new_U).to(vectors_ND.dtype)
    return vectors_ND, len(new_U)


def _content(passages: Passages, row: int) -> bytes:
    """What decides a passage's vector: the wordpieces of its title and of its body."""
    title, body = np.asarray(passages.titles[row]), np.asarray(passages.bodies[row])
    content = len(title).to_bytes(8, "little") + title.tobytes() + body.tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()
