"""The workload of a plan: sizes of the text, parameters of the models, operations per passage and per sentence."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from realm_lab.engine.corpus.prepare import corpus_inputs
from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.encoder import EncoderShape
from realm_lab.engine.models.initial import embedder_shape, encoder_shape, frozen_names, tower_names
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.identity import corpus_folder
from realm_lab.engine.training.flops import SPECIALS, encoder_operations
from realm_lab.errors import UserError
from realm_lab.records.files import digest
from realm_lab.records.run import Run

TITLE, SPAN = 4, 3  # wordpieces of a title, if there is no corpus, and of a salient span


class Text(NamedTuple):
    """Mean lengths in wordpieces without specials, and the sizes of the corpus and its vocabulary."""

    title: float
    body: float
    sentence: float
    vocabulary_size: int
    passages: int | None  # of the prepared corpus, if there is one
    source: str  # for people


class Workload(NamedTuple):
    """One model on one kind of text. Operations count whole layers, the backward pass as twice the forward pass."""

    shape: EncoderShape
    dimension: int
    reader_parameters: int
    embedder_parameters: int
    trained_parameters: int
    passage: float  # mean wordpieces of a passage, specials included
    joined: float  # of a query with a passage
    query: float
    masks: float  # masked wordpieces of a sentence
    passage_operations: float  # of embedding one passage
    sentence_operations: float  # of one sentence in a training step, if it shares no passage with others


def without_checkpoint(params: Params) -> Params:
    """Return the parameters without a checkpoint: neither speed nor memory depends on the source of the weights."""
    return params.model_copy(update={"model": params.model.model_copy(update={"checkpoint": None})})


def read_text(params: Params, root: Path) -> Text:
    """Return lengths of the first seed's prepared corpus; without one, the longest that the parameters allow."""
    folder = root
    with suppress(UserError):  # an input file is missing: nothing is prepared
        key = digest(corpus_inputs(params, params.seeds[0]))
        folder = corpus_folder(root, Run("", params.seeds[0], "", "", corpus_key=key))
    if not (folder / "manifest.json").exists():
        body, sentence = params.corpus.passage_length - SPECIALS - TITLE, params.corpus.sentence_length - 2
        source = "every passage and sentence as long as the parameters allow"
        return Text(TITLE, body, sentence, params.tokenizer.vocabulary_size, None, source)
    corpus = PreparedCorpus(folder)
    passages, sentences = corpus.passages(), corpus.sentences()
    return Text(
        float(passages.titles.lengths.mean()),
        float(passages.bodies.lengths.mean()),
        float(sentences.tokens.lengths.mean()),
        corpus.manifest.vocabulary_size,
        len(passages),
        f"lengths of the prepared corpus {folder.name}",
    )


def workload(params: Params, text: Text) -> Workload:
    """Return the workload of the parameters' model on text of these lengths."""
    params = without_checkpoint(params)
    shape, settings, corpus = encoder_shape(params, text.vocabulary_size), params.pretrain, params.corpus
    passage = min(corpus.passage_length, text.title + text.body + SPECIALS)
    query = min(corpus.sentence_length, text.sentence + 2)
    joined = min(corpus.sentence_length + corpus.passage_length, text.sentence + text.body + SPECIALS)
    salient = settings.masking.name not in ("random_token", "random_span")
    masks = SPAN if salient else max(1.0, settings.mask_rate * text.sentence)

    def operations(length: float) -> float:
        return float(encoder_operations(shape, np.array(length)))

    null = int(settings.null_document != "off")
    found = settings.candidates - null
    head = 2.0 * shape.hidden_size * (shape.hidden_size + shape.vocabulary_size)  # of a masked word and a candidate
    reading = found * operations(joined) + null * operations(text.sentence + SPECIALS)
    reading += masks * settings.candidates * head
    asking = operations(query)
    retrieving = asking + found * operations(passage) + null * operations(SPECIALS)
    trains_retriever = settings.train_query_tower or settings.train_document_tower
    sentence = reading * (3 if settings.train_reader else 1) + retrieving * (3 if trains_retriever else 1)
    sentence += asking if settings.search_query == "stale" else 0.0
    reader, embedder, trained = count_parameters(params, shape)
    counted = (shape, params.model.projection_size, reader, embedder, trained)
    return Workload(*counted, passage, joined, query, masks, operations(passage), sentence)


def count_parameters(params: Params, shape: EncoderShape) -> tuple[int, int, int]:
    """Count the parameters of reader and embedder, and how many of both are trained; the models take no memory."""
    settings = params.pretrain
    with torch.device("meta"):
        reader = Reader(shape, params.finetune.span_hidden_size)
        embedder = Embedder(shape, embedder_shape(params))
    if settings.train_query_tower != settings.train_document_tower:
        embedder.split_towers()
    frozen = frozen_names(reader, params)
    if not settings.train_reader:
        frozen |= {name for name, _ in reader.named_parameters()}
    still = frozen_names(embedder, params)
    still |= tower_names(embedder, settings.train_query_tower, settings.train_document_tower)
    trained = sum(value.numel() for name, value in reader.named_parameters() if name not in frozen)
    trained += sum(value.numel() for name, value in embedder.named_parameters() if name not in still)
    in_reader, in_embedder = (sum(value.numel() for value in module.parameters()) for module in (reader, embedder))
    return in_reader, in_embedder, trained
