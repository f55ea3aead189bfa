"""Models as Hugging Face folders: config.json and safetensors, under transformers' names. A pickle is never loaded.

A plain Hugging Face folder is read as it is. A stage writes the folders below, whose encoders
`AutoModel.from_pretrained` opens. Encoders of families other than BERT (hub.py) have their family's classes instead.
reader/    config.json, model.safetensors (BertForMaskedLM); after fine-tuning span_head.safetensors (with the
           passage-selection head if the reader has one)
embedder/  config.json, model.safetensors (BertModel: the query tower, with its pooler if it has one),
           embedder.json (EmbedderShape), projections.safetensors (projections, norms, null vector, null_offset),
           document/ (BertModel: the document tower, if the towers are separate)
A tower that reads pictures has `patch_values` in its config.json and `embeddings.patch_projection.*` among its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from realm_lab.engine.models.embedder import Embedder, EmbedderShape
from realm_lab.engine.models.encoder import Encoder, EncoderShape, initialise_patches
from realm_lab.engine.models.hub import AnyEncoder, family_of, hub_config, hub_shape
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.params.checkpoint import (
    BERT,
    OF_BERT,
    check_config,
    open_weights,
    positions_of,
    to_convert,
    weight_files,
)
from realm_lab.errors import UserError
from realm_lab.records.digests import check_file
from realm_lab.records.files import read_json, write_json

# Parameter of this package -> the tensor's name in a file, or three names for a fused matrix.
Names = Mapping[str, str | tuple[str, ...]]
POOLER = {"weight": "pooler.dense.weight", "bias": "pooler.dense.bias"}
PATCHES = {
    name: f"embeddings.{name}" for name in ("patch_projection.weight", "patch_projection.bias", "patch_places.weight")
}
EMBEDDER_JSON = "embedder.json"
SPAN_HEAD_FILE = "span_head.safetensors"
SPAN_HEAD = ("span_projection", "span_norm", "span_score")
SPAN_NAMES = {f"{part}.{kind}": f"{part}.{kind}" for part in SPAN_HEAD for kind in ("weight", "bias")}
SELECTION_NAMES = {"selection.weight": "selection.weight"}


def bert_names(layers: int) -> Names:
    """Map the names of an encoder's parameters to BertModel's."""
    names: dict[str, str | tuple[str, ...]] = {
        "word_embeddings.weight": "embeddings.word_embeddings.weight",
        "position_embeddings.weight": "embeddings.position_embeddings.weight",
        "type_embeddings.weight": "embeddings.token_type_embeddings.weight",
        "norm.weight": "embeddings.LayerNorm.weight",
        "norm.bias": "embeddings.LayerNorm.bias",
    }
    for layer in range(layers):
        theirs, ours = f"encoder.layer.{layer}", f"blocks.{layer}"
        for part in ("weight", "bias"):
            fused = ("query", "key", "value")
            names[f"{ours}.qkv.{part}"] = tuple(f"{theirs}.attention.self.{name}.{part}" for name in fused)
            names[f"{ours}.attention_output.{part}"] = f"{theirs}.attention.output.dense.{part}"
            names[f"{ours}.attention_norm.{part}"] = f"{theirs}.attention.output.LayerNorm.{part}"
            names[f"{ours}.intermediate.{part}"] = f"{theirs}.intermediate.dense.{part}"
            names[f"{ours}.output.{part}"] = f"{theirs}.output.dense.{part}"
            names[f"{ours}.output_norm.{part}"] = f"{theirs}.output.LayerNorm.{part}"
    return names


def named_tensors(module: nn.Module, names: Names) -> dict[str, Tensor]:
    """Return a module's parameters under the names of a file."""
    named: dict[str, Tensor] = {}
    for ours, theirs in names.items():
        parts = (theirs,) if isinstance(theirs, str) else theirs
        for name, part in zip(parts, module.get_parameter(ours).chunk(len(parts)), strict=True):
            named[name] = part.detach().contiguous()
    return named


def load_named(module: nn.Module, tensors: Mapping[str, Tensor], names: Names, source: Path | str) -> None:
    """Copy the tensors of a file into a module's parameters; a missing or differently shaped one is a UserError."""
    for ours, theirs in names.items():
        parts = (theirs,) if isinstance(theirs, str) else theirs
        missing = [name for name in parts if name not in tensors]
        if missing:
            remedy = "choose one that the parameters describe (model.checkpoint: a BERT-style folder)"
            raise UserError(f"no tensor '{missing[0]}'; it holds another model", path=source, remedy=remedy)
        parameter, value = module.get_parameter(ours), torch.cat([tensors[name] for name in parts])
        if value.shape != parameter.shape:
            found = f"'{parts[0]}' has shape {tuple(value.shape)}, the parameters ask for {tuple(parameter.shape)}"
            section = "finetune.span_hidden_size" if ours in SPAN_NAMES else "the model section"
            raise UserError(found, path=source, remedy=f"set {section} to its sizes")
        parameter.data.copy_(value)


def load_parameters(module: nn.Module, path: Path) -> None:
    """Load a module from a file that has its parameters under the module's names; UserErrors as in `load_named`."""
    load_named(module, read_tensors(path), {name: name for name, _ in module.named_parameters()}, path)


def to_bert(encoder: Encoder) -> dict[str, Tensor]:
    """Return the encoder's weights under BertModel's names."""
    pictures = PATCHES if encoder.patch_projection is not None else {}
    return named_tensors(encoder, {**bert_names(encoder.shape.layers), **pictures})


def from_bert(encoder: Encoder, weights: Mapping[str, Tensor], source: Path) -> None:
    """Copy BertModel weights into the encoder; a missing projection of pixels is drawn from a fixed seed."""
    load_named(encoder, weights, bert_names(encoder.shape.layers), source)
    if PATCHES["patch_projection.weight"] in weights and encoder.patch_projection is not None:
        load_named(encoder, weights, PATCHES, source)
    else:
        initialise_patches(encoder, torch.Generator().manual_seed(0))


def load_encoder(encoder: AnyEncoder, weights: Mapping[str, Tensor], source: Path) -> None:
    """Copy weights, named as in BertModel or in the family's model, into an encoder."""
    if isinstance(encoder, Encoder):
        from_bert(encoder, weights, source)
    else:
        load_named(encoder.model, weights, {name: name for name, _ in encoder.model.named_parameters()}, source)


def encoder_tensors(encoder: AnyEncoder) -> dict[str, Tensor]:
    """Return the weights of an encoder under the names of BertModel, or of the family's model."""
    return to_bert(encoder) if isinstance(encoder, Encoder) else dict(encoder.model.named_parameters())


def head_names(shape: EncoderShape) -> dict[str, str]:
    """Map our parameters of the masked-word head to the names of BertForMaskedLM, or of the family's model."""
    return (family_of(shape) or BERT).head


def modern_name(name: str) -> str:
    """Return BertModel's name for a tensor of BertModel or of a model around it. The oldest files have gamma and beta
    for LayerNorm's weight and bias."""
    bare = name.removeprefix("bert.")
    return bare.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def bert_config(shape: EncoderShape, architecture: str) -> dict[str, object]:
    """Make the config.json of a Hugging Face BERT folder with this shape."""
    pictures = {"patch_values": shape.patch_values} if shape.patch_values else {}
    return pictures | {
        "architectures": [architecture],
        "model_type": "bert",
        "hidden_act": shape.activation,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.positions,
        "vocab_size": shape.vocabulary_size,
        "type_vocab_size": 2,
        "layer_norm_eps": shape.layer_norm_epsilon,
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.dropout,
        "pad_token_id": 0,
    }


def folder_config(shape: EncoderShape, masked_words: bool) -> dict[str, object]:
    """Make the config.json of an encoder, or of a masked-language model, of any family."""
    if shape.config:
        return hub_config(shape, masked_words)
    return bert_config(shape, "BertForMaskedLM" if masked_words else "BertModel")


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a Hugging Face folder; a missing or broken one is a UserError."""
    path = Path(folder) / "config.json"
    if not path.exists():
        raise UserError("no config.json", "model.checkpoint must be a local Hugging Face folder", path=folder)
    check_file(path)
    config = read_json(path)
    if not isinstance(config, dict):
        raise UserError("not a BERT configuration (no JSON object)", path=path)
    return config


def read_shape(folder: Path) -> EncoderShape:
    """Read the shape from config.json of a Hugging Face folder."""
    config, path = read_config(folder), Path(folder) / "config.json"
    check_config(config, path)
    if config.get("model_type") not in OF_BERT:
        return hub_shape(config, path)
    default_activation = "gelu_new" if config.get("model_type") == "realm" else "gelu"  # transformers' own defaults
    try:
        return EncoderShape(
            config["vocab_size"],
            config["hidden_size"],
            config["num_hidden_layers"],
            config["num_attention_heads"],
            config["intermediate_size"],
            positions_of(config),
            config.get("hidden_dropout_prob", 0.0),
            config.get("hidden_act", default_activation),
            float(config.get("layer_norm_eps", 1e-12)),
            config.get("patch_values", 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"not a BERT configuration ({error})", path=path) from None


def read_checkpoint(folder: Path) -> tuple[EncoderShape, dict[str, Tensor]]:
    """Read shape and weights of a Hugging Face folder. The encoder's weights get the names of BertModel, or of the
    family's model."""
    shape, weights = read_shape(folder), read_weights(folder)
    family = family_of(shape)
    if family is None:
        return shape, {modern_name(name): value for name, value in weights.items()}
    return shape, {name.removeprefix(f"{family.encoder}."): value for name, value in weights.items()}


def read_weights(folder: Path, keep: Callable[[str], bool] | None = None) -> dict[str, Tensor]:
    """Read the tensors of a model's folder, from one file or several; `keep` picks by name. UserError: a value is NaN
    or infinite."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder):
        for name, value in read_tensors(path, keep).items():
            if value.is_floating_point() and not value.isfinite().all():
                raise UserError(
                    f"'{name}' has NaN or infinite values", "copy the file again, or train it anew", path=path
                )
            weights[name] = value
    return weights


def read_tensors(path: Path, keep: Callable[[str], bool] | None = None) -> dict[str, Tensor]:
    """Read tensors of a safetensors file; a missing, truncated or damaged one is a UserError. `keep` picks by name."""
    if not path.exists():
        if (pickled := path.parent / "pytorch_model.bin").exists():
            raise UserError("pickled weights are never loaded", path=pickled, remedy=to_convert(pickled, path))
        raise UserError("no such file", path=path, remedy="give a folder with safetensors")
    check_file(path)
    with open_weights(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys() if keep is None or keep(name)}  # noqa: SIM118


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Save tensors as safetensors (contiguous, on the CPU)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(found, str(path), metadata={"format": "pt"})  # transformers 4 opens no file without this metadata


def write_reader(reader: Reader, folder: Path, span_head: bool = True) -> None:
    """Save a reader as a masked-language model's folder, with its span head if `span_head`."""
    shape, own = reader.encoder.shape, {name for name, _ in reader.named_parameters()}
    prefix = (family_of(shape) or BERT).encoder
    weights = {f"{prefix}.{name}": value for name, value in encoder_tensors(reader.encoder).items()}
    weights |= named_tensors(reader, {ours: theirs for ours, theirs in head_names(shape).items() if ours in own})
    write_tensors(folder / "model.safetensors", weights)
    if span_head:
        selection = {} if reader.selection is None else SELECTION_NAMES
        write_tensors(folder / SPAN_HEAD_FILE, named_tensors(reader, SPAN_NAMES | selection))
    write_json(folder / "config.json", folder_config(shape, masked_words=True))


def write_embedder(embedder: Embedder, folder: Path, null_offset: float = 0.0) -> None:
    """Save an embedder: its query tower as a BertModel folder, and its other parts next to it."""
    write_tower(folder, embedder.query_encoder, embedder.query_pooler)
    parts = named_tensors(embedder, _beside_towers(embedder)) | {"null_offset": torch.tensor(null_offset)}
    write_tensors(folder / "projections.safetensors", parts)
    if not embedder.share_towers:
        write_tower(folder / "document", embedder.document_encoder, embedder.document_pooler)
    write_json(folder / EMBEDDER_JSON, embedder.head._asdict())


def read_embedder(folder: Path) -> tuple[Embedder, float]:
    """Load the embedder and its null document's score offset from a folder of `write_embedder`."""
    shape, weights = read_checkpoint(folder)
    check_file(folder / EMBEDDER_JSON)
    try:
        head = EmbedderShape(**read_json(folder / EMBEDDER_JSON))
    except TypeError:
        problem = f"not an object with the fields {', '.join(EmbedderShape._fields)}"
        raise UserError(problem, "copy the folder again", path=folder / EMBEDDER_JSON) from None
    embedder = Embedder(shape, head)
    load_tower(embedder.query_encoder, embedder.query_pooler, weights, folder)
    if not head.share_towers:
        _, weights = read_checkpoint(folder / "document")
        load_tower(embedder.document_encoder, embedder.document_pooler, weights, folder / "document")
    tensors = read_tensors(folder / "projections.safetensors")
    null_offset = float(tensors.pop("null_offset", torch.tensor(0.0)))
    load_named(embedder, tensors, _beside_towers(embedder), folder)
    return embedder, null_offset


def load_tower(encoder: AnyEncoder, pooler: nn.Linear | None, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Copy a folder's weights into a tower, with the pooler if it has one."""
    load_encoder(encoder, weights, folder)
    if pooler is not None:
        load_named(pooler, weights, POOLER, folder)


def write_tower(folder: Path, encoder: AnyEncoder, pooler: nn.Linear | None) -> None:
    """Save an encoder as a folder, with the pooler if it has one."""
    weights = encoder_tensors(encoder)
    if pooler is not None:
        weights |= named_tensors(pooler, POOLER)
    write_tensors(folder / "model.safetensors", weights)
    write_json(folder / "config.json", folder_config(encoder.shape, masked_words=False))


def _beside_towers(embedder: Embedder) -> Names:
    """Return the names of tensors that no BertModel holds: projections, norms and the null vector."""
    parts = ("_projection.", "_norm.", "null_vector")
    names = [name for name, _ in embedder.named_parameters() if "_encoder." not in name]
    return {name: name for name in names if any(part in name for part in parts)}
