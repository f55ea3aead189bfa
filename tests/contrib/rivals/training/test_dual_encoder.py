"""Positives and negatives of DPR, and its loss once more by hand."""

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.contrib.rivals.training import dual_encoder
from realm_lab.contrib.rivals.training.dual_encoder import DualEncoderTask, LabelledPassages, label
from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.corpus.store import NO_ROW
from realm_lab.engine.corpus.vocabulary import encode_batch_plain
from realm_lab.engine.systems.bm25 import Bm25, texts_of
from realm_lab.errors import UserError
from tests.contrib.rivals.training.test_selection import holds
from tests.tiny_system import TinySystem

DEPTH, STEPS, BATCH = 20, 4, 6


class Labelled:
    """The tiny corpus's training questions with the results of BM25."""

    def __init__(self, system: TinySystem):
        self.questions, self.passages = system.corpus.questions("train"), system.passages
        self.answers = [
            [np.array(encoding.ids, np.int64) for encoding in encode_batch_plain(system.tokenizer, own)]
            for own in self.questions.answers
        ]
        self.found_QK = Bm25.of_texts(*texts_of(self.passages)).search(self.questions.texts, DEPTH).rows_QK
        self.found = label(self.questions, self.answers, self.passages, self.found_QK)
        self.holds = partial(holds, system)


@pytest.fixture(scope="module")
def labelled(system: TinySystem) -> Labelled:
    return Labelled(system)


def test_negatives_never_hold_the_answer_and_are_the_best_of_bm25(labelled: Labelled) -> None:
    rows = zip(*(column.tolist() for column in labelled.found), strict=True)
    for number, positive, negative in rows:
        assert positive == labelled.questions.gold[number][0]
        assert labelled.holds(number, positive)
        first = next(row for row in labelled.found_QK[number].tolist() if not labelled.holds(number, row))
        assert negative == first
    assert len(labelled.found.questions) == len(labelled.questions)


def test_hard_negatives_of_the_file_come_before_those_of_bm25(labelled: Labelled) -> None:
    gold = [labelled.questions.gold[number][:1] for number in range(len(labelled.questions))]
    judged = [np.array([own[0], NO_ROW, 7, 9]) for own in gold]
    asked = {"ids": labelled.questions.ids, "texts": labelled.questions.texts}
    given: Any = SimpleNamespace(gold=gold, judged=judged, relevance=[np.array([1, 0, 0, 0])] * len(gold), **asked)
    found = label(given, labelled.answers, labelled.passages, labelled.found_QK)
    assert {*found.negatives.tolist()} <= {7, 9}
    given.relevance = [np.ones(4, np.int64)] * len(gold)
    np.testing.assert_array_equal(
        label(given, labelled.answers, labelled.passages, labelled.found_QK).negatives, labelled.found.negatives
    )


@pytest.mark.parametrize("known_by", ["ids", "texts"])
def test_the_question_itself_is_no_negative(labelled: Labelled, known_by: str) -> None:
    questions, negative = labelled.questions, int(labelled.found.negatives[0])
    text = labelled.passages.text.row(negative)
    asked = {"ids": list(questions.ids), "texts": list(questions.texts)}
    asked[known_by][0] = text["document" if known_by == "ids" else "body"]
    given: Any = SimpleNamespace(gold=questions.gold, judged=questions.judged, relevance=questions.relevance, **asked)
    found = label(given, labelled.answers, labelled.passages, labelled.found_QK)
    assert labelled.passages.text.row(int(found.negatives[0]))["document"] != text["document"]
    np.testing.assert_array_equal(found.negatives[1:], labelled.found.negatives[1:])


def test_without_gold_the_best_passage_with_the_answer_is_the_positive_or_the_question_is_dropped(
    labelled: Labelled,
) -> None:
    none = [np.empty(0, np.int32)] * len(labelled.questions)
    asked = {"ids": labelled.questions.ids, "texts": labelled.questions.texts}
    empty: Any = SimpleNamespace(gold=none, judged=none, relevance=none, **asked)
    shallow = labelled.found_QK[:, :1]
    found = label(empty, labelled.answers, labelled.passages, shallow)
    expected = []
    for number, rows in enumerate(shallow.tolist()):
        holding = [row for row in rows if row >= 0 and labelled.holds(number, row)]
        expected += [(number, holding[0])] if holding else []
    assert list(zip(found.questions.tolist(), found.positives.tolist(), strict=True)) == expected
    assert 0 < len(expected) < len(labelled.questions)  # some are dropped
    assert found.negatives.tolist() == [NO_ROW] * len(expected)  # the one passage holds the answer


def task(system: TinySystem, labelled: Labelled, pairs: LabelledPassages) -> DualEncoderTask:
    embedder = copy.deepcopy(system.embedder)
    models = copy.deepcopy(system.reader), embedder, pairs, labelled.questions, labelled.answers, system.passages
    return DualEncoderTask(system.params, 0, STEPS, BATCH, *models, system.special)


def expected_loss(system: TinySystem, labelled: Labelled, pairs: LabelledPassages, device: Any) -> torch.Tensor:
    """-log of each positive's share, passage by passage, with an explicit list of each question's negatives."""
    retriever = system.retriever(device)
    chosen = EpochOrder(len(pairs.questions), 0, "dual-encoder-questions").take(0, BATCH).tolist()
    losses = []
    for place, pair in enumerate(chosen):
        number = int(pairs.questions[pair])
        rows = [int(pairs.positives[pair])]
        for other, theirs in enumerate(chosen):
            offered = [pairs.negatives[theirs]] + [pairs.positives[theirs]] * (other != place)
            rows += [
                int(row) for row in offered if row != NO_ROW and row != rows[0] and not labelled.holds(number, row)
            ]
        query_D = retriever.embed_queries([labelled.questions.tokens[number]])[0]
        scores = torch.stack([query_D @ retriever.embed_documents(np.array([row]))[0] for row in rows])
        losses.append(-scores.log_softmax(0)[0])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("missing", [False, True])
def test_the_loss_and_its_gradient_are_those_of_the_paper(
    system: TinySystem, labelled: Labelled, missing: bool
) -> None:
    pairs = labelled.found
    if missing:
        pairs = pairs._replace(negatives=np.where(np.arange(len(pairs.negatives)) % 2, pairs.negatives, NO_ROW))
    other = copy.deepcopy(system.embedder).requires_grad_(True)
    loss = expected_loss(system, labelled, pairs, other)
    loss.backward()
    norm = torch.stack([value.grad.norm() for value in other.parameters() if value.grad is not None]).norm()
    found = task(system, labelled, pairs).train_step(0)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert found["gradient_norm_retriever"] == pytest.approx(norm.item(), rel=1e-4)
    assert "gradient_norm_reader" not in found


def test_another_gold_passage_of_the_question_is_no_negative(system: TinySystem, labelled: Labelled) -> None:
    positive, negative = int(labelled.found.positives[0]), int(labelled.found.negatives[0])
    made = task(system, labelled, labelled.found)
    rows_G = np.array([negative, positive])
    assert made._excluded(0, 1, rows_G).tolist() == [False, False]
    made._questions = SimpleNamespace(gold=[np.array([positive, negative])])  # type: ignore[assignment]
    assert made._excluded(0, 1, rows_G).tolist() == [True, False]


def test_a_batch_smaller_than_the_ranks_is_refused(
    system: TinySystem, labelled: Labelled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dual_encoder, "ranks", lambda: SimpleNamespace(rank=0, size=BATCH + 1))
    with pytest.raises(UserError, match=r"'system_options.dpr.batch_size' is 6, fewer than the 7 ranks"):
        task(system, labelled, labelled.found)
