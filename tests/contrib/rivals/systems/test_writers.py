"""Fusion-in-Decoder and RAG as whole systems: they answer from passages, and RAG trains its query tower."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from realm_lab.contrib.rivals.training.writers import denoise, question_examples, write_salient_spans
from realm_lab.contrib.rivals.writing import Written, answer_of
from realm_lab.errors import UserError
from tests.whole import Whole


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fid", "rag"])
def test_it_goes_the_whole_way(whole: Whole, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    results = whole.results(name)
    assert results["questions"] == 12
    assert results["not_measured"].keys() == {"own measurements"}
    assert results["corpus_update"]["changed_questions"]
    assert name == "rag" or results["recall_at_20_finetuned"] == results["recall_at_20"]
    if name == "fid":
        assert results["recall_at_5"] == results["bm25"]["recall_at_5"]
    answered = whole.ask(name, capsys)
    assert len(answered["candidates"]) == 5
    assert sum(candidate["probability"] for candidate in answered["candidates"]) == pytest.approx(1.0)


@pytest.mark.slow
def test_the_query_tower_of_rag_learns_alone(whole: Whole) -> None:
    whole.results("rag")
    context = whole.context("rag")
    began, ended = (context.model_folder(stage) / "embedder" for stage in ("warm_start", "finetune"))
    documents = load_file(ended / "document" / "model.safetensors")
    for part, value in load_file(began / "model.safetensors").items():  # one tower for both
        assert value.equal(documents[part]), part
    before, after = (load_file(folder / "projections.safetensors") for folder in (began, ended))
    assert before["document_projection.weight"].equal(after["document_projection.weight"])
    assert not before["query_projection.weight"].equal(after["query_projection.weight"])


@pytest.mark.slow
def test_a_written_answer_is_from_the_likeliest_passage_that_holds_it(whole: Whole) -> None:
    whole.results("fid")
    context = whole.context("fid")
    bodies = context.passages.text.column("body")
    word = bodies[7].split()[1]
    without = next(row for row, body in enumerate(bodies) if word.lower() not in body.lower())
    written = Written(context.wordpieces([word])[0], np.array([-1.0, -1.0, -1.0]))
    rows_K, log_prior_K = np.array([without, 7, -1]), np.array([-1.0, -2.0, -3.0])
    answer = answer_of(context.tokenizer, context.passages, written, rows_K, log_prior_K)
    assert [candidate.row for candidate in answer.candidates] == [without, 7]
    assert answer.best == 1
    assert answer.source is not None
    assert bodies[7][slice(*answer.source.span)].lower() == answer.text
    assert answer.candidates[0].text == ""
    nothing = answer_of(context.tokenizer, context.passages, written, np.array([-1, -1, -1]), log_prior_K)
    assert nothing.candidates == []
    assert nothing.source is None


def test_questions_without_an_answer_are_left_out() -> None:
    questions = SimpleNamespace(texts=["a", "b"], tokens=[np.array([7]), np.array([8])], answers=[[], ["z", "y"]])
    corpus = SimpleNamespace(questions=lambda split: questions)  # a has only judged documents
    context: Any = SimpleNamespace(corpus=corpus, wordpieces=lambda texts: [tuple(map(ord, text)) for text in texts])
    texts, [example] = question_examples(context)
    assert (texts, example.first.tolist(), example.target.tolist()) == (["b"], [8], [ord("z")])
    questions.answers = [[], []]
    with pytest.raises(UserError, match="no training questions with an answer"):
        question_examples(context)


@pytest.mark.parametrize("work", [denoise, write_salient_spans])
def test_a_corpus_without_salient_spans_is_refused(work: Any) -> None:
    sentences = SimpleNamespace(rows_with_spans=lambda: np.empty(0, np.int64))
    corpus = SimpleNamespace(articles=lambda: None, sentences=lambda: sentences)
    context: Any = SimpleNamespace(corpus=corpus, sentences=corpus.sentences, options=lambda kind: kind(), passages=())
    context.special, context.order_seed = None, lambda stage: 0
    with pytest.raises(UserError, match=r"no sentence .* has a salient span; check corpus.tagger"):
        work(context, SimpleNamespace(stage=""))
