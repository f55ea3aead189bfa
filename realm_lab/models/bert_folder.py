"""Plain Hugging Face BERT folders: config.json and safetensors, under BertModel's names. A pickle is never loaded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from realm_lab.errors import UserError
from realm_lab.models.encoder import Encoder, EncoderShape

SUPPORTED = {"hidden_act": ("gelu", "gelu_new"), "position_embedding_type": ("absolute",), "type_vocab_size": (2,)}
POOLER = {"weight": "pooler.dense.weight", "bias": "pooler.dense.bias"}
CONVERT = (
    "import sys, torch; from safetensors.torch import save_file; "
    "tensors = torch.load(sys.argv[1], map_location='cpu', weights_only=True); "
    "save_file({k: v.clone().contiguous() for k, v in tensors.items()}, sys.argv[2])"
)


def bert_names(layers: int) -> dict[str, str | tuple[str, ...]]:
    """Our parameter name -> BertModel's name (three names where ours is one fused matrix)."""
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


def to_bert(encoder: Encoder) -> dict[str, Tensor]:
    """The encoder's weights under BertModel's names."""
    state = encoder.state_dict()
    named: dict[str, Tensor] = {}
    for ours, theirs in bert_names(encoder.shape.layers).items():
        parts = (theirs,) if isinstance(theirs, str) else theirs
        for name, part in zip(parts, state[ours].chunk(len(parts)), strict=True):
            named[name] = part.contiguous()
    return named


def modern_name(name: str) -> str:
    """BertModel's name for a tensor; the first checkpoints say gamma and beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def from_bert(encoder: Encoder, weights: dict[str, Tensor], source: Path) -> None:
    """Copy BertModel weights (with or without a `bert.` prefix) into the encoder."""
    weights = {name.removeprefix("bert."): value for name, value in weights.items()}
    state = encoder.state_dict()
    for ours, theirs in bert_names(encoder.shape.layers).items():
        parts = (theirs,) if isinstance(theirs, str) else theirs
        missing = [name for name in parts if name not in weights]
        if missing:
            raise UserError(f"{source}: no tensor '{missing[0]}'; model.checkpoint must be a BERT-style folder")
        value = torch.cat([weights[name].float() for name in parts])
        if value.shape != state[ours].shape:
            raise UserError(
                f"{source}: '{parts[0]}' has shape {tuple(value.shape)} but the parameters ask for "
                f"{tuple(state[ours].shape)}; set the model section to the checkpoint's sizes"
            )
        state[ours].copy_(value)


def bert_config(shape: EncoderShape, architecture: str) -> dict[str, object]:
    """config.json of a Hugging Face BERT folder with this shape."""
    return {
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


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a Hugging Face folder; a missing or broken one is a UserError."""
    path = Path(folder) / "config.json"
    if not path.exists():
        raise UserError(f"{folder}: no config.json; model.checkpoint must be a local Hugging Face folder")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a BERT configuration ({error})") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: not a BERT configuration (no JSON object)")
    return config


def config_shape(config: dict[str, Any], folder: Path, activation: str = "gelu") -> EncoderShape:
    """The shape a config.json states; `activation` where it names none."""
    path = Path(folder) / "config.json"
    for name, values in SUPPORTED.items():
        if config.get(name, values[0]) not in values:
            raise UserError(f"{path}: {name} is {config[name]}; only {' and '.join(map(str, values))} are supported")
    try:
        return EncoderShape(
            config["vocab_size"],
            config["hidden_size"],
            config["num_hidden_layers"],
            config["num_attention_heads"],
            config["intermediate_size"],
            config["max_position_embeddings"],
            config.get("hidden_dropout_prob", 0.0),
            config.get("hidden_act", activation),
            float(config.get("layer_norm_eps", 1e-12)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a BERT configuration ({error})") from None


def read_checkpoint(folder: Path) -> tuple[EncoderShape, dict[str, Tensor]]:
    """Shape and weights of a Hugging Face BERT folder."""
    folder = Path(folder)
    shape = config_shape(read_config(folder), folder)
    return shape, {modern_name(name): value for name, value in read_weights(folder).items()}


def read_pooler(weights: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """Weight and bias of BERT's pooler, where a checkpoint has one."""
    bare = {name.removeprefix("bert."): value for name, value in weights.items()}
    if not all(theirs in bare for theirs in POOLER.values()):
        return None
    return {ours: bare[theirs].float() for ours, theirs in POOLER.items()}


def read_weights(folder: Path, keep: Callable[[str], bool] | None = None) -> dict[str, Tensor]:
    """Tensors of model.safetensors, or of the parts that model.safetensors.index.json lists; `keep` picks by name."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.exists() or not index.exists():
        return read_tensors(single, keep)
    try:
        parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index}: not an index of safetensors ({error}); copy the file again") from None
    return {name: value for part in parts for name, value in read_tensors(folder / part, keep).items()}


def read_tensors(path: Path, keep: Callable[[str], bool] | None = None) -> dict[str, Tensor]:
    """Tensors of a safetensors file; a missing or truncated one is a UserError. `keep` picks by name."""
    if not path.exists():
        pickled = path.parent / "pytorch_model.bin"
        if not pickled.exists():
            raise UserError(f"{path}: no such file; convert the weights to safetensors (pickles are never loaded)")
        command = shlex.join(["python", "-c", CONVERT, str(pickled), str(path)])
        raise UserError(
            f"{path}: no such file; convert the weights to safetensors (pickles are never loaded) with: {command}"
        )
    try:
        with safe_open(str(path), "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if keep is None or keep(name)}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: truncated or not safetensors ({error}); copy the file again") from None


def write_tensors(path: Path, tensors: dict[str, Tensor], names: Sequence[str] | None = None) -> None:
    """Save tensors as safetensors (contiguous, on the CPU)."""
    kept = tensors if names is None else {name: tensors[name] for name in names}
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {name: value.detach().cpu().contiguous() for name, value in kept.items()}
    save_file(found, str(path), metadata={"format": "pt"})  # transformers 4 opens no file without it
