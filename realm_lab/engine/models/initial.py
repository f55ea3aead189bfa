"""Build initial models: the shapes that the parameters ask for, from scratch or from a folder of weights.

A folder may be a plain Hugging Face encoder, a run's model/reader or model/embedder, or released REALM weights, in the
layout of transformers 4.40, the last release that supports REALM (class, its tensors, an example on the Hub):
RealmEmbedder  realm.* (BERT with pooler), cls.dense, cls.LayerNorm: google/realm-cc-news-pretrained-embedder
RealmScorer    embedder.* and, if queries have a separate tower, query_embedder.*: ...-scorer
RealmKnowledgeAugEncoder   realm.*, cls.predictions.*: ...-encoder
RealmReader    realm.*, cls.predictions.*, qa_outputs.*
RealmForOpenQA embedder.*, reader.*, block_emb (the passages' vectors): google/realm-orqa-nq-openqa
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from realm_lab.engine.core.seeding import derive_seed
from realm_lab.engine.corpus.pictures import PATCH_VALUES
from realm_lab.engine.models.embedder import Embedder, EmbedderShape
from realm_lab.engine.models.encoder import EncoderShape
from realm_lab.engine.models.folders import (
    EMBEDDER_JSON,
    POOLER,
    SELECTION_NAMES,
    SPAN_HEAD,
    SPAN_HEAD_FILE,
    SPAN_NAMES,
    head_names,
    load_encoder,
    load_named,
    load_tower,
    modern_name,
    read_checkpoint,
    read_config,
    read_embedder,
    read_shape,
    read_tensors,
    read_weights,
)
from realm_lab.engine.models.hub import AnyEncoder, draw, new_encoder
from realm_lab.engine.models.reader import Reader, initialise_heads
from realm_lab.engine.params.checkpoint import check_positions
from realm_lab.engine.params.parameters import Params, Pretrain
from realm_lab.errors import UserError

MIN_POSITIONS = 64
PADDED_TO = (8, 16, 32, 64, 128, 256, 512)  # a vocabulary may be padded to a multiple of one of these, for GPUs
MUST_AGREE = ("vocabulary_size", "hidden_size", "layers", "heads", "intermediate_size")
HEAD_MUST_AGREE = ("projection_size", "pooling", "projection_norm", "score_scale", "temperature")
RELEASED_DROPOUT = 0.1  # after the projection, in the code released with REALM
PROJECTION = {
    "projection.weight": "cls.dense.weight",
    "projection.bias": "cls.dense.bias",
    "norm.weight": "cls.LayerNorm.weight",
    "norm.bias": "cls.LayerNorm.bias",
}
SPANS = {
    f"{ours}.{part}": f"qa_outputs.{theirs}.{part}"
    for ours, theirs in zip(SPAN_HEAD, ("dense_intermediate", "layer_normalization", "dense_output"), strict=True)
    for part in ("weight", "bias")
}


def encoder_shape(params: Params, vocabulary_size: int) -> EncoderShape:
    """Return the shape the parameters ask for; a checkpoint's sizes must agree with model.*."""
    if params.model.checkpoint is not None:
        folder = Path(params.model.checkpoint)
        return _agreed(read_shape(folder), params, vocabulary_size, folder)
    return _asked_shape(params, vocabulary_size)


def embedder_shape(params: Params) -> EmbedderShape:
    """Return the shape of the retrieval head."""
    model, is_released = params.model, params.model.projection == "released"
    return EmbedderShape(
        model.projection_size,
        model.share_towers,
        is_released and model.share_towers,
        model.pooling,
        is_released,
        RELEASED_DROPOUT if is_released else 0.0,
        model.score_scale,
        initial_projection="drawn" if is_released else model.projection,
    )


def new_reader(params: Params, vocabulary_size: int, seed: int) -> Reader:
    """Build an initial reader from model.checkpoint, or from scratch."""
    if params.model.checkpoint is not None:
        return read_initial_reader(Path(params.model.checkpoint), params, vocabulary_size, seed)
    return _drawn_reader(encoder_shape(params, vocabulary_size), params, seed)


def new_embedder(params: Params, vocabulary_size: int, seed: int, encoder: AnyEncoder | None) -> Embedder:
    """Build an initial embedder with the weights of `encoder` in its Transformers (None: drawn from the seed).

    A pooler is copied from model.checkpoint if `encoder` is given and the checkpoint has a pooler; else it is drawn.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "initial-embedder"))
    pooler = None
    if encoder is None:
        encoder = new_encoder(encoder_shape(params, vocabulary_size))
        draw(encoder, generator)
    elif params.model.pooling == "tanh" and params.model.checkpoint is not None:
        weights = read_checkpoint(Path(params.model.checkpoint))[1]
        if all(theirs in weights for theirs in POOLER.values()):
            pooler = {ours: weights[theirs] for ours, theirs in POOLER.items()}
    embedder = Embedder(encoder.shape, embedder_shape(params))
    embedder.start_from(encoder, generator, pooler)
    return embedder


def read_initial_encoder(folder: Path, params: Params, vocabulary_size: int) -> AnyEncoder:
    """Read the Transformer of a folder. UserError: the sizes differ from the parameters', or tensors are
    missing."""
    shape, weights = read_checkpoint(folder)
    encoder = new_encoder(_agreed(shape, params, vocabulary_size, folder))
    load_encoder(encoder, weights, folder)
    return encoder


def read_initial_reader(folder: Path, params: Params, vocabulary_size: int, seed: int) -> Reader:
    """Build a reader with the weights of a folder; heads that the folder lacks are drawn from the seed. UserError: the
    folder's sizes differ from the parameters', or tensors are missing."""
    weights = read_reader_weights(folder)
    reader = _drawn_reader(_agreed(weights.shape, params, vocabulary_size, folder), params, seed)
    load_reader(reader, weights, folder)
    return reader


def read_initial_embedder(folder: Path, params: Params, vocabulary_size: int, seed: int) -> tuple[Embedder, float]:
    """Return an embedder with the weights of a folder, and its null document's score offset (0 if the folder has none).

    A plain BERT gives only the Transformer and its pooler; projections are drawn from the seed. Separate towers stay
    separate whatever model.share_towers is, and shared ones are split if it is false. UserError: the folder's sizes or
    head differ from the parameters', or tensors are missing.
    """
    if is_released(folder):
        return _adapted(read_released_embedder(folder), 0.0, params, vocabulary_size, folder)
    if (folder / EMBEDDER_JSON).exists():
        return _adapted(*read_embedder(folder), params, vocabulary_size, folder)
    encoder = read_initial_encoder(folder, params, vocabulary_size)
    return new_embedder(starting_from(params, str(folder)), vocabulary_size, seed, encoder), 0.0


def fit_null(embedder: Embedder, null_offset: float, settings: Pretrain) -> float:
    """Add or remove an embedder's learned null vector, as pre-training needs it. Return the null document's score
    offset: `null_offset`, or 0 if the embedder had the other kind of null document."""
    learned = settings.null_document == "learned"
    same = (embedder.null_vector is not None) == learned
    embedder.set_learned_null(learned)
    return null_offset if same else 0.0


def starting_from(params: Params, checkpoint: str | None) -> Params:
    """Return the parameters with another `model.checkpoint`, or with none."""
    return params.model_copy(update={"model": params.model.model_copy(update={"checkpoint": checkpoint})})


def frozen_names(module: nn.Module, params: Params) -> set[str]:
    """Return the names of parameters that are never trained: the embeddings of words, positions and segments, or
    none if model.train_word_embeddings is true."""
    if params.model.train_word_embeddings:
        return set()
    parts = ("word_embeddings", "tok_embeddings", "position_embeddings", "type_embeddings")
    return {name for name, _ in module.named_parameters() if any(part in name for part in parts)}


def tower_names(embedder: Embedder, query: bool, document: bool) -> set[str]:
    """Return the names of parameters not to train; `query` and `document` choose the towers to train. The learned null
    vector is trained with either tower.

    Shared weights count as the query tower's: call split_towers() first to train one without the other.
    """
    names = {name for name, _ in embedder.named_parameters()}
    held = {name for name in names if name.startswith("query_") and not query}
    held |= {name for name in names if name.startswith("document_") and not document}
    return held if query or document else names


def _asked_shape(params: Params, vocabulary_size: int) -> EncoderShape:
    model, lengths = params.model, params.corpus
    longest = max(lengths.passage_length, lengths.sentence_length) + lengths.sentence_length
    sizes = (model.hidden_size, model.layers, model.heads, model.intermediate_size)
    shape = EncoderShape(vocabulary_size, *sizes, max(MIN_POSITIONS, longest), model.dropout)
    return shape._replace(patch_values=PATCH_VALUES if model.pictures else 0)


def _agreed(found: EncoderShape, params: Params, vocabulary_size: int, folder: Path) -> EncoderShape:
    """Return a folder's shape with the parameters' dropout and pictures, after checking that the sizes agree."""
    asked = _asked_shape(params, vocabulary_size)
    check_positions(folder, params.corpus.passage_length, params.corpus.sentence_length)
    padded = {-(-vocabulary_size // multiple) * multiple for multiple in PADDED_TO}
    if found.vocabulary_size in padded and not asked.patch_values:  # the softmax includes the padding rows
        asked = asked._replace(vocabulary_size=found.vocabulary_size)
    if found.config and asked.patch_values:
        raise UserError("only BERT reads pictures", "set model.pictures to false, or name a BERT folder", path=folder)
    _check_equal(found, asked, MUST_AGREE, folder)
    return found._replace(dropout=asked.dropout, patch_values=asked.patch_values)


def _check_equal(found: NamedTuple, asked: NamedTuple, names: Sequence[str], folder: Path) -> None:
    for name in names:
        if getattr(found, name) != getattr(asked, name):
            raise UserError(
                f"its {name} is {getattr(found, name)}, the parameters ask for {getattr(asked, name)}",
                "set model.projection to released"
                if name == "projection_norm"
                else "set the model section (and tokenizer.checkpoint) to the folder's",
                path=folder,
            )


def _adapted(
    found: Embedder, null_offset: float, params: Params, vocabulary_size: int, folder: Path
) -> tuple[Embedder, float]:
    """Return a folder's embedder with the parameters' dropouts, its towers split if model.share_towers is false."""
    shape, head, asked = found.query_encoder.shape, found.head, embedder_shape(params)
    _check_equal(shape, _asked_shape(params, vocabulary_size), ("patch_values",), folder)
    _check_equal(head, asked, HEAD_MUST_AGREE, folder)
    head = head._replace(projection_dropout=asked.projection_dropout)
    embedder = Embedder(_agreed(shape, params, vocabulary_size, folder), head)
    embedder.load_state_dict(found.state_dict())
    if not asked.share_towers:
        embedder.split_towers()
    return embedder, null_offset


def _drawn_reader(shape: EncoderShape, params: Params, seed: int) -> Reader:
    """Build a reader with weights drawn from the seed."""
    reader = Reader(shape, params.finetune.span_hidden_size)
    generator = torch.Generator().manual_seed(derive_seed(seed, "initial-reader"))
    draw(reader.encoder, generator)
    initialise_heads(reader, generator, words_too=True)
    return reader


class ReaderWeights(NamedTuple):
    """Tensors of a reader: its masked-language model (`bert`), and its span head (`spans`; empty: it has none)."""

    shape: EncoderShape
    bert: dict[str, Tensor]
    spans: dict[str, Tensor]


def is_released(folder: Path) -> bool:
    """True if a folder holds a model of transformers' REALM."""
    return read_config(folder).get("model_type") == "realm"


def read_reader_weights(folder: Path) -> ReaderWeights:
    """Read the reader of a plain BERT, of a run, or of a RealmKnowledgeAugEncoder, RealmReader or RealmForOpenQA."""
    if not is_released(folder):
        shape, bert = read_checkpoint(folder)
        path = folder / SPAN_HEAD_FILE
        return ReaderWeights(shape, bert, read_tensors(path) if path.exists() else {})
    weights = read_weights(folder, lambda name: name != "block_emb")
    if any(name.startswith("reader.") for name in weights):
        weights = _below(weights, "reader.")
    bert = _below(weights, "realm.") | {name: value for name, value in weights.items() if name.startswith("cls.")}
    if "cls.predictions.bias" not in bert and "cls.predictions.decoder.bias" in bert:  # one tensor with two names
        bert["cls.predictions.bias"] = bert["cls.predictions.decoder.bias"]
    spans = {ours: weights[theirs] for ours, theirs in SPANS.items() if theirs in weights}
    return ReaderWeights(read_shape(folder), bert, spans)


def load_reader(reader: Reader, weights: ReaderWeights, folder: Path) -> None:
    """Copy the encoder, and the heads that the folder has, into a reader."""
    load_encoder(reader.encoder, weights.bert, folder)
    own = {name for name, _ in reader.named_parameters()}
    head = {ours: theirs for ours, theirs in head_names(weights.shape).items() if ours in own}
    if all(theirs in weights.bert for theirs in head.values()):
        load_named(reader, weights.bert, head, folder)
    if weights.spans:
        load_named(reader, weights.spans, SPAN_NAMES, folder)
        reader.has_span_head = True
    if weights.spans.keys() >= SELECTION_NAMES.keys():
        reader.add_selection(torch.Generator())
        load_named(reader, weights.spans, SELECTION_NAMES, folder)


def read_released_embedder(folder: Path) -> Embedder:
    """Read the embedder of a RealmEmbedder, RealmScorer or RealmForOpenQA folder.

    A RealmScorer with two equal embedders, or with only one, gives one shared tower.
    """
    weights = read_weights(folder, lambda name: name != "block_emb" and not name.startswith("reader."))
    documents, queries = _below(weights, "embedder."), _below(weights, "query_embedder.")
    towers = [tower for tower in (queries, documents) if tower] or [weights]
    used = [name for name in towers[0] if not name.startswith("cls.predictions.")]
    shared = len(towers) == 1 or all(torch.equal(towers[0][name], towers[1].get(name, torch.empty(0))) for name in used)
    if "cls.dense.weight" not in towers[0]:
        raise UserError(
            "no tensor 'cls.dense.weight'", "it holds no retriever, choose an embedder or scorer", path=folder
        )
    head = EmbedderShape(
        projection_size=towers[0]["cls.dense.weight"].shape[0],
        share_towers=shared,
        share_projection=shared,
        pooling="tanh",
        projection_norm=True,
        projection_bias=True,
    )
    embedder = Embedder(read_shape(folder), head)
    for tower, prefix in zip(towers, ("query",) if shared else ("query", "document"), strict=False):
        encoder, pooler = getattr(embedder, f"{prefix}_encoder"), getattr(embedder, f"{prefix}_pooler")
        load_tower(encoder, pooler, _below(tower, "realm."), folder)
        load_named(embedder, tower, {f"{prefix}_{ours}": theirs for ours, theirs in PROJECTION.items()}, folder)
    return embedder


def _below(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix. It is removed, and old names are replaced (`modern_name`)."""
    return {modern_name(name[len(prefix) :]): value for name, value in weights.items() if name.startswith(prefix)}
