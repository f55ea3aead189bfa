"""Models as plain Hugging Face folders: `AutoModel.from_pretrained` opens the encoders, safetensors hold the rest.

reader/    config.json, model.safetensors (BertForMaskedLM), span_head.safetensors
embedder/  config.json, model.safetensors (BertModel: the query tower), projections.safetensors,
           document/ (BertModel: the document tower, where the towers are separate)
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from realm_lab.config import Params
from realm_lab.core.files import write_json
from realm_lab.core.seeding import derive_seed
from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.encoder import (
    Encoder,
    EncoderShape,
    bert_config,
    from_bert,
    initialise,
    read_checkpoint,
    read_tensors,
    to_bert,
    write_tensors,
)
from realm_lab.models.reader import Reader, initialise_heads

HEAD = "cls.predictions"
SPAN_HEAD = ("span_projection", "span_norm", "span_score")
MIN_POSITIONS = 64


def encoder_shape(params: Params, vocabulary_size: int) -> EncoderShape:
    """The shape the parameters ask for; a checkpoint decides its own sizes and must agree with model.*."""
    model = params.model
    longest = max(params.corpus.passage_length, params.corpus.sentence_length)
    positions = max(MIN_POSITIONS, longest + params.corpus.sentence_length)
    shape = EncoderShape(
        vocabulary_size, model.hidden_size, model.layers, model.heads, model.intermediate_size, positions, model.dropout
    )
    if model.checkpoint is None:
        return shape
    found, _ = read_checkpoint(Path(model.checkpoint))
    if found.positions < positions:
        raise UserError(
            f"{model.checkpoint}: {found.positions} positions, but corpus.passage_length + corpus.sentence_length "
            f"needs {positions}; lower them"
        )
    for name in ("vocabulary_size", "hidden_size", "layers", "heads", "intermediate_size"):
        if getattr(found, name) != getattr(shape, name):
            raise UserError(
                f"{model.checkpoint}: its {name} is {getattr(found, name)}, the parameters ask for "
                f"{getattr(shape, name)}; set the model section (and tokenizer.checkpoint) to the checkpoint's"
            )
    return found._replace(dropout=model.dropout)


def new_reader(params: Params, vocabulary_size: int, seed: int) -> Reader:
    """A reader at its very start: from model.checkpoint, or from scratch."""
    reader = Reader(encoder_shape(params, vocabulary_size), params.finetune.span_hidden_size)
    generator = torch.Generator().manual_seed(derive_seed(seed, "initial-reader"))
    initialise(reader.encoder, generator)
    has_words = False
    if params.model.checkpoint is not None:
        folder = Path(params.model.checkpoint)
        _, weights = read_checkpoint(folder)
        from_bert(reader.encoder, weights, folder)
        has_words = _load_word_head(reader, weights)
    initialise_heads(reader, generator, words_too=not has_words)
    return reader


def new_embedder(params: Params, vocabulary_size: int, seed: int, encoder: Encoder | None) -> Embedder:
    """An embedder at its very start, its Transformers from `encoder` (None: from scratch)."""
    shape = encoder_shape(params, vocabulary_size)
    embedder = Embedder(shape, params.model.projection_size, params.model.share_towers)
    generator = torch.Generator().manual_seed(derive_seed(seed, "initial-embedder"))
    if encoder is None:
        encoder = Encoder(shape)
        initialise(encoder, generator)
    embedder.start_from(encoder, generator)
    return embedder


def frozen_names(module: Reader | Embedder, params: Params) -> set[str]:
    """Parameters that no optimiser touches: embeddings of words, places and segments where the parameters say so."""
    if params.model.train_word_embeddings:
        return set()
    parts = ("word_embeddings", "position_embeddings", "type_embeddings")
    frozen = {name for name, _ in module.named_parameters() if any(part in name for part in parts)}
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return frozen


def write_reader(reader: Reader, folder: Path, span_head: bool = True) -> None:
    """Save a reader as a BertForMaskedLM folder, with the span head beside it where there is one to keep."""
    weights = {f"bert.{name}": value for name, value in to_bert(reader.encoder).items()}
    for ours, theirs in _word_head().items():
        weights[theirs] = reader.get_parameter(ours).data
    write_tensors(folder / "model.safetensors", weights)
    if span_head:
        state = reader.state_dict()
        write_tensors(folder / "span_head.safetensors", {k: v for k, v in state.items() if k.startswith(SPAN_HEAD)})
    write_json(folder / "config.json", bert_config(reader.encoder.shape, "BertForMaskedLM"))


def read_reader(folder: Path, span_hidden_size: int, span_head: bool = True) -> Reader:
    """Load what write_reader saved; without `span_head` that part stays to be initialised."""
    shape, weights = read_checkpoint(folder)
    reader = Reader(shape, span_hidden_size)
    from_bert(reader.encoder, weights, folder)
    if not _load_word_head(reader, weights):
        raise UserError(f"{folder}: no masked-word head in model.safetensors; it is not a reader of realm_lab")
    if span_head:
        expected = [name for name, _ in reader.named_parameters() if name.startswith(SPAN_HEAD)]
        _load_parts(reader, read_tensors(folder / "span_head.safetensors"), expected, folder)
    return reader


def write_embedder(embedder: Embedder, folder: Path, null_offset: float = 0.0) -> None:
    """Save an embedder: its query tower as a BertModel folder, and what else it needs beside it."""
    write_tensors(folder / "model.safetensors", to_bert(embedder.query_encoder))
    write_json(folder / "config.json", bert_config(embedder.query_encoder.shape, "BertModel"))
    projections = {name: embedder.get_parameter(name).data for name in _projections(embedder)}
    projections["null_offset"] = torch.tensor(null_offset)
    write_tensors(folder / "projections.safetensors", projections)
    if not embedder.share_towers:
        write_tensors(folder / "document" / "model.safetensors", to_bert(embedder.document_encoder))
        write_json(folder / "document" / "config.json", bert_config(embedder.document_encoder.shape, "BertModel"))


def read_embedder(folder: Path) -> tuple[Embedder, float]:
    """Load what write_embedder saved: the embedder and its null document's score offset."""
    shape, weights = read_checkpoint(folder)
    projections = read_tensors(folder / "projections.safetensors")
    if "query_projection.weight" not in projections:
        raise UserError(f"{folder}: no tensor 'query_projection.weight'; it is not an embedder of realm_lab")
    share = not (folder / "document").exists()
    embedder = Embedder(shape, projections["query_projection.weight"].shape[0], share)
    from_bert(embedder.query_encoder, weights, folder)
    if not share:
        from_bert(embedder.document_encoder, read_checkpoint(folder / "document")[1], folder / "document")
    null_offset = float(projections.pop("null_offset", torch.tensor(0.0)))
    _load_parts(embedder, projections, _projections(embedder), folder)
    return embedder, null_offset


def _projections(embedder: Embedder) -> list[str]:
    return [name for name, _ in embedder.named_parameters() if "projection" in name]


def _word_head() -> dict[str, str]:
    """Our parameters of the masked-word head -> BertForMaskedLM's names."""
    names = {"word_bias": f"{HEAD}.bias"}
    for part in ("weight", "bias"):
        names[f"transform.{part}"] = f"{HEAD}.transform.dense.{part}"
        names[f"transform_norm.{part}"] = f"{HEAD}.transform.LayerNorm.{part}"
    return names


def _load_word_head(reader: Reader, weights: dict[str, Tensor]) -> bool:
    names = _word_head()
    if not all(theirs in weights for theirs in names.values()):
        return False
    for ours, theirs in names.items():
        wanted, found = tuple(reader.get_parameter(ours).shape), tuple(weights[theirs].shape)
        if wanted != found:
            raise UserError(f"the checkpoint's '{theirs}' has shape {found}, the parameters ask for {wanted}")
        reader.get_parameter(ours).data.copy_(weights[theirs])
    return True


def _load_parts(module: Reader | Embedder, tensors: dict[str, Tensor], expected: list[str], folder: Path) -> None:
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise UserError(f"{folder}: no tensor '{missing[0]}'; write the model again")
    for name, value in tensors.items():
        parameter = module.get_parameter(name)
        if parameter.shape != value.shape:
            raise UserError(f"{folder}: '{name}' has shape {tuple(value.shape)}, expected {tuple(parameter.shape)}")
        parameter.data.copy_(value)
