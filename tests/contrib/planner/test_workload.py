"""Operations against torch's counter, parameters against the models."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from realm_lab.contrib.planner.workload import count_parameters, read_text, workload
from realm_lab.engine.corpus.prepare import prepare
from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.models.encoder import Encoder
from realm_lab.engine.models.initial import encoder_shape, new_embedder, new_reader
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.params.load import load
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.identity import corpus_folder, plan_run


def counted(encoder: Encoder, length: int, sequences: int) -> float:
    """Operations of whole sequences, with the backward pass."""
    tokens_BL = torch.zeros(sequences, length, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        encoder(tokens_BL, tokens_BL, torch.ones_like(tokens_BL, dtype=torch.bool)).sum().backward()
    return float(counter.get_total_flops())


def test_a_passage_and_a_sentence_of_a_step_cost_what_torch_counts(params: Params, project: Path) -> None:
    """Read 7 passages and the null document with a gradient, embed them and the query, and the query once more."""
    text = read_text(params, project)
    assert text.source == "every passage and sentence as long as the parameters allow"
    work = workload(params, text)
    encoder = Encoder(work.shape)
    assert (work.passage, work.query, work.masks) == (40, 26, 3)
    assert 3 * work.passage_operations == pytest.approx(counted(encoder, 40, 1))
    sentence, body = 24, 33  # wordpieces without specials
    expected = counted(encoder, sentence + body + 3, 7) + counted(encoder, sentence + 3, 1)
    expected += counted(encoder, 40, 7) + counted(encoder, 3, 1)
    query = counted(encoder, sentence + 2, 1)
    expected += query + query / 3
    reader = Reader(work.shape, 8)
    hidden_MD = torch.randn(8 * 3, work.shape.hidden_size, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        reader.word_log_probs(hidden_MD).sum().backward()
    assert work.sentence_operations == pytest.approx(expected + counter.get_total_flops())


@pytest.mark.parametrize("overrides", [{}, {"model.share_towers": False}])
def test_parameters_are_those_of_the_real_models(project: Path, overrides: dict[str, object]) -> None:
    params = load(project / "params.yaml", overrides)
    reader, embedder = new_reader(params, 500, 0), new_embedder(params, 500, 0, None)
    sizes = [sum(value.numel() for value in module.parameters()) for module in (reader, embedder)]
    assert count_parameters(params, encoder_shape(params, 500)) == (*sizes, sum(sizes))


def test_lengths_are_those_of_the_prepared_corpus(params: Params, project: Path) -> None:
    folder = corpus_folder(project, plan_run(params, "realm", 0))
    prepare(params, folder, 0)
    corpus = PreparedCorpus(folder)
    text = read_text(params, project)
    assert text.source == f"lengths of the prepared corpus {folder.name}"
    assert text.passages == len(corpus.passages())
    assert text.vocabulary_size == corpus.manifest.vocabulary_size
    assert text.body == pytest.approx(corpus.passages().bodies.lengths.mean(), rel=0.02)
    assert text.sentence == pytest.approx(corpus.sentences().tokens.lengths.mean(), rel=0.05)


def test_a_preset_whose_files_are_not_there_is_planned_all_the_same(project: Path) -> None:
    params = load(project / "params.yaml", {"preset": "real", "corpus.source": "files"})
    text = read_text(params, project)
    assert (text.passages, text.vocabulary_size) == (None, 30_522)
