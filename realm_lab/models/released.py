"""Released REALM weights: folders in the layout of transformers 4.40, the last release with REALM.

RealmEmbedder  realm.* (BERT with pooler), cls.dense, cls.LayerNorm: google/realm-cc-news-pretrained-embedder
RealmScorer    embedder.* and, where queries have a tower of their own, query_embedder.*: ...-scorer
RealmKnowledgeAugEncoder   realm.*, cls.predictions.*: ...-encoder
RealmReader    the same and qa_outputs.*
RealmForOpenQA embedder.*, reader.*, block_emb (the passages' vectors): google/realm-orqa-nq-openqa
"""

# Shapes: N passages, D embedding size

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from realm_lab.core.files import write_json
from realm_lab.errors import UserError
from realm_lab.models.bert_folder import (
    POOLER,
    bert_config,
    config_shape,
    from_bert,
    modern_name,
    read_config,
    read_weights,
    to_bert,
    write_tensors,
)
from realm_lab.models.embedder import Embedder, EmbedderShape
from realm_lab.models.encoder import Encoder, EncoderShape
from realm_lab.models.export import load_parts, load_pooler, load_word_head, span_names, word_head
from realm_lab.models.reader import SPAN_NORM_EPSILON, Reader

ACTIVATION = "gelu_new"  # where config.json names none
PROJECTION = {
    "projection.weight": "cls.dense.weight",
    "projection.bias": "cls.dense.bias",
    "norm.weight": "cls.LayerNorm.weight",
    "norm.bias": "cls.LayerNorm.bias",
}
SPANS = {
    f"{ours}.{part}": f"qa_outputs.{theirs}.{part}"
    for ours, theirs in {
        "span_projection": "dense_intermediate",
        "span_norm": "layer_normalization",
        "span_score": "dense_output",
    }.items()
    for part in ("weight", "bias")
}
REPRESENTABLE: dict[str, Any] = {
    "pooling": "tanh",
    "projection_norm": True,
    "score_scale": "none",
    "learned_null": False,
}


class ReaderWeights(NamedTuple):
    """A released reader: its BERT under BertForMaskedLM's names, and its span head, empty where it has none."""

    shape: EncoderShape
    bert: dict[str, Tensor]
    spans: dict[str, Tensor]


def is_released(folder: Path) -> bool:
    """Whether a folder holds a model of transformers' REALM."""
    return read_config(folder).get("model_type") == "realm"


def read_reader_weights(folder: Path) -> ReaderWeights:
    """The reader of a RealmKnowledgeAugEncoder, RealmReader or RealmForOpenQA folder."""
    config = read_config(folder)
    epsilon = config.get("reader_layer_norm_eps", SPAN_NORM_EPSILON)
    if epsilon != SPAN_NORM_EPSILON:
        raise UserError(
            f"{folder / 'config.json'}: reader_layer_norm_eps is {epsilon}; only {SPAN_NORM_EPSILON} is supported"
        )
    weights = read_weights(folder, lambda name: name != "block_emb")
    if any(name.startswith("reader.") for name in weights):
        weights = _below(weights, "reader.")
    bert = _below(weights, "realm.") | {name: value for name, value in weights.items() if name.startswith("cls.")}
    if "cls.predictions.bias" not in bert and "cls.predictions.decoder.bias" in bert:  # one tensor with two names
        bert["cls.predictions.bias"] = bert["cls.predictions.decoder.bias"]
    spans = {ours: weights[theirs] for ours, theirs in SPANS.items() if theirs in weights}
    return ReaderWeights(config_shape(config, folder, ACTIVATION), bert, spans)


def load_reader(reader: Reader, weights: ReaderWeights, folder: Path) -> bool:
    """Copy what there is into a reader; returns whether the masked-word head was there."""
    from_bert(reader.encoder, weights.bert, folder)
    has_words = load_word_head(reader, weights.bert)
    if weights.spans:
        load_parts(reader, weights.spans, span_names(reader), folder)
    return has_words


def read_released_embedder(folder: Path) -> Embedder:
    """The embedder of a RealmEmbedder, RealmScorer or RealmForOpenQA folder.

    A RealmScorer whose two embedders are equal, or of which one is left out, has one tower.
    """
    config = read_config(folder)
    weights = read_weights(folder, lambda name: name != "block_emb" and not name.startswith("reader."))
    documents, queries = _below(weights, "embedder."), _below(weights, "query_embedder.")
    towers = [tower for tower in (queries, documents) if tower] or [weights]
    used = [name for name in towers[0] if not name.startswith("cls.predictions.")]
    shared = len(towers) == 1 or all(torch.equal(towers[0][name], towers[1].get(name, torch.empty(0))) for name in used)
    if "cls.dense.weight" not in towers[0]:
        raise UserError(f"{folder}: no tensor 'cls.dense.weight'; it holds no retriever, choose an embedder or scorer")
    head = EmbedderShape(
        projection_size=towers[0]["cls.dense.weight"].shape[0],
        share_towers=shared,
        share_projection=shared,
        pooling="tanh",
        projection_norm=True,
        projection_bias=True,
    )
    embedder = Embedder(config_shape(config, folder, ACTIVATION), head)
    for tower, prefix in zip(towers, ("query",) if shared else ("query", "document"), strict=False):
        bert = _below(tower, "realm.")
        from_bert(getattr(embedder, f"{prefix}_encoder"), bert, folder)
        load_pooler(getattr(embedder, f"{prefix}_pooler"), bert, folder)
        found = {f"{prefix}_{ours}": tower[theirs] for ours, theirs in PROJECTION.items() if theirs in tower}
        load_parts(embedder, found, [f"{prefix}_{ours}" for ours in PROJECTION], folder)
    return embedder


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


def _below(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it, under the names of today."""
    return {modern_name(name[len(prefix) :]): value for name, value in weights.items() if name.startswith(prefix)}


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
