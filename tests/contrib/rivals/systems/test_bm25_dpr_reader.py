"""BM25 with DPR's reader, and hard EM, as whole systems: they answer from the passage that they select."""

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.whole import Whole


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bm25_dpr_reader", "hard_em"])
def test_it_goes_the_whole_way(whole: Whole, capsys: pytest.CaptureFixture[str], name: str) -> None:
    results, context = whole.results(name), whole.context(name)
    assert results["questions"] == 12
    assert results["recall_at_20"] == results["bm25"]["recall_at_20"]
    assert results["not_measured"].keys() == {"own measurements"}
    assert results["corpus_update"]["changed_questions"] > 0
    assert len(whole.ask(name, capsys)["candidates"]) == 5
    heads = load_file(context.model_folder("finetune") / "reader" / "span_head.safetensors")
    assert heads["selection.weight"].shape == (1, 16)
    assert context.load_reader("finetune").selection.weight.equal(heads["selection.weight"])  # type: ignore[union-attr]
    logged = {row.get("hard_update") for row in context.stage("finetune").metrics.rows()}
    assert logged == ({0.0, 1.0} if name == "hard_em" else {None})


@pytest.mark.slow
def test_it_answers_from_the_passage_that_it_selects(whole: Whole) -> None:
    whole.results("bm25_dpr_reader")
    system = whole.context("bm25_dpr_reader").system
    texts = system.context.corpus.questions("test").texts[:12]
    answers = system.answer(texts)
    for answer in answers:
        priors = [candidate.log_prior for candidate in answer.candidates]
        assert answer.best == int(np.argmax(priors))
        assert np.exp(priors).sum() == pytest.approx(1, abs=1e-4)
    products = [np.argmax([each.log_prior + each.log_span for each in answer.candidates]) for answer in answers]
    assert any(int(best) != answer.best for best, answer in zip(products, answers, strict=True))
    shuffled = system.retrieve(texts, 20)
    again = system.answer(texts, shuffled._replace(scores_QK=-shuffled.scores_QK))
    assert [answer.text for answer in again] == [answer.text for answer in answers]  # retrieval scores ignored


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bm25_reader", "bm25_dpr_reader", "fid"])
def test_only_passages_that_share_a_word_are_read(whole: Whole, name: str) -> None:
    whole.results(name)
    context = whole.context(name)
    word = context.passages.text.row(3)["title"]
    found = context.system.retrieve([f"{word} zzyzx", "zzyzx", ""], 20)
    assert (np.isfinite(found.scores_QK)).all()
    assert (found.rows_QK[1:] == -1).all()
    some, none, _ = context.system.answer([f"{word} zzyzx", "zzyzx", ""])
    assert some.candidates
    assert none.candidates == []
    assert name == "fid" or none.text == ""  # Fusion-in-Decoder writes an answer even so
