"""Scores of the evaluate stage where references are regular expressions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from realm_lab.corpus.regex_answers import Patterns
from realm_lab.corpus.vocabulary import wordpiece_from_vocabulary
from realm_lab.evaluation.answering import Answer, Candidate
from realm_lab.systems.evaluate import Scores, _score


@pytest.fixture
def context() -> Any:
    return SimpleNamespace(tokenizer=wordpiece_from_vocabulary(["paris", "texas"]))


def answer(text: str, wordpieces: tuple[int, ...]) -> Answer:
    return Answer(text, 0, [Candidate(3, -1.0, -1.0, (0, len(text)), text, wordpieces)])


def questions(kind: str, references: list[str]) -> Any:
    return SimpleNamespace(answers=[references], answer_kinds=[kind], ids=["q1"])


def test_a_text_has_three_scores_and_an_expression_one(context: Any) -> None:
    patterns = Patterns()
    piece = context.tokenizer.token_to_id("paris")
    given = answer("Paris", (piece,))
    assert _score(context, questions("text", ["paris"]), 0, given, patterns) == Scores(1.0, 1.0, 1.0)
    assert _score(context, questions("text", ["texas"]), 0, given, patterns) == Scores(0.0, 0.0, 0.0)
    assert _score(context, questions("regex", ["(", "pa.?r"]), 0, given, patterns) == Scores(1.0, None, None)
    assert _score(context, questions("regex", ["ris"]), 0, given, patterns) == Scores(0.0, None, None)
    assert [(problem.question, problem.pattern) for problem in patterns.problems] == [("q1", "(")]
