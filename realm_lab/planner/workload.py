"""What a plan is about: the model's parameters, and the floating-point operations of a passage and of a step."""

# Shapes: N sampled passages, B sentences, K candidates

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from realm_lab.core.seeding import numpy_generator
from realm_lab.masking import MaskedSentence
from realm_lab.models.embedder import Embedder
from realm_lab.models.encoder import EncoderShape
from realm_lab.models.initial import embedder_shape, encoder_shape, frozen_names, tower_names
from realm_lab.models.reader import Reader
from realm_lab.params.parameters import Params
from realm_lab.planner.sample import Sample
from realm_lab.retrieval.retriever import NULL
from realm_lab.training.flops import PretrainingFlops
from realm_lab.training.pretrain import QueryStream

SENTENCES = 64  # over which the operations of a step are averaged


class Parameters(NamedTuple):
    """How many numbers the models hold, and how many of them an optimiser moves."""

    reader: int
    embedder: int
    trained: int


class Workload(NamedTuple):
    """One model on one kind of text. Operations count whole layers, as `refresh_share_of_flops` does."""

    shape: EncoderShape
    dimension: int
    parameters: Parameters
    passage_operations: float  # of embedding one passage
    sentence_operations: float  # of one sentence of a training step, its passages shared with no other
    mean_passage: float  # wordpieces, specials included
    mean_joined: float
    mean_sentence: float
    mean_masks: float  # masked wordpieces of a sentence


def without_checkpoint(params: Params) -> Params:
    """The same sizes from scratch: neither speed nor memory depends on where the weights come from."""
    return params.model_copy(update={"model": params.model.model_copy(update={"checkpoint": None})})


def workload(params: Params, sample: Sample) -> Workload:
    """Count everything for the parameters' model on text like the sample's."""
    params = without_checkpoint(params)
    shape = encoder_shape(params, sample.vocabulary_size)
    corpus = params.corpus
    flops = PretrainingFlops(params, sample.passages, shape, shape)
    masked = masked_sentences(params, sample, SENTENCES)
    candidates_BK = distinct_candidates(params, len(masked), len(sample.passages))
    operations = [flops.step([sentence], candidates_BK[number : number + 1]) for number, sentence in enumerate(masked)]
    body_N, title_N = sample.passages.bodies.lengths, sample.passages.titles.lengths
    queries = np.array([len(sentence.tokens) for sentence in masked])
    bodies_BK = np.where(candidates_BK >= 0, body_N[candidates_BK.clip(min=0)], 0)
    joined_BK = np.minimum(corpus.sentence_length + corpus.passage_length, queries[:, None] + bodies_BK + 3)
    return Workload(
        shape,
        params.model.projection_size,
        count_parameters(params, shape),
        float(flops.passage_N.mean()),
        float(np.mean(operations)),
        float(np.minimum(corpus.passage_length, title_N + body_N + 3).mean()),
        float(joined_BK.mean()),
        float(queries.mean()) + 2,
        float(np.mean([len(sentence.positions) for sentence in masked])),
    )


def count_parameters(params: Params, shape: EncoderShape) -> Parameters:
    """Numbers of the very models, made without memory."""
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
    total = [sum(value.numel() for value in module.parameters()) for module in (reader, embedder)]
    return Parameters(total[0], total[1], trained)


def masked_sentences(params: Params, sample: Sample, count: int) -> list[MaskedSentence]:
    """The first sentences of the stream that pre-training would read."""
    stream = QueryStream(params.pretrain, sample.sentences, sample.special.mask, 0)
    generator = numpy_generator(0, "planner-masks")
    return [stream.masked(int(row), generator) for row in stream.rows(0, count)]


def distinct_candidates(params: Params, sentences: int, passages: int) -> np.ndarray:
    """Candidates of a batch whose sentences share no passage, as far as there are enough, [B, K]."""
    settings = params.pretrain
    null = int(settings.null_document != "off")
    rows_BK = np.arange(sentences * settings.candidates).reshape(sentences, -1) % passages
    if null:
        rows_BK[:, 0] = NULL
    return rows_BK
