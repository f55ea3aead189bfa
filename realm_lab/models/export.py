"""Models as plain Hugging Face folders: `AutoModel.from_pretrained` opens the encoders, safetensors hold the rest.

reader/    config.json, model.safetensors (BertForMaskedLM), span_head.safetensors
embedder/  config.json, model.safetensors (BertModel: the query tower, with its pooler where it has one),
           embedder.json (EmbedderShape), projections.safetensors (projections, their norms, the null vector),
           document/ (BertModel: the document tower, where the towers are separate)
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from realm_lab.core.files import read_json, write_json
from realm_lab.errors import UserError
from realm_lab.models.bert_folder import (
    POOLER,
    bert_config,
    from_bert,
    read_checkpoint,
    read_pooler,
    read_tensors,
    to_bert,
    write_tensors,
)
from realm_lab.models.embedder import Embedder, EmbedderShape
from realm_lab.models.encoder import Encoder
from realm_lab.models.reader import Reader

EMBEDDER_JSON = "embedder.json"
SPAN_HEAD_FILE = "span_head.safetensors"
SPAN_HEAD = ("span_projection", "span_norm", "span_score")
WORD_HEAD = {
    "word_bias": "cls.predictions.bias",
    "transform.weight": "cls.predictions.transform.dense.weight",
    "transform.bias": "cls.predictions.transform.dense.bias",
    "transform_norm.weight": "cls.predictions.transform.LayerNorm.weight",
    "transform_norm.bias": "cls.predictions.transform.LayerNorm.bias",
}  # our parameters of the masked-word head -> BertForMaskedLM's names


def write_reader(reader: Reader, folder: Path, span_head: bool = True) -> None:
    """Save a reader as a BertForMaskedLM folder, with the span head beside it where there is one to keep."""
    weights = {f"bert.{name}": value for name, value in to_bert(reader.encoder).items()}
    write_tensors(folder / "model.safetensors", weights | word_head(reader))
    if span_head:
        write_tensors(folder / SPAN_HEAD_FILE, {name: reader.get_parameter(name) for name in span_names(reader)})
    write_json(folder / "config.json", bert_config(reader.encoder.shape, "BertForMaskedLM"))


def read_reader(folder: Path, span_hidden_size: int, span_head: bool = True) -> Reader:
    """Load what write_reader saved; without `span_head` that part stays to be initialised."""
    shape, weights = read_checkpoint(folder)
    reader = Reader(shape, span_hidden_size)
    from_bert(reader.encoder, weights, folder)
    if not load_word_head(reader, weights):
        raise UserError(f"{folder}: no masked-word head in model.safetensors; it is not a reader of realm_lab")
    if span_head:
        load_parts(reader, read_tensors(folder / SPAN_HEAD_FILE), span_names(reader), folder)
    return reader


def write_embedder(embedder: Embedder, folder: Path, null_offset: float = 0.0) -> None:
    """Save an embedder: its query tower as a BertModel folder, and what else it needs beside it."""
    _write_tower(folder, embedder.query_encoder, embedder.query_pooler)
    parts: dict[str, Tensor] = {name: embedder.get_parameter(name) for name in _beside_towers(embedder)}
    write_tensors(folder / "projections.safetensors", parts | {"null_offset": torch.tensor(null_offset)})
    if not embedder.share_towers:
        _write_tower(folder / "document", embedder.document_encoder, embedder.document_pooler)
    write_json(folder / EMBEDDER_JSON, embedder.head._asdict())


def read_embedder(folder: Path) -> tuple[Embedder, float]:
    """Load what write_embedder saved: the embedder and its null document's score offset."""
    shape, weights = read_checkpoint(folder)
    if not (folder / EMBEDDER_JSON).exists():
        raise UserError(f"{folder}: no {EMBEDDER_JSON}; it is not an embedder of realm_lab")
    try:
        head = EmbedderShape(**read_json(folder / EMBEDDER_JSON))
    except TypeError as error:
        raise UserError(f"{folder / EMBEDDER_JSON}: not an embedder's shape ({error}); write the model again") from None
    embedder = Embedder(shape, head)
    from_bert(embedder.query_encoder, weights, folder)
    load_pooler(embedder.query_pooler, weights, folder)
    if not head.share_towers:
        _, weights = read_checkpoint(folder / "document")
        from_bert(embedder.document_encoder, weights, folder / "document")
        load_pooler(embedder.document_pooler, weights, folder / "document")
    tensors = read_tensors(folder / "projections.safetensors")
    null_offset = float(tensors.pop("null_offset", torch.tensor(0.0)))
    load_parts(embedder, tensors, _beside_towers(embedder), folder)
    return embedder, null_offset


def word_head(reader: Reader) -> dict[str, Tensor]:
    """The masked-word head under BertForMaskedLM's names."""
    return {theirs: reader.get_parameter(ours).detach() for ours, theirs in WORD_HEAD.items()}


def span_names(reader: Reader) -> list[str]:
    """Names of the span head's parameters."""
    return [name for name, _ in reader.named_parameters() if name.startswith(SPAN_HEAD)]


def load_word_head(reader: Reader, weights: dict[str, Tensor]) -> bool:
    """Copy BertForMaskedLM's word head into the reader; False where the weights hold none."""
    if not all(theirs in weights for theirs in WORD_HEAD.values()):
        return False
    for ours, theirs in WORD_HEAD.items():
        wanted, found = tuple(reader.get_parameter(ours).shape), tuple(weights[theirs].shape)
        if wanted != found:
            raise UserError(f"the checkpoint's '{theirs}' has shape {found}, the parameters ask for {wanted}")
        reader.get_parameter(ours).data.copy_(weights[theirs])
    return True


def load_pooler(pooler: nn.Linear | None, weights: dict[str, Tensor], folder: Path) -> None:
    """Copy BERT's pooler where the tower has one."""
    if pooler is None:
        return
    found = read_pooler(weights)
    if found is None:
        raise UserError(f"{folder}: no tensor '{POOLER['weight']}', which pooling tanh needs; write the model again")
    pooler.load_state_dict(found)


def load_parts(module: nn.Module, tensors: dict[str, Tensor], expected: list[str], folder: Path) -> None:
    """Copy tensors into parameters of the same names; `expected` must be among them."""
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise UserError(f"{folder}: no tensor '{missing[0]}'; write the model again")
    for name in expected:
        parameter, value = module.get_parameter(name), tensors[name]
        if parameter.shape != value.shape:
            raise UserError(f"{folder}: '{name}' has shape {tuple(value.shape)}, expected {tuple(parameter.shape)}")
        parameter.data.copy_(value)


def _write_tower(folder: Path, encoder: Encoder, pooler: nn.Linear | None) -> None:
    weights = to_bert(encoder)
    if pooler is not None:
        weights |= {theirs: pooler.get_parameter(ours) for ours, theirs in POOLER.items()}
    write_tensors(folder / "model.safetensors", weights)
    write_json(folder / "config.json", bert_config(encoder.shape, "BertModel"))


def _beside_towers(embedder: Embedder) -> list[str]:
    """What no BertModel holds: projections, norms and the null vector."""
    parts = ("_projection.", "_norm.", "null_vector")
    return [
        name
        for name, _ in embedder.named_parameters()
        if any(part in name for part in parts) and "_encoder." not in name
    ]
