"""Initial models of a training stage: from a stage before it, from scratch, or from a folder. The reader and the
retriever are chosen independently (pretrain.initial_*, finetune.initial_*; the ablation of Guu, Table 2)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from realm_lab.engine.core.seeding import derive_seed
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.encoder import show
from realm_lab.engine.models.initial import (
    fit_null,
    new_embedder,
    new_reader,
    read_initial_embedder,
    read_initial_reader,
    starting_from,
)
from realm_lab.engine.models.reader import Reader, initialise_heads
from realm_lab.engine.systems.context import Context

STAGES = ("warm_start", "previous")


class Initial(NamedTuple):
    """The initial models of a stage, on the device, and the null document's score offset."""

    reader: Reader
    embedder: Embedder
    null_offset: float


def initial_state(context: Context, stage: str) -> Initial:
    """Return the initial models of `pretrain` or `finetune` of this run, the same at every call.

    A shared tower is split if only one of the towers will be trained. In pre-training, a learned null vector that the
    initial retriever lacks is all zeros until `place_null` initialises it before the first step.
    UserError: the stage that a model comes from has not finished, or a folder holds no such model.
    """
    settings = context.params.pretrain if stage == "pretrain" else context.params.finetune
    reader = _reader(context, settings.initial_reader)
    embedder, null_offset = _embedder(context, settings.initial_retriever, settings.initial_reader, reader)
    if stage == "pretrain":
        null_offset = fit_null(embedder, null_offset, context.params.pretrain)
    if stage == "finetune":
        split = context.params.finetune.train_query_tower
    else:
        split = context.params.pretrain.train_query_tower != context.params.pretrain.train_document_tower
    if split:
        embedder.split_towers()
    show(reader, context.patches)
    show(embedder, context.patches)
    return Initial(reader.to(context.device), embedder.to(context.device), null_offset)


def _reader(context: Context, name: str) -> Reader:
    params, size, seed = context.params, context.vocabulary_size, context.initial_seed
    if name == "scratch":
        reader = new_reader(starting_from(params, None), size, seed)
    else:
        reader = read_initial_reader(_folder(context, name, "reader"), params, size, seed)
    if not reader.has_span_head:
        generator = torch.Generator().manual_seed(derive_seed(seed, "span-head"))
        initialise_heads(reader, generator, words_too=False)  # drawn on the CPU: equal on every device
    return reader


def _embedder(context: Context, name: str, reader_name: str, reader: Reader) -> tuple[Embedder, float]:
    params, size, seed = context.params, context.vocabulary_size, context.initial_seed
    if name == "scratch":
        return new_embedder(starting_from(params, None), size, seed, None), 0.0
    if name == "encoder":  # the pooler of model.checkpoint fits only the reader that started from it
        fitting = params if reader_name in STAGES else starting_from(params, None)
        return new_embedder(fitting, size, seed, reader.encoder), 0.0
    return read_initial_embedder(_folder(context, name, "embedder"), params, size, seed)


def _folder(context: Context, name: str, part: str) -> Path:
    """Return the folder of a stage's model (`part`: reader or embedder), or the folder that a parameter names."""
    if name not in STAGES:
        return Path(name)
    return context.model_folder(context.trained() if name == "previous" else name) / part
