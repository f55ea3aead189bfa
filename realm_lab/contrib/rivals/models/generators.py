"""Encoder-decoders: new ones, and their folders: config.json, model.safetensors (BertModel: the encoder),
decoder.safetensors."""

from __future__ import annotations

from pathlib import Path

import torch

from realm_lab.contrib.rivals.models.decoder import Generator, initialise_generator
from realm_lab.core.seeding import derive_seed
from realm_lab.models.encoder import Encoder
from realm_lab.models.folders import (
    Names,
    from_bert,
    load_named,
    named_tensors,
    read_checkpoint,
    read_tensors,
    write_tensors,
    write_tower,
)
from realm_lab.models.hub import AnyEncoder

DECODER_FILE = "decoder.safetensors"


def new_generator(encoder: AnyEncoder, seed: int) -> Generator:
    """Build an encoder-decoder with a copy of the encoder's weights and a decoder drawn from the seed."""
    assert isinstance(encoder, Encoder)  # only_bert
    generator = Generator(encoder.shape)
    generator.encoder.load_state_dict(encoder.state_dict())
    initialise_generator(generator, torch.Generator().manual_seed(derive_seed(seed, "initial-decoder")))
    return generator


def write_generator(generator: Generator, folder: Path) -> None:
    """Save an encoder-decoder: its encoder as a BertModel folder, and the decoder next to it."""
    write_tower(folder, generator.encoder, None)
    write_tensors(folder / DECODER_FILE, named_tensors(generator, _of_decoder(generator)))


def read_generator(folder: Path) -> Generator:
    """Load a folder of write_generator."""
    shape, weights = read_checkpoint(folder)
    generator = Generator(shape)
    from_bert(generator.encoder, weights, folder)
    load_named(generator, read_tensors(folder / DECODER_FILE), _of_decoder(generator), folder)
    return generator


def _of_decoder(generator: Generator) -> Names:
    return {name: name for name, _ in generator.named_parameters() if not name.startswith("encoder.")}
