"""Writers of the released layout (transformers 4.40), and the reader of its passage vectors: for tests alone."""

# Shapes: N passages, D embedding size

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from realm_lab.core.files import write_json
from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.encoder import Encoder, EncoderShape
from realm_lab.models.folders import POOLER, bert_config, read_weights, span_names, to_bert, word_head, write_tensors
from realm_lab.models.initial import PROJECTION, SPANS
from realm_lab.models.reader import SPAN_NORM_EPSILON, Reader

REPRESENTABLE: dict[str, Any] = {
    "pooling": "tanh",
    "projection_norm": True,
    "score_scale": "none",
    "learned_null": False,
}


def read_released_vectors(folder: Path) -> Tensor:
    """block_emb of a RealmForOpenQA folder: the passages' vectors, float32 [N, D], for an index."""
    found = read_weights(folder, lambda name: name == "block_emb")
    if not found:
        raise UserError(f"{folder}: no tensor 'block_emb'; only a RealmForOpenQA folder holds the passages' vectors")
    return found["block_emb"].float()


def write_released_reader(reader: Reader, folder: Path, span_head: bool = True) -> None:
    """Save a reader as a RealmReader folder, or without its span head as a RealmKnowledgeAugEncoder folder."""
    architecture = "RealmReader" if span_head else "RealmKnowledgeAugEncoder"
    write_tensors(folder / "model.safetensors", _reader_tensors(reader, span_head))
    _write_config(folder, architecture, reader.encoder.shape, span_hidden_size=reader.span_score.in_features)


def write_released_embedder(embedder: Embedder, folder: Path) -> None:
    """Save an embedder as a RealmEmbedder folder, or with two towers or projections as a RealmScorer folder.

    A RealmScorer is opened with `query_embedder=RealmEmbedder(config)`. Its unused word head is left out.

    Raises:
        UserError: the layout has no place for a setting of the embedder.
    """
    tensors = _embedder_tensors(embedder, "query", folder)
    shared = embedder.head.share_towers and embedder.head.share_projection
    if not shared:
        tensors = {f"query_embedder.{name}": value for name, value in tensors.items()}
        documents = _embedder_tensors(embedder, "document", folder)
        tensors |= {f"embedder.{name}": value.clone() for name, value in documents.items()}
    write_tensors(folder / "model.safetensors", tensors)
    architecture = "RealmEmbedder" if shared else "RealmScorer"
    shape = embedder.query_encoder.shape
    _write_config(folder, architecture, shape, retriever_proj_size=embedder.head.projection_size)


def write_released_open_qa(reader: Reader, embedder: Embedder, vectors_ND: Tensor, folder: Path) -> None:
    """Save a fine-tuned system as a RealmForOpenQA folder: its query tower, its reader and the passages' vectors.

    Raises:
        UserError: the layout has no place for a setting of the embedder.
    """
    if reader.encoder.shape._replace(dropout=0.0) != embedder.query_encoder.shape._replace(dropout=0.0):
        raise UserError(f"{folder}: RealmForOpenQA has one size for reader and embedder; these differ")
    tensors = {f"embedder.{name}": value for name, value in _embedder_tensors(embedder, "query", folder).items()}
    tensors |= {f"reader.{name}": value for name, value in _reader_tensors(reader, True).items()}
    write_tensors(folder / "model.safetensors", tensors | {"block_emb": vectors_ND.float()})
    _write_config(
        folder,
        "RealmForOpenQA",
        reader.encoder.shape,
        span_hidden_size=reader.span_score.in_features,
        retriever_proj_size=embedder.head.projection_size,
        num_block_records=len(vectors_ND),
    )


def _reader_tensors(reader: Reader, span_head: bool) -> dict[str, Tensor]:
    """A reader under transformers' names; a new pooler, which no reader uses, and the decoder, which is tied."""
    tensors = {f"realm.{name}": value for name, value in to_bert(reader.encoder).items()} | word_head(reader)
    if span_head:
        tensors |= {SPANS[name]: reader.get_parameter(name) for name in span_names(reader)}
    return tensors


def _embedder_tensors(embedder: Embedder, tower: str, folder: Path) -> dict[str, Tensor]:
    for name, needed in REPRESENTABLE.items():
        found = getattr(embedder.head, name)
        if found != needed:
            raise UserError(f"{folder}: {name} is {found}; the layout of released REALM holds only {needed}")
    encoder: Encoder = getattr(embedder, f"{tower}_encoder")
    pooler: nn.Linear = getattr(embedder, f"{tower}_pooler")
    tensors = {f"realm.{name}": value for name, value in to_bert(encoder).items()}
    tensors |= {f"realm.{theirs}": pooler.get_parameter(ours) for ours, theirs in POOLER.items()}
    state = {name: value for name, value in embedder.state_dict().items() if name.startswith(f"{tower}_")}
    bias = torch.zeros(embedder.head.projection_size)  # Guu's equation has none
    return tensors | {theirs: state.get(f"{tower}_{ours}", bias) for ours, theirs in PROJECTION.items()}


def _write_config(folder: Path, architecture: str, shape: EncoderShape, **more: int) -> None:
    config = bert_config(shape, architecture) | {"model_type": "realm", "reader_layer_norm_eps": SPAN_NORM_EPSILON}
    write_json(folder / "config.json", config | more)
