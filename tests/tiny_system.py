"""A tiny untrained REALM on a small prepared toy world, and the same weights once more in transformers' classes.

The fixtures `system` and `reference` are in conftest.py.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from realm_lab.engine.corpus.prepare import prepare
from realm_lab.engine.corpus.store import Passages, PreparedCorpus
from realm_lab.engine.corpus.vocabulary import SpecialIds, load_tokenizer, special_ids
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.folders import write_embedder, write_reader
from realm_lab.engine.models.initial import new_embedder, new_reader
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.index import Inputs
from realm_lab.engine.retrieval.retriever import Retriever

# Everything a test relies on; the presets may move.
SECTIONS: dict[str, dict[str, Any]] = {
    "corpus": {
        "source": {"name": "toy", "world": "easy", "entities": 40, "articles": 200},
        "pretrain_corpus": "separate",
        "passage_length": 32,
        "sentence_length": 26,
        "tagger": "exact",
    },
    "model": {
        "hidden_size": 32,
        "layers": 2,
        "heads": 2,
        "intermediate_size": 64,
        "dropout": 0.0,
        "projection_size": 32,
        "share_towers": False,
    },
    "warm_start": {"embedder": {"initial_encoder": "reader"}},
    "pretrain": {"candidates": 8},
    "finetune": {"candidates": 5, "max_span_wordpieces": 3, "span_hidden_size": 32},
}


def tiny_params(**overrides: dict[str, Any]) -> Params:
    """A world of 320 passages and a narrow encoder; `pretrain={"candidates": 3}` changes values of a section."""
    names = SECTIONS.keys() | overrides.keys()
    values = {name: SECTIONS.get(name, {}) | overrides.get(name, {}) for name in names}
    return Params(preset="smoke", **values)


def scramble(module: nn.Module, seed: int = 0, scale: float = 0.2) -> None:
    """Add noise to every parameter: no bias stays 0, no LayerNorm 1, no two matrices equal."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)


class TinySystem(NamedTuple):
    """A corpus with an untrained reader and an embedder of two towers."""

    params: Params
    corpus: PreparedCorpus
    passages: Passages
    tokenizer: Tokenizer
    special: SpecialIds
    reader: Reader
    embedder: Embedder

    def retriever(self, embedder: Embedder | None = None, **search: Any) -> Retriever:
        """A retriever whose index is not yet built."""
        return Retriever(embedder or self.embedder, self.passages, Inputs.of(self.params, self.special), **search)

    def built_retriever(self) -> Retriever:
        """A retriever with a fresh index."""
        retriever = self.retriever()
        retriever.refresh(0)
        return retriever


def prepare_corpus(folder: Path) -> PreparedCorpus:
    """The small toy world, prepared into `folder`."""
    prepare(tiny_params(), folder, 0)
    return PreparedCorpus(folder)


def build_system(corpus: PreparedCorpus, **overrides: dict[str, Any]) -> TinySystem:
    """New models on a prepared corpus; the same every time."""
    params = tiny_params(**overrides)
    tokenizer = load_tokenizer(corpus.tokenizer_folder)
    size = corpus.manifest.vocabulary_size
    reader, embedder = new_reader(params, size, 0), new_embedder(params, size, 1, None)
    scramble(reader, 2, 0.1)
    scramble(embedder, 3, 0.1)
    reader.eval()
    embedder.eval()
    return TinySystem(params, corpus, corpus.passages(), tokenizer, special_ids(tokenizer), reader, embedder)


class Reference:
    """A system's weights in transformers' BERT, float64, with one sequence at a time and no padding."""

    def __init__(self, system: TinySystem, folder: Path):
        from transformers import BertForMaskedLM, BertModel

        write_reader(system.reader, folder / "reader")
        write_embedder(system.embedder, folder / "embedder")
        self.special, self.passages = system.special, system.passages
        self.words = BertForMaskedLM.from_pretrained(folder / "reader", dtype=torch.float64).eval()
        towers = (folder / "embedder", folder / "embedder" / "document")
        self.query_tower, self.document_tower = (
            BertModel.from_pretrained(tower, add_pooling_layer=False, dtype=torch.float64).eval() for tower in towers
        )
        state = {name: value.detach().double() for name, value in system.embedder.state_dict().items()}
        self.query_matrix, self.document_matrix = state["query_projection.weight"], state["document_projection.weight"]
        self.span_head = {name: value.detach().double() for name, value in system.reader.state_dict().items()}

    def _inputs(self, first: np.ndarray, second: np.ndarray | None) -> dict[str, Tensor]:
        special = self.special
        tokens = [special.cls, *first.tolist(), special.sep]
        types = [0] * len(tokens)
        if second is not None:
            tokens += [*second.tolist(), special.sep]
            types += [1] * (len(second) + 1)
        return {"input_ids": torch.tensor([tokens]), "token_type_ids": torch.tensor([types])}

    @torch.no_grad()
    def query(self, tokens: np.ndarray) -> Tensor:
        """Embed_input(x), [D]."""
        return self.query_matrix @ self.query_tower(**self._inputs(tokens, None)).last_hidden_state[0, 0]

    @torch.no_grad()
    def document(self, row: int) -> Tensor:
        """Embed_doc(z), [D]; row -1 is the null document."""
        empty = np.empty(0, np.int64)
        title, body = (self.passages.titles[row], self.passages.bodies[row]) if row >= 0 else (empty, empty)
        return self.document_matrix @ self.document_tower(**self._inputs(title, body)).last_hidden_state[0, 0]

    @torch.no_grad()
    def masked_words(self, query: np.ndarray, body: np.ndarray, positions: np.ndarray) -> Tensor:
        """log p(w|z,x) at masked positions of the query, [M, V]."""
        logits = self.words(**self._inputs(query, body)).logits[0]
        return logits[torch.from_numpy(positions) + 1].log_softmax(-1)

    @torch.no_grad()
    def span_logits(self, query: np.ndarray, body: np.ndarray, max_width: int) -> dict[tuple[int, int], float]:
        """MLP([h_START; h_END]) of every span (first, last wordpiece of the body)."""
        hidden_LD = self.words.bert(**self._inputs(query, body)).last_hidden_state[0][len(query) + 2 :][: len(body)]
        head = self.span_head
        first, last = head["span_projection.weight"].chunk(2)
        matrix = torch.cat([first, last], dim=1)
        bias = sum(head["span_projection.bias"].chunk(2))
        scores = {}
        for start in range(len(body)):
            for end in range(start, min(start + max_width, len(body))):
                inner = torch.relu(matrix @ torch.cat([hidden_LD[start], hidden_LD[end]]) + bias)
                inner = (inner - inner.mean()) / (inner.var(unbiased=False) + 1e-3).sqrt()
                inner = inner * head["span_norm.weight"] + head["span_norm.bias"]
                scores[start, end] = (head["span_score.weight"] @ inner + head["span_score.bias"]).item()
        return scores

    def spans(self, query: np.ndarray, body: np.ndarray, max_width: int) -> dict[tuple[int, int], float]:
        """log p(s|z,x) of every span."""
        scores = self.span_logits(query, body, max_width)
        total = np.logaddexp.reduce(list(scores.values()))
        return {span: score - total for span, score in scores.items()}
