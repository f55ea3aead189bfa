"""The reader's two distributions: words at masks, and spans of the passage."""

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.engine.models.encoder import activate
from realm_lab.engine.models.inputs import join
from realm_lab.engine.models.spans import span_log_probs
from tests.tiny_system import Reference, TinySystem

WIDTH = 4
ROWS = (0, 3, 17)  # passages of different lengths
EMPTY = np.empty(0, np.int64)


def pairs(system: TinySystem) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Questions and passages, all of different lengths; the last passage is one wordpiece, shorter than WIDTH."""
    questions = system.corpus.questions("dev")
    queries = [np.asarray(questions.tokens[0])[:length] for length in (7, 3, 5, 6)]
    bodies = [np.asarray(system.passages.bodies[row])[:length] for row, length in zip(ROWS, (18, 15, 12), strict=True)]
    return queries, [*bodies, bodies[0][:1]]


@torch.no_grad()
def span_probabilities(system: TinySystem, queries: list[np.ndarray], bodies: list[np.ndarray]) -> Tensor:
    batch = join(queries, bodies, system.special, 64)
    return span_log_probs(system.reader.span_logits(batch, WIDTH)).double()


def test_spans_are_a_distribution_over_the_passage(system: TinySystem) -> None:
    queries, bodies = pairs(system)
    probability_NLW = span_probabilities(system, queries, bodies).exp()
    torch.testing.assert_close(probability_NLW.sum((1, 2)), torch.ones(4).double(), atol=1e-6, rtol=0)
    for number, (query, body) in enumerate(zip(queries, bodies, strict=True)):
        inside = torch.zeros(probability_NLW.shape[1:], dtype=torch.bool)
        first, last = len(query) + 2, len(query) + 1 + len(body)  # after [CLS] x [SEP], before [SEP]
        for width in range(WIDTH):
            inside[first : max(first, last + 1 - width), width] = True
        assert (probability_NLW[number][inside] > 0).all()
        assert not probability_NLW[number][~inside].any()  # exactly 0: question, specials, padding


def test_spans_equal_the_enumeration_of_the_mlp(system: TinySystem, reference: Reference) -> None:
    queries, bodies = pairs(system)
    log_probs_NLW = span_probabilities(system, queries, bodies)
    for number, (query, body) in enumerate(zip(queries, bodies, strict=True)):
        expected = reference.spans(query, body, WIDTH)
        assert len(expected) == sum(max(0, len(body) - width) for width in range(WIDTH))
        for (start, end), value in expected.items():
            found = log_probs_NLW[number, len(query) + 2 + start, end - start].item()
            assert found == pytest.approx(value, abs=2e-5), (number, start, end)


def test_the_logits_of_words_are_not_rounded_to_bfloat16(system: TinySystem) -> None:
    reader = system.reader
    hidden_MD = 3 * torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found_MV = reader.word_log_probs(hidden_MD)
        features_MD = reader.transform_norm(activate(reader.transform(hidden_MD), reader.encoder.shape.activation))
    logits_MV = features_MD.double() @ reader.encoder.word_embeddings.weight.double().T + reader.word_bias
    torch.testing.assert_close(found_MV, logits_MV.log_softmax(-1).float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("gradient", [True, False])
def test_masked_words_are_those_of_bert(system: TinySystem, reference: Reference, gradient: bool) -> None:
    queries, bodies = pairs(system)
    bodies[2] = EMPTY  # the null document
    at_NM = torch.tensor([[6, 0], [1, 2], [4, 3], [0, 0]])
    with torch.set_grad_enabled(gradient):
        hidden_NMD = system.reader.masked_hidden(join(queries, bodies, system.special, 64), at_NM + 1)
        words_NMV = system.reader.word_log_probs(hidden_NMD).detach()
    assert words_NMV.dtype == torch.float32
    for number, (query, body) in enumerate(zip(queries, bodies, strict=True)):
        expected_MV = reference.masked_words(query, body, at_NM[number].numpy())
        torch.testing.assert_close(words_NMV[number].double(), expected_MV, atol=2e-5, rtol=0)
    targets_NM = torch.tensor([[9, 8], [7, 6], [100, 4], [3, 300]])
    found_NM = system.reader.target_log_probs(hidden_NMD, targets_NM)
    for (number, place), target in np.ndenumerate(targets_NM.numpy()):
        assert found_NM[number, place] == words_NMV[number, place, target]
