"""Measures of the forms of facts and of the titles of passages that are retrieved, on ranks written by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.engine.evaluation.forms import cloze_entities, cloze_forms, question_forms
from realm_lab.engine.evaluation.utility import ClozeResult
from realm_lab.engine.masking import MaskedSentence

# Rows 0 to 2 are text and 3 to 5 triples; 0 and 3 are about entity 7 8, 1 and 4 about 9, 2 and 5 about 7.
TITLES = [[7, 8], [9], [7], [7, 8], [9], [7]]


class Titled(SimpleNamespace):
    def __len__(self) -> int:
        return len(TITLES)


PASSAGES: Any = Titled(
    titles=[np.array(title) for title in TITLES], forms=(["text", "triple"], np.array([0, 0, 0, 1, 1, 1]))
)


def test_forms_of_questions() -> None:
    rows_BK = np.array([[3, 0, 1, 2, 4, 5], [1, 4, 0, 2, 3, 5], [2, 0, 1, 4, -1, -1], [0, 1, 2, 3, 4, 5]])
    gold = [np.array(rows) for rows in ([0, 3], [1, 4], [5], [])]  # the third has one form, the fourth is unknown
    found = question_forms(rows_BK, gold, PASSAGES)
    assert found == {
        "retrieved_at_5_text": pytest.approx((3 + 3 + 3 + 3) / 20),
        "retrieved_at_5_triple": pytest.approx((2 + 2 + 1 + 2) / 20),
        "gold_recall_at_5_text": 1.0,
        "gold_recall_at_5_triple": pytest.approx(2 / 3),
        "gold_first_text": 0.5,
        "gold_first_triple": 0.5,
    }
    found = question_forms(np.array([[0, -2], [0, -2]]), [np.array([2, 5]), np.array([1, 2, 5])], PASSAGES)
    assert "gold_first_text" not in found  # -2 is no passage
    one_form: Any = SimpleNamespace(forms=(["text"], np.zeros(6, np.int32)))
    assert question_forms(rows_BK, gold, one_form) == {}


def result(
    tokens: list[list[int]], rows: list[list[int]], probability: list[list[float]], gold: list[int], kinds: list[str]
) -> ClozeResult:
    empty, none, kind_B = torch.zeros(len(gold)), np.zeros(len(gold)), np.array(kinds)
    masked = [MaskedSentence(np.array(t), np.array([0]), np.array([1])) for t in tokens]
    prior_BK = torch.tensor(probability).log()
    return ClozeResult(masked, np.array(rows), prior_BK, prior_BK, prior_BK, empty, np.array(gold), empty, none, kind_B)


FOUND = result(
    [[7, 8, 5, 9], [9, 5, 7, 8], [9, 5, 7, 8], [5, 7, 8], [9, 7, 8], [9, 7, 8]],
    [[-1, 0, 4], [-1, 1, 3], [-1, 2, 0], [-1, 1, 0], [-1, 0, 1], [-1, 0, 1]],
    [[0.1, 0.6, 0.3], [0.8, 0.15, 0.05], [0.2, 0.5, 0.3], [0.2, 0.5, 0.3], [0.2, 0.5, 0.3], [0.2, 0.5, 0.3]],
    [0, 0, 0, 0, -1, 0],
    [*["object"] * 5, "word"],
)


def test_probability_of_each_form() -> None:
    assert cloze_forms(FOUND, PASSAGES) == {
        "cloze_probability_text": pytest.approx((0.6 + 0.15 + 0.8 + 0.8) / 4),
        "cloze_probability_triple": pytest.approx((0.3 + 0.05) / 4),
    }


def test_whose_passage_is_on_top() -> None:
    # The fourth too names another title, 7, within 7 8; the fifth has no gold passage, the sixth another mask.
    assert cloze_entities(FOUND, PASSAGES) == {
        "cloze_top1_subject": pytest.approx(1 / 4),
        "cloze_top1_bystander": pytest.approx(2 / 4),
    }
    unknown = FOUND._replace(gold_B=np.full(6, -1))
    assert cloze_entities(unknown, PASSAGES) == cloze_forms(unknown, PASSAGES) == {}
