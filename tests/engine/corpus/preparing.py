"""A prepared corpus with its inputs, for tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from realm_lab.engine.corpus.prepare import prepare
from realm_lab.engine.corpus.records import Passage
from realm_lab.engine.corpus.salient_spans import RuleTagger
from realm_lab.engine.corpus.sources import SourceRequest
from realm_lab.engine.corpus.store import Manifest, PartWriter, Passages, PreparedCorpus
from realm_lab.engine.corpus.vocabulary import load_tokenizer
from realm_lab.engine.params.corpus import Corpus
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.params.parameters import Tokenizer as TokenizerSettings


class Prepared(NamedTuple):
    """A prepared corpus with its inputs."""

    params: Params
    manifest: Manifest
    corpus: PreparedCorpus
    tokenizer: Tokenizer

    def text(self, tokens: np.ndarray) -> str:
        """Return the words of wordpieces (blanks separate the toy world's words)."""
        return " ".join(self.tokenizer.id_to_token(int(token)) or "?" for token in tokens).replace(" ##", "")


def write_part(folder: Path, schema: pa.Schema, rows: list[dict[str, Any]], token_dtype: Any = np.uint16) -> Path:
    writer = PartWriter(folder, schema, token_dtype)
    writer.append(pa.RecordBatch.from_pylist(rows, schema))
    writer.close()
    return folder


def write_passages(folder: Path, texts: Sequence[tuple[str, str]]) -> Passages:
    """Passages of these titles and bodies, without wordpieces; passages of one title are an article."""
    plain: dict[str, Any] = {"titles": [0], "bodies": [0], "sentence_starts": [0]}
    articles = list(dict.fromkeys(title for title, _ in texts))
    rows = [
        plain | {"articles": articles.index(title)} | Passage(str(number), title, body, title, title)._asdict()
        for number, (title, body) in enumerate(texts)
    ]
    return Passages(write_part(folder, Passages.COLUMNS, rows), np.uint16)


def made(params: Params, folder: Path, seed: int = 0) -> Prepared:
    manifest = prepare(params, folder, seed)
    corpus = PreparedCorpus(folder)
    return Prepared(params, manifest, corpus, load_tokenizer(corpus.tokenizer_folder))


def asked_of(corpus: Corpus, kept: Path = Path("unused")) -> SourceRequest:
    """Return the request that a source of `corpus` gets, for one process."""
    return SourceRequest(corpus, TokenizerSettings(), 3, 0, kept, 1, RuleTagger)
