"""DrQA as a whole: its inputs, its comparison of spans of different passages, and bit-exact resume."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.contrib.rivals.drqa import Drqa
from realm_lab.engine.models.inputs import join
from tests.whole import Whole


@pytest.fixture(scope="module")
def results(whole: Whole) -> dict[str, Any]:
    return whole.results("drqa")


def system_of(whole: Whole) -> Drqa:
    system = whole.context("drqa").system
    assert isinstance(system, Drqa)
    return system


@pytest.mark.slow
def test_it_goes_the_whole_way(whole: Whole, results: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert results["questions"] == 12
    assert results["recall_at_20"] > 0
    assert results["corpus_update"]["changed_questions"] > 0
    assert results["not_measured"].keys() == {"own measurements"}
    assert [*whole.context("drqa").run.stages] == ["document_reader", "evaluate"], "no warm start"
    trained = whole.context("drqa").stage("document_reader").results()
    assert trained["examples"] > 0
    assert trained["questions_without_example"] < len(whole.context("drqa").corpus.questions("train"))
    assert len(whole.ask("drqa", capsys)["candidates"]) == 5


@pytest.mark.slow
def test_all_passages_of_the_best_articles_are_read(whole: Whole, results: dict[str, Any]) -> None:
    system = system_of(whole)
    texts = system.context.corpus.questions("test").texts[:6]
    articles_N = system.context.passages.articles
    for text, answer in zip(texts, system.answer(texts), strict=True):
        found = [candidate.row for candidate in answer.candidates]
        articles = list(dict.fromkeys(articles_N[found].tolist()))
        assert 0 < len(articles) <= system.own.articles
        assert found == [row for article in articles for row in np.flatnonzero(articles_N == article)]
        assert system.retrieve([text], 3).rows_QK[0].tolist() == found[:3]


@pytest.mark.slow
@torch.no_grad()
def test_spans_of_all_passages_compare_by_start_plus_end(whole: Whole, results: dict[str, Any]) -> None:
    system = system_of(whole)
    context, width = system.context, system.params.finetune.max_span_wordpieces
    texts = context.corpus.questions("test").texts[:2]
    for query, answer in zip(context.question_tokens(texts), system.answer(texts), strict=True):
        best = (-np.inf, -1, ())
        for candidate in answer.candidates:
            body = context.passages.bodies[candidate.row]
            found = system.reader.endpoints(join([query], [body], context.special, 128))
            for first, last in itertools.product(range(len(body)), repeat=2):
                if first <= last < first + width:
                    score = float(found.start_NP[0, first] + found.end_NP[0, last])
                    best = max(best, (score, candidate.row, tuple(body[first : last + 1].tolist())))
        source = answer.source
        assert source is not None
        assert (source.row, source.wordpieces) == best[1:]


@pytest.mark.slow
def test_a_question_that_finds_nothing_has_an_empty_answer(whole: Whole, results: dict[str, Any]) -> None:
    system = system_of(whole)
    nothing, something = system.answer(["who was it ?", system.context.corpus.questions("test").texts[0]])
    assert (nothing.text, list(nothing.candidates)) == ("", [])
    assert something.candidates
    assert system.answer(["who was it ?"])[0].text == ""
