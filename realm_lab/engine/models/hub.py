"""Encoders of other families than BERT, run by transformers' own code behind the interface of `Encoder`.

The families are RoBERTa, XLM-R, DistilBERT, ELECTRA and ModernBERT. Their code handles positions, rotary or absolute,
and segments. Their masked-word heads have BERT's form (a linear layer, GELU, LayerNorm, the tied embeddings), so that
`Reader` holds them under this package's names. Every layer computes all positions, unlike in `Encoder`.
"""

# Shapes: B sequences, L positions, M selected positions, D hidden size

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from realm_lab.engine.models.encoder import Encoder, EncoderShape, initialise
from realm_lab.engine.params.checkpoint import FAMILIES, Family, positions_of, sizes_of
from realm_lab.errors import UserError

DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout",
    "mlp_dropout",
)  # fmt: skip


def family_of(shape: EncoderShape) -> Family | None:
    """Return the family of an encoder; None: BERT."""
    return FAMILIES[json.loads(shape.config)["model_type"]] if shape.config else None


def hub_shape(config: dict[str, Any], path: Path) -> EncoderShape:
    """Return the shape of an encoder by its config.json at `path`. UserError: transformers cannot read it."""
    known = _transformers_config(config, path)
    sizes = sizes_of(known.to_dict())
    activation = "gelu"  # RoBERTa's and ELECTRA's heads have no other activation
    if known.model_type in ("distilbert", "modernbert"):
        activation = known.activation if known.model_type == "distilbert" else known.classifier_activation
    return EncoderShape(
        known.vocab_size,
        sizes["hidden_size"],
        sizes["layers"],
        sizes["heads"],
        sizes["intermediate_size"],
        positions_of(known.to_dict()),
        0.0,
        activation,
        float(getattr(known, "norm_eps", getattr(known, "layer_norm_eps", 1e-12))),
        config=json.dumps(config, sort_keys=True),
    )


def hub_config(shape: EncoderShape, masked_words: bool) -> dict[str, Any]:
    """Make the config.json of an encoder's folder, or of a masked-language model's."""
    family = family_of(shape)
    assert family is not None
    name = family.architecture if masked_words else family.architecture.replace("ForMaskedLM", "Model")
    config: dict[str, Any] = json.loads(shape.config) | {"architectures": [name]}
    config |= {part: shape.dropout for part in DROPOUTS if part in config}
    return config | ({"decoder_bias": True} if "decoder_bias" in config else {})  # Reader has this bias


def _transformers_config(config: Mapping[str, Any], path: Path | str = "config.json") -> Any:
    from transformers import AutoConfig

    given = {name: value for name, value in config.items() if name != "model_type"}
    try:
        return AutoConfig.for_model(config["model_type"], **given)
    except Exception as error:  # transformers raises many kinds of errors
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"not readable by transformers ({reason})", path=Path(path), remedy="copy it again") from None


class HubEncoder(nn.Module):
    """transformers' AutoModel of a configuration, with the interface of `Encoder`; pictures are not read."""

    patches: Tensor | None = None

    def __init__(self, shape: EncoderShape):
        super().__init__()
        from transformers import AutoModel

        self.shape = shape
        config = _transformers_config(json.loads(shape.config))
        for name in DROPOUTS:
            if hasattr(config, name):
                setattr(config, name, shape.dropout)
        has_pooler = {"add_pooling_layer": False} if config.model_type in ("roberta", "xlm-roberta") else {}
        given = {"dtype": torch.float32, **has_pooler}
        try:
            self.model = AutoModel.from_config(config, attn_implementation="sdpa", **given)
        except ValueError:  # transformers 4.56 has no sdpa for ELECTRA
            self.model = AutoModel.from_config(config, attn_implementation="eager", **given)

    @property
    def word_embeddings(self) -> nn.Embedding:
        """The input embeddings, which the masked-word head's output is tied to."""
        found: nn.Embedding = self.model.get_input_embeddings()
        return found

    def forward(self, tokens_BL: Tensor, types_BL: Tensor, mask_BL: Tensor, at_BM: Tensor | None = None) -> Tensor:
        """Return final hidden states as `Encoder` does, [B, L, D], or [B, M, D] at positions `at_BM`."""
        if tokens_BL.shape[1] > self.shape.positions:
            raise UserError(
                f"a sequence of {tokens_BL.shape[1]} wordpieces does not fit the encoder's {self.shape.positions}"
            )
        segments = {"token_type_ids": types_BL} if has_segments(self) else {}
        hidden_BLD: Tensor = self.model(
            input_ids=tokens_BL, attention_mask=mask_BL.to(torch.int64), **segments
        ).last_hidden_state
        if at_BM is None:
            return hidden_BLD
        return hidden_BLD.gather(1, at_BM[:, :, None].expand(-1, -1, hidden_BLD.shape[-1]))


AnyEncoder = Encoder | HubEncoder


def has_segments(encoder: AnyEncoder) -> bool:
    """True if an encoder has embeddings of two segments, as BERT and ELECTRA have."""
    return isinstance(encoder, Encoder) or getattr(encoder.model.config, "type_vocab_size", 1) > 1


def new_encoder(shape: EncoderShape) -> AnyEncoder:
    """Build the encoder of a shape; its weights are to be loaded, or drawn by `draw`."""
    return HubEncoder(shape) if shape.config else Encoder(shape)


def draw(encoder: AnyEncoder, generator: torch.Generator) -> None:
    """Draw weights for training from scratch; transformers draws those of families other than BERT."""
    if isinstance(encoder, Encoder):
        initialise(encoder, generator)
        return
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        encoder.load_state_dict(HubEncoder(encoder.shape).state_dict())


def word_head(encoder: AnyEncoder) -> tuple[nn.Linear, nn.LayerNorm]:
    """Build the layers of a masked-word head before its output, as BERT or the encoder's family has them."""
    shape, config = encoder.shape, json.loads(encoder.shape.config or "{}")
    is_modern = config.get("model_type") == "modernbert"
    size = encoder.word_embeddings.embedding_dim  # ELECTRA's may be smaller than the hidden size
    biases = config.get("classifier_bias", not is_modern), config.get("norm_bias", not is_modern)
    norm = nn.LayerNorm(size, eps=shape.layer_norm_epsilon, bias=biases[1])
    return nn.Linear(shape.hidden_size, size, bias=biases[0]), norm
