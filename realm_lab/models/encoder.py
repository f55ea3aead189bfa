"""A BERT encoder whose parameters map one to one onto transformers' BertModel.

Our own module because two exact savings need it: the last block is computed only at the positions that are
used ([CLS], or the masked tokens), and attention is spelled out where a gradient is needed on a CPU (the fused
kernel's backward is several times slower there) and fused elsewhere. `tests/models/test_encoder.py` holds it to
BertModel's numbers; `benchmarks/` measures what the savings are worth.
"""

# Shapes: B sequences, L positions, M selected positions, D hidden size, H heads, E head size

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from realm_lab.errors import UserError

MASKED = -1.0e4  # added to the logits of padding: exp underflows to 0, and no row turns into NaN
LAYER_NORM_EPSILON = 1e-12  # BERT's
SUPPORTED = {"hidden_act": "gelu", "layer_norm_eps": LAYER_NORM_EPSILON, "position_embedding_type": "absolute"}


class EncoderShape(NamedTuple):
    """Sizes of an encoder."""

    vocabulary_size: int
    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    positions: int
    dropout: float = 0.0


class Block(nn.Module):
    """One post-norm Transformer layer, with query, key and value in one matrix."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        size = shape.hidden_size
        self.heads, self.dropout = shape.heads, shape.dropout
        self.qkv = nn.Linear(size, 3 * size)
        self.attention_output = nn.Linear(size, size)
        self.attention_norm = nn.LayerNorm(size, eps=LAYER_NORM_EPSILON)
        self.intermediate = nn.Linear(size, shape.intermediate_size)
        self.output = nn.Linear(shape.intermediate_size, size)
        self.output_norm = nn.LayerNorm(size, eps=LAYER_NORM_EPSILON)

    def forward(self, hidden_BLD: Tensor, bias_B11L: Tensor, at_BM: Tensor | None = None) -> Tensor:
        """Hidden states after the layer, [B, L, D], or [B, M, D] at positions `at_BM` only."""
        size = hidden_BLD.shape[-1]
        if at_BM is None:
            query, key, value = self.qkv(hidden_BLD).split(size, dim=-1)
            kept = hidden_BLD
        else:
            kept = hidden_BLD.gather(1, at_BM[:, :, None].expand(-1, -1, size))
            query = functional.linear(kept, self.qkv.weight[:size], self.qkv.bias[:size])
            key, value = functional.linear(hidden_BLD, self.qkv.weight[size:], self.qkv.bias[size:]).split(size, -1)
        context = self._attend(self._split(query), self._split(key), self._split(value), bias_B11L)
        context = functional.dropout(self.attention_output(context), self.dropout, self.training)
        hidden = self.attention_norm(kept + context)
        inner = self.output(functional.gelu(self.intermediate(hidden)))
        return self.output_norm(hidden + functional.dropout(inner, self.dropout, self.training))

    def _split(self, states: Tensor) -> Tensor:
        batch, length, size = states.shape
        return states.view(batch, length, self.heads, size // self.heads).transpose(1, 2)

    def _attend(self, query_BHME: Tensor, key_BHLE: Tensor, value_BHLE: Tensor, bias_B11L: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if torch.is_grad_enabled() and query_BHME.device.type == "cpu":
            scores = query_BHME @ key_BHLE.transpose(-1, -2) / query_BHME.shape[-1] ** 0.5
            weights = functional.dropout((scores + bias_B11L).softmax(-1), dropout, self.training)
            context = weights @ value_BHLE
        else:
            bias = bias_B11L.to(query_BHME.dtype)
            context = functional.scaled_dot_product_attention(query_BHME, key_BHLE, value_BHLE, bias, dropout)
        return context.transpose(1, 2).flatten(2)


class Encoder(nn.Module):
    """BERT: embeddings and a stack of blocks."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.shape = shape
        self.word_embeddings = nn.Embedding(shape.vocabulary_size, shape.hidden_size)
        self.position_embeddings = nn.Embedding(shape.positions, shape.hidden_size)
        self.type_embeddings = nn.Embedding(2, shape.hidden_size)
        self.norm = nn.LayerNorm(shape.hidden_size, eps=LAYER_NORM_EPSILON)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))

    def forward(self, tokens_BL: Tensor, types_BL: Tensor, mask_BL: Tensor, at_BM: Tensor | None = None) -> Tensor:
        """Final hidden states, [B, L, D], or [B, M, D] at positions `at_BM` (int64).

        `mask_BL` is true at real tokens. `at_BM` saves the last block's work elsewhere and changes no number.
        """
        length = tokens_BL.shape[1]
        if length > self.shape.positions:
            raise UserError(f"a sequence of {length} wordpieces does not fit the encoder's {self.shape.positions}")
        embedded = self.word_embeddings(tokens_BL) + self.type_embeddings(types_BL)
        hidden = self.norm(embedded + self.position_embeddings.weight[:length])
        hidden = functional.dropout(hidden, self.shape.dropout, self.training)
        bias_B11L = (~mask_BL)[:, None, None, :].to(torch.float32) * MASKED
        *first, last = self.blocks
        for block in first:
            hidden = block(hidden, bias_B11L)
        return last(hidden, bias_B11L, at_BM)


def initialise(encoder: Encoder, generator: torch.Generator) -> None:
    """Initial weights for training from scratch.

    Matrices ~ N(0, 1/fan_in), the two that write into the residual stream scaled by 1/sqrt(2 layers), and positions
    start as sinusoids: a narrow encoder learns to copy several times sooner than from BERT's N(0, 0.02).
    """
    size, layers = encoder.shape.hidden_size, encoder.shape.layers
    for module in encoder.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, module.in_features**-0.5, generator=generator)
            nn.init.zeros_(module.bias)
    for block in encoder.blocks:
        assert isinstance(block, Block)
        for linear in (block.attention_output, block.output):
            linear.weight.data.mul_((2 * layers) ** -0.5)
    nn.init.normal_(encoder.word_embeddings.weight, 0.0, size**-0.5, generator=generator)
    nn.init.normal_(encoder.type_embeddings.weight, 0.0, 0.02, generator=generator)
    encoder.position_embeddings.weight.data.copy_(torch.from_numpy(sinusoids(encoder.shape.positions, size)))


def sinusoids(positions: int, size: int, base: float = 200.0) -> np.ndarray:
    """Sinusoidal position vectors with the norm of a word embedding, float32 [positions, size]."""
    frequency = base ** -(np.arange(size // 2) / (size / 2))
    angle = np.arange(positions)[:, None] * frequency[None, :]
    return (np.concatenate([np.sin(angle), np.cos(angle)], axis=1) * (2 / size) ** 0.5).astype(np.float32)


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
        "hidden_act": "gelu",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.positions,
        "vocab_size": shape.vocabulary_size,
        "type_vocab_size": 2,
        "layer_norm_eps": LAYER_NORM_EPSILON,
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.dropout,
        "pad_token_id": 0,
    }


def read_checkpoint(folder: Path) -> tuple[EncoderShape, dict[str, Tensor]]:
    """Shape and weights of a Hugging Face BERT folder (safetensors only: a pickle is never loaded)."""
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise UserError(f"{folder}: no config.json; model.checkpoint must be a local Hugging Face folder")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        shape = EncoderShape(
            config["vocab_size"],
            config["hidden_size"],
            config["num_hidden_layers"],
            config["num_attention_heads"],
            config["intermediate_size"],
            config["max_position_embeddings"],
            config.get("hidden_dropout_prob", 0.0),
        )
    except (json.JSONDecodeError, KeyError) as error:
        raise UserError(f"{folder / 'config.json'}: not a BERT configuration ({error})") from None
    for name, only in SUPPORTED.items():
        if config.get(name, only) != only:
            raise UserError(f"{folder / 'config.json'}: {name} is {config[name]}; only {only} is supported")
    tensors = read_tensors(folder / "model.safetensors")
    return shape, {modern_name(name): value for name, value in tensors.items()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file; a missing or truncated one is a UserError."""
    if not path.exists():
        raise UserError(f"{path}: no such file; convert the weights to safetensors (pickles are never loaded)")
    try:
        return load_file(str(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: truncated or not safetensors ({error}); copy the file again") from None


def write_tensors(path: Path, tensors: dict[str, Tensor], names: Sequence[str] | None = None) -> None:
    """Save tensors as safetensors (contiguous, on the CPU)."""
    kept = tensors if names is None else {name: tensors[name] for name in names}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.detach().cpu().contiguous() for name, value in kept.items()}, str(path))
