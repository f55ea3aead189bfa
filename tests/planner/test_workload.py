"""Operations against torch's own counter, parameters against the real models, lengths against the corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from realm_lab.corpus.prepare import prepare
from realm_lab.corpus.store import PreparedCorpus
from realm_lab.models.encoder import Encoder, EncoderShape
from realm_lab.models.initial import encoder_shape, new_embedder, new_reader
from realm_lab.models.reader import Reader
from realm_lab.params.load import load
from realm_lab.params.parameters import Params
from realm_lab.planner.sample import Sample, write_sample
from realm_lab.planner.workload import count_parameters, workload
from realm_lab.systems.identity import corpus_folder, plan_run


@pytest.fixture
def sample(params: Params, project: Path) -> Sample:
    return write_sample(params, project, project / "sample", 64)


def counted(encoder: Encoder, length: int, sequences: int) -> float:
    """Operations of whole sequences, with the backward pass."""
    tokens_BL = torch.zeros(sequences, length, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        encoder(tokens_BL, tokens_BL, torch.ones_like(tokens_BL, dtype=torch.bool)).sum().backward()
    return float(counter.get_total_flops())


def test_a_passage_costs_what_torch_counts(params: Params, sample: Sample) -> None:
    work = workload(params, sample)
    assert sample.source == "every passage and sentence as long as the parameters allow"
    assert work.mean_passage == 40
    assert 3 * work.passage_operations == pytest.approx(counted(Encoder(work.shape), 40, 1))


def test_a_sentence_of_a_step_costs_what_torch_counts(params: Params, sample: Sample) -> None:
    """Read 7 passages and the null document with a gradient, embed them and the query, and the query once more."""
    work = workload(params, sample)
    encoder = Encoder(work.shape)
    sentence, body = 24, 33  # wordpieces without specials
    assert (work.mean_sentence, work.mean_masks) == (sentence + 2, 3)
    expected = counted(encoder, sentence + body + 3, 7) + counted(encoder, sentence + 3, 1)
    expected += counted(encoder, 40, 7) + counted(encoder, 3, 1)
    query = counted(encoder, sentence + 2, 1)
    expected += query + query / 3
    reader = Reader(work.shape, 8)
    hidden_MD = torch.randn(8 * 3, work.shape.hidden_size, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        reader.word_log_probs(hidden_MD).sum().backward()
    assert work.sentence_operations == pytest.approx(expected + counter.get_total_flops())


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"model.share_towers": False, "model.pooling": "tanh", "model.projection_norm": True},
        {"pretrain.null_document": "learned", "model.share_projection": True},
    ],
)
def test_parameters_are_those_of_the_real_models(project: Path, overrides: dict[str, object]) -> None:
    params = load(project / "params.yaml", overrides)
    shape = encoder_shape(params, 500)
    found = count_parameters(params, shape)
    reader, embedder = new_reader(params, 500, 0), new_embedder(params, 500, 0, None)
    assert found.reader == sum(value.numel() for value in reader.parameters())
    assert found.embedder == sum(value.numel() for value in embedder.parameters())
    assert found.trained == found.reader + found.embedder


def test_parameters_of_a_shared_encoder_by_hand(project: Path) -> None:
    params = load(project / "params.yaml", {"model.train_word_embeddings": False, "pretrain.train_reader": False})
    shape = EncoderShape(500, 32, 2, 2, 64, 66)
    found = count_parameters(params, shape)
    tables = (500 + 66 + 2) * 32
    block = 4 * 32 * 32 + 4 * 32 + 2 * 32 * 64 + 64 + 32 + 4 * 32
    assert found.embedder == tables + 2 * 32 + 2 * block + 2 * 32 * 32
    assert found.trained == found.embedder - tables


def test_where_one_tower_learns_the_other_is_a_model_of_its_own(project: Path) -> None:
    params = load(project / "params.yaml", {"pretrain.train_document_tower": False, "pretrain.train_reader": False})
    shape = encoder_shape(params, 500)
    found = count_parameters(params, shape)
    assert found.embedder == 2 * found.trained


def test_lengths_are_those_of_the_prepared_corpus(params: Params, project: Path) -> None:
    folder = corpus_folder(project, plan_run(params, "realm", 0))
    prepare(params, folder, 0)
    corpus = PreparedCorpus(folder)
    rows = len(corpus.passages())
    sample = write_sample(params, project, project / "sample", rows)
    assert sample.source == f"lengths of the prepared corpus {folder.name}"
    assert sample.corpus_passages == rows
    assert sample.vocabulary_size == corpus.manifest.vocabulary_size
    assert np.array_equal(sample.passages.bodies.lengths, corpus.passages().bodies.lengths)
    assert np.array_equal(sample.passages.titles.lengths, corpus.passages().titles.lengths)
    assert abs(sample.sentences.tokens.lengths.mean() - corpus.sentences().tokens.lengths.mean()) < 0.5


def test_a_sample_is_the_same_every_time_and_of_the_toy_worlds_vocabulary(params: Params, project: Path) -> None:
    first, second = (write_sample(params, project, project / name, 32) for name in ("a", "b"))
    assert np.array_equal(first.passages.bodies.values, second.passages.bodies.values)
    folder = project / "corpus"
    assert prepare(params, folder, 0).vocabulary_size == first.vocabulary_size


def test_a_preset_whose_files_are_not_there_is_sampled_all_the_same(project: Path) -> None:
    params = load(project / "params.yaml", {"preset": "real"})
    sample = write_sample(params, project, project / "sample", 8)
    assert sample.corpus_passages is None
    assert sample.vocabulary_size == params.tokenizer.vocabulary_size
    assert set(sample.passages.bodies.lengths + sample.passages.titles.lengths) == {params.corpus.passage_length - 3}
