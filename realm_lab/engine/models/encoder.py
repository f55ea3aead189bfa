"""A BERT encoder that computes the same as transformers' BertModel from the same weights.

It exists for three savings without approximation. The last block is computed only at the positions that are used
([CLS], or the masked tokens). In bfloat16 on a CPU the other blocks compute padding only in their attention. Attention
is computed step by step if a gradient is needed on a CPU, since the fused kernel's backward is several times slower
there. `tests/engine/models/test_encoder.py` compares its outputs with BertModel's; `benchmarks/` measures the savings.
"""

# Shapes: B sequences, L positions, M selected positions, N packed positions, D hidden size, H heads, E head size

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from realm_lab.errors import UserError

BLANK_VARIANCE = 0.01  # added to the variance of a patch (pixels 0 to 1), so that the noise of a blank one stays small
# For bfloat16 on a CPU, oneDNN compiles a product for every new shape. So lengths and rows are multiples of these.
LENGTHS, ROWS = 8, 32
MASKED = -1.0e4  # added to the logits of padding: exp underflows to 0, and no row turns into NaN


class EncoderShape(NamedTuple):
    """Sizes of an encoder, and all other settings of its computation."""

    vocabulary_size: int
    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    positions: int
    dropout: float = 0.0
    activation: str = "gelu"  # or "gelu_new", the tanh approximation
    layer_norm_epsilon: float = 1e-12  # BERT's
    patch_values: int = 0  # pixel values of a patch; 0: no pictures are read
    config: str = ""  # config.json, sorted, of a family other than BERT (hub.py)


def activate(states: Tensor, activation: str) -> Tensor:
    """Compute GELU, exact or by its tanh approximation (`gelu_new`: Google's BERT and REALM)."""
    return functional.gelu(states, approximate="tanh" if activation == "gelu_new" else "none")


class Packing(NamedTuple):
    """The positions that are computed: the real ones, and padding up to a multiple of ROWS."""

    at_N: Tensor  # int64, in the flattened batch
    batch: int
    length: int

    @classmethod
    def of(cls, mask_BL: Tensor) -> Packing | None:
        """Return the packing of a batch; None if it would leave nothing out."""
        count = -(-int(mask_BL.sum()) // ROWS) * ROWS
        if count >= mask_BL.numel():
            return None
        return cls((~mask_BL).flatten().argsort(stable=True)[:count], *mask_BL.shape)

    def pack(self, states_BLD: Tensor) -> Tensor:
        """Return the states at the positions, [N, D]."""
        return states_BLD.flatten(0, 1).index_select(0, self.at_N)

    def unpack(self, states_ND: Tensor) -> Tensor:
        """Return packed states in their positions, [B, L, D], with zeros elsewhere."""
        states_SD = states_ND.new_zeros(self.batch * self.length, states_ND.shape[-1])
        return states_SD.index_copy(0, self.at_N, states_ND).view(self.batch, self.length, -1)


class Block(nn.Module):
    """One post-norm Transformer layer, with query, key and value in one matrix."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        size = shape.hidden_size
        self.heads, self.dropout, self.activation = shape.heads, shape.dropout, shape.activation
        self.qkv = nn.Linear(size, 3 * size)
        self.attention_output = nn.Linear(size, size)
        self.attention_norm = nn.LayerNorm(size, eps=shape.layer_norm_epsilon)
        self.intermediate = nn.Linear(size, shape.intermediate_size)
        self.output = nn.Linear(shape.intermediate_size, size)
        self.output_norm = nn.LayerNorm(size, eps=shape.layer_norm_epsilon)

    def forward(
        self, hidden_BLD: Tensor, bias_B11L: Tensor, at_BM: Tensor | None = None, packing: Packing | None = None
    ) -> Tensor:
        """Return hidden states after the layer, [B, L, D], or [B, M, D] only at positions `at_BM`. Packed states give
        packed ones, [N, D]."""
        if packing is not None:
            return self._packed(hidden_BLD, bias_B11L, packing)
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
        return self._feed_forward(self.attention_norm(kept + context))

    def _packed(self, hidden_ND: Tensor, bias_B11L: Tensor, packing: Packing) -> Tensor:
        states_BLC = packing.unpack(self.qkv(hidden_ND))
        query, key, value = (self._split(part) for part in states_BLC.split(hidden_ND.shape[-1], dim=-1))
        context_ND = packing.pack(self._attend(query, key, value, bias_B11L))
        context_ND = functional.dropout(self.attention_output(context_ND), self.dropout, self.training)
        return self._feed_forward(self.attention_norm(hidden_ND + context_ND))

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        inner = self.output(activate(self.intermediate(hidden), self.activation))
        normed: Tensor = self.output_norm(hidden + functional.dropout(inner, self.dropout, self.training))
        return normed

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
        self.norm = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_epsilon)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.patch_projection: nn.Linear | None = None
        if shape.patch_values:
            self.patch_projection = nn.Linear(shape.patch_values, shape.hidden_size)
            self.patch_places = nn.Embedding(shape.positions, shape.hidden_size)
        self.patches: Tensor | None  # uint8 [patches, patch values]; the first has the id vocabulary_size
        self.register_buffer("patches", None, persistent=False)

    def embed(self, tokens_BL: Tensor) -> Tensor:
        """Embed token ids, [B, L, D]. A wordpiece has its embedding. A patch of a picture has a projection of its
        standardised pixels plus an embedding of its position in the picture (Dosovitskiy et al. 2021)."""
        if self.patch_projection is None or self.patches is None:
            words_BLD: Tensor = self.word_embeddings(tokens_BL)
            return words_BLD
        words, tokens_N = self.shape.vocabulary_size, tokens_BL.flatten()
        is_patch_BL = tokens_BL >= words
        at_P = is_patch_BL.flatten().nonzero()[:, 0]
        place_P = is_patch_BL.cumsum(1).flatten()[at_P] - 1
        pixels_PC = self.patches[tokens_N[at_P] - words].float() / 255
        # Scaled to length 1, like the one-hot vector of a word. Unscaled patches train unstably, and patches of length
        # .2 are learned late.
        standard_PC = functional.layer_norm(pixels_PC, pixels_PC.shape[1:], eps=BLANK_VARIANCE)
        patch_PD = self.patch_projection(standard_PC * pixels_PC.shape[1] ** -0.5) + self.patch_places(place_P)
        embedded_ND: Tensor = self.word_embeddings(tokens_N.clamp(max=words - 1))
        return embedded_ND.index_copy(0, at_P, patch_PD.to(embedded_ND.dtype)).view(*tokens_BL.shape, -1)

    def forward(self, tokens_BL: Tensor, types_BL: Tensor, mask_BL: Tensor, at_BM: Tensor | None = None) -> Tensor:
        """Return final hidden states, [B, L, D], or [B, M, D] at positions `at_BM` (int64).

        `mask_BL` is true at real tokens. With `at_BM` the last block skips other positions, which changes no number.
        """
        length = tokens_BL.shape[1]
        if length > self.shape.positions:
            raise UserError(f"a sequence of {length} wordpieces does not fit the encoder's {self.shape.positions}")
        packing = None
        if torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling():
            padding = 0, min(-length % LENGTHS, self.shape.positions - length)
            tokens_BL, types_BL, mask_BL = (functional.pad(part, padding) for part in (tokens_BL, types_BL, mask_BL))
            packing = Packing.of(mask_BL)
        embedded = self.embed(tokens_BL) + self.type_embeddings(types_BL)
        hidden = self.norm(embedded + self.position_embeddings.weight[: tokens_BL.shape[1]])
        hidden = functional.dropout(hidden, self.shape.dropout, self.training)
        bias_B11L = (~mask_BL)[:, None, None, :].to(torch.float32) * MASKED
        *first, last = self.blocks
        if packing is not None:
            hidden = packing.pack(hidden)
        for block in first:
            hidden = block(hidden, bias_B11L, packing=packing)
        if packing is not None:
            hidden = packing.unpack(hidden)
        final: Tensor = last(hidden, bias_B11L, at_BM)
        return final if at_BM is not None else final[:, :length]


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, and afterwards restore the mode of every part."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def initialise(encoder: Encoder, generator: torch.Generator) -> None:
    """Initialise weights for training from scratch.

    Matrices ~ N(0, 1/fan_in). The two of a layer that write into its residual stream are scaled by 1/sqrt(2 layers).
    Positions start as sinusoids. So a narrow encoder learns to copy several times sooner than from BERT's N(0, 0.02^2).
    """
    size = encoder.shape.hidden_size
    initialise_blocks(encoder.blocks, ("attention_output", "output"), generator)
    nn.init.normal_(encoder.word_embeddings.weight, 0.0, size**-0.5, generator=generator)
    nn.init.normal_(encoder.type_embeddings.weight, 0.0, 0.02, generator=generator)
    encoder.position_embeddings.weight.data.copy_(torch.from_numpy(sinusoids(encoder.shape.positions, size)))
    initialise_patches(encoder, generator)


def initialise_patches(encoder: Encoder, generator: torch.Generator) -> None:
    """Initialise the projection of pixels and the embeddings of positions in a picture, if the encoder has them. Each
    vector gets about the norm of a word embedding."""
    if encoder.patch_projection is not None:
        spread = encoder.shape.hidden_size**-0.5
        nn.init.normal_(encoder.patch_projection.weight, 0.0, spread, generator=generator)
        nn.init.zeros_(encoder.patch_projection.bias)
        nn.init.normal_(encoder.patch_places.weight, 0.0, spread, generator=generator)


def show(module: nn.Module, patches: Tensor | None) -> None:
    """Attach the pixels of the pictures to the encoders of a module, uint8 [patches, patch values]."""
    for part in module.modules():
        if isinstance(part, Encoder):
            part.patches = None if patches is None else patches.to(part.word_embeddings.weight.device)


def initialise_blocks(blocks: nn.ModuleList, into_residual: Sequence[str], generator: torch.Generator) -> None:
    """Draw the matrices of blocks from N(0, 1/fan_in), and set their biases to 0. `into_residual` names the matrices
    that write into the residual stream, which are scaled by 1/sqrt(their number in all blocks)."""
    for module in blocks.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, module.in_features**-0.5, generator=generator)
            nn.init.zeros_(module.bias)
    for block in blocks:
        for name in into_residual:
            block.get_parameter(f"{name}.weight").data.mul_((len(into_residual) * len(blocks)) ** -0.5)


def sinusoids(positions: int, size: int) -> np.ndarray:
    """Return sinusoidal position vectors with the norm of a word embedding, float32 [positions, size]."""
    frequency = 200.0 ** -(np.arange(size // 2) / (size / 2))
    angle = np.arange(positions)[:, None] * frequency[None, :]
    waves: np.ndarray = np.concatenate([np.sin(angle), np.cos(angle)], axis=1) * (2 / size) ** 0.5
    return waves.astype(np.float32)
