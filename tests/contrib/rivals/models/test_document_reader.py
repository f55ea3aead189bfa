"""DrQA's reader: its equations again, one pair at a time, and its layout, the same as the span head's."""

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib.rivals.models.document_reader import DocumentReader, StackedLstm
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.inputs import join
from realm_lab.engine.models.reader import NO_SPAN

WIDTH, WORDS, CLS, SEP = 4, 40, 1, 2
PAIRS = [([7, 9, 7], [9, 5, 9, 8, 7]), ([11], [6]), ([5, 6, 7, 8, 12], [13, 14, 8, 8, 13, 6, 20, 21, 22]), ([6], [])]


@pytest.fixture(scope="module")
def special(request: pytest.FixtureRequest) -> SpecialIds:
    names = dict.fromkeys(SpecialIds._fields, 0) | {"cls": CLS, "sep": SEP}
    return SpecialIds(**names)


@pytest.fixture(scope="module")
def reader() -> DocumentReader:
    torch.manual_seed(0)
    return DocumentReader(WORDS, 6, 5, 0.3).eval()


def encoded(encoder: StackedLstm, states_PE: Tensor) -> Tensor:
    outputs = []
    for lstm in encoder.layers:
        states_PE = lstm(states_PE[None])[0][0]
        outputs.append(states_PE)
    return torch.cat(outputs, 1)


def by_hand(reader: DocumentReader, query: list[int], body: list[int]) -> tuple[Tensor, Tensor]:
    """Scores of starts and ends of one pair, word by word."""
    question_QE, passage_PE = (reader.words(torch.tensor(words)) for words in (query, body))
    rows = []
    for word, vector in zip(body, passage_PE, strict=True):
        affinity = torch.stack([reader.align(vector).relu() @ reader.align(other).relu() for other in question_QE])
        aligned = sum(share * other for share, other in zip(affinity.softmax(0), question_QE, strict=True))
        counts = torch.tensor([float(word in query), body.count(word) / len(body)])
        rows.append(torch.cat([vector, aligned, counts]))
    passage_PH = encoded(reader.passage_encoder, torch.stack(rows))
    question_QH = encoded(reader.question_encoder, question_QE)
    share_Q = reader.question_attention(question_QH)[:, 0].softmax(0)
    question_H = (share_Q[:, None] * question_QH).sum(0)
    return passage_PH @ reader.start(question_H), passage_PH @ reader.end(question_H)


@torch.no_grad()
def test_scores_are_those_of_each_pair_alone(reader: DocumentReader, special: SpecialIds) -> None:
    pairs = [(np.array(query), np.array(body, np.int64)) for query, body in PAIRS]
    batch = join([query for query, _ in pairs], [body for _, body in pairs], special, 64)
    found, logits_NLW = reader.endpoints(batch), reader.span_logits(batch, WIDTH)
    for number, (query, body) in enumerate(PAIRS):
        inside = torch.zeros(logits_NLW.shape[1:], dtype=torch.bool)
        if body:
            start_P, end_P = by_hand(reader, query, body)
            torch.testing.assert_close(found.start_NP[number, : len(body)], start_P, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(found.end_NP[number, : len(body)], end_P, atol=1e-5, rtol=1e-5)
        assert (found.start_NP[number, len(body) :] == NO_SPAN).all()
        for first in range(len(body)):
            for width in range(min(WIDTH, len(body) - first)):
                at = len(query) + 2 + first
                assert logits_NLW[number, at, width] == pytest.approx(
                    float(start_P[first] + end_P[first + width]), abs=1e-4
                )
                inside[at, width] = True
        assert (logits_NLW[number][~inside] == NO_SPAN).all()


def test_dropout_is_off_in_evaluation_and_on_in_training(reader: DocumentReader, special: SpecialIds) -> None:
    batch = join([np.array([7, 9])], [np.array([9, 5, 8])], special, 64)
    with torch.no_grad():
        same = [reader.eval().endpoints(batch).start_NP for _ in range(2)]
        other = [reader.train().endpoints(batch).start_NP for _ in range(2)]
    reader.eval()
    assert torch.equal(*same)
    assert not torch.equal(*other)


@torch.no_grad()
def test_bfloat16_is_near_where_the_processor_has_no_lstm_for_it(reader: DocumentReader, special: SpecialIds) -> None:
    batch = join([np.array([7, 9])] * 2, [np.array([9, 5, 8])] * 2, special, 64)  # equal lengths: computed by oneDNN
    exact_NP = reader.endpoints(batch).start_NP
    with torch.autocast("cpu", torch.bfloat16):
        rough_NP = reader.endpoints(batch).start_NP
    assert 0 < (exact_NP - rough_NP).abs().max() < 0.05
