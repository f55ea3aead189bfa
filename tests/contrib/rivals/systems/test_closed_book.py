"""The closed-book system as a whole: it answers without passages, reports that, and follows no corpus update."""

from typing import Any

import pytest

from realm_lab.cli import main
from tests.whole import Whole


@pytest.fixture(scope="module")
def results(whole: Whole) -> dict[str, Any]:
    return whole.results("closed_book")


@pytest.mark.slow
def test_it_goes_the_whole_way(results: dict[str, Any]) -> None:
    assert results["questions"] == 12
    assert 0 <= results["exact_match"] <= 1
    assert results["exact_match_span"] is None
    assert "recall_at_5" not in results
    assert results["not_measured"] == {
        "retrieval": "system closed_book retrieves no passages",
        "own measurements": "system closed_book reads no masked sentences",
    }


@pytest.mark.slow
def test_it_does_not_follow_a_corpus_update(whole: Whole, results: dict[str, Any]) -> None:
    system = whole.context("closed_book").system
    questions = system.context.corpus.questions("test").texts
    updated = system.on_corpus(system.context.corpus.passages(version=1), "updated")
    assert updated.answer(questions) == system.answer(questions)
    assert results["corpus_update"]["changed_questions"]
    assert results["corpus_update"]["unchanged_exact_match_before"] == pytest.approx(
        results["corpus_update"]["unchanged_exact_match_after"]
    )


@pytest.mark.slow
def test_ask_answers_without_passages_and_refuses_some(
    whole: Whole, results: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert whole.ask("closed_book", capsys)["candidates"] == []
    asked = ["ask", "who?", "--system", "closed_book", "--root", str(whole.root)]
    assert main([*asked, "--retriever", "bm25"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "system closed_book reads no passages" in error
