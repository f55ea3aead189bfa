"""`ask` and `fill` on a tiny trained run: the numbers are the paper's, and a mistake is one line."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from realm_lab import cli
from realm_lab.cli.ask import answer
from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.systems.ask import ReadPassage, Reply, ask, fill
from realm_lab.engine.systems.bm25 import Bm25, texts_of
from realm_lab.engine.systems.context import open_run
from realm_lab.engine.systems.identity import corpus_folder, plan_run
from realm_lab.errors import UserError
from tests import tiny
from tests.factories.errors import refused

PARAMS = tiny.params({"model.dropout": 0.1})

ONE_BLANK = "write one blank into the sentence: [MASK], or several [MASK] side by side"
Verb = Callable[..., Any]


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the realm run of params.yaml is fine-tuned, and the run of the baseline is not."""
    root = tiny.prepare(PARAMS, tmp_path_factory.mktemp("ask"), "warm_start", "pretrain", "finetune")
    (root / "params.yaml").write_text(json.dumps(PARAMS.model_dump(mode="json", exclude={"launch"})))
    return root


@pytest.fixture(scope="module")
def corpus(line: Path) -> PreparedCorpus:
    return PreparedCorpus(corpus_folder(line, plan_run(PARAMS, "realm", 0)))


@pytest.fixture
def said(line: Path, capsys: pytest.CaptureFixture[str]) -> Verb:
    """Call ask or fill, and return the fields of the result."""

    def call(verb: Verb, text: str, **options: Any) -> Any:
        found = asdict(verb(open_run(PARAMS, line, 0, "realm"), text, **options))
        printed = capsys.readouterr()
        assert printed.out + printed.err == ""
        return found

    return call


def question_of(corpus: PreparedCorpus) -> str:
    return corpus.questions("test").texts[0]


def sentence_of(corpus: PreparedCorpus) -> str:
    """A passage's text with its last name masked."""
    words = corpus.passages().text.row(0)["body"].split()
    return " ".join([*words[:-2], "[MASK]", "."])


def test_ask_tells_the_answer_and_where_it_was_found(said: Verb, corpus: PreparedCorpus) -> None:
    question = question_of(corpus)
    found = said(ask, question, k=4)
    assert found["question"] == question
    assert len(found["candidates"]) == 4
    for candidate in found["candidates"]:
        start, end = candidate["span"]
        assert candidate["passage"]["body"][start:end] == candidate["answer"]
        assert 0 <= candidate["probability"] <= 1
        assert 0 < candidate["reader_probability"] <= 1
        assert math.isfinite(candidate["utility"])
    joint = [candidate["probability"] * candidate["reader_probability"] for candidate in found["candidates"]]
    assert found["answer"] == found["candidates"][joint.index(max(joint))]["answer"]


def test_several_masks_side_by_side_ask_for_as_many_wordpieces(said: Verb, corpus: PreparedCorpus) -> None:
    for count, blank in ((2, "[MASK] [MASK]"), (3, "[MASK][MASK] [MASK]"), (5, " ".join(["[MASK]"] * 5))):
        assert said(fill, sentence_of(corpus).replace("[MASK]", blank))["wordpieces"] == count


def test_fill_follows_the_equations(said: Verb, corpus: PreparedCorpus) -> None:
    sentence = sentence_of(corpus)
    found = said(fill, sentence, k=5)
    assert (found["sentence"], len(found["candidates"])) == (sentence, 6)  # the null document and k passages
    assert found["wordpieces"] == 2  # as all names and years of the pre-training corpus
    probabilities = [candidate["probability"] for candidate in found["candidates"]]
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-5)
    assert probabilities == sorted(probabilities, reverse=True)
    joint = sum(c["probability"] * c["reader_probability"] for c in found["candidates"])
    assert found["marginal"] == pytest.approx(joint, rel=1e-4)  # Eq. 1
    assert found["marginal_log_probability"] == pytest.approx(math.log(found["marginal"]), abs=1e-6)
    without = next(c["reader_probability"] for c in found["candidates"] if c["passage"] is None)
    assert found["without"] == without
    for candidate in found["candidates"]:
        utility = math.log(candidate["reader_probability"]) - math.log(without)  # Eq. 2
        assert candidate["utility"] == pytest.approx(utility, abs=1e-3)


def test_words_that_are_not_known_have_a_warning(
    said: Verb, line: Path, corpus: PreparedCorpus, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(ask, question_of(corpus))["warning"] is None
    some = said(ask, f"Zyzzyva {question_of(corpus)} \u4e2d\u6587")["warning"]
    assert some == "not in this run's vocabulary: Zyzzyva, \u4e2d, \u6587"
    warning = said(ask, "Zyzzyva \u4e2d\u6587 ???")["warning"]
    assert warning.startswith("none of these words is known")
    assert cli.main(["ask", "Zyzzyva ?", "--json", "--root", str(line)]) == 0
    assert capsys.readouterr().err.splitlines()[0] == f"realm-lab: {warning}"


@pytest.mark.parametrize(
    ("verb", "text", "message"),
    [
        (ask, " \t\n", "the question is empty"),
        (fill, "the capital is [mask] .", ONE_BLANK),
        (fill, "[MASK] is the capital of [MASK] .", ONE_BLANK),
        (fill, "word " * 40 + "[MASK]", "the sentence is longer than corpus.sentence_length = 26"),
    ],
)
def test_mistakes(line: Path, verb: Verb, text: str, message: str) -> None:
    with refused(message):
        verb(open_run(PARAMS, line, 0, "realm"), text)


def test_a_blank_of_unknown_length_needs_salient_spans(line: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realm_lab.engine.systems.ask.span_length_log_probs", lambda sentences: {})
    remedy = "write several [MASK] side by side, one for each wordpiece"
    with refused("no salient span of the pre-training corpus has 6 wordpieces or fewer", remedy=remedy):
        fill(open_run(PARAMS, line, 0, "realm"), "who is [MASK] ?")


def test_an_unfinished_run_is_named_with_what_to_do(line: Path) -> None:
    with pytest.raises(UserError, match="the finetune stage has not finished for these parameters; call `realm-lab r"):
        ask(open_run(PARAMS, line, 0, "warm_start"), "who ?")
    with pytest.raises(
        UserError, match=r"the finetune stage has not .*; run a study with a variant `system: bm25_reader`"
    ):
        ask(open_run(PARAMS, line, 0, "bm25_reader"), "who ?")
    with pytest.raises(UserError, match="seed 1: no corpus is prepared for it; the parameters have the seeds 0"):
        fill(open_run(PARAMS, line, 1, "realm"), "who is [MASK] ?")
    with pytest.raises(UserError, match="no finished run for these parameters yet; call `realm-lab run`"):
        fill(open_run(PARAMS, line / "elsewhere", 0, "realm"), "who is [MASK] ?")


def test_a_deleted_corpus_is_prepared_again(line: Path, corpus: PreparedCorpus, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(line, root)
    folder = corpus_folder(root, plan_run(PARAMS, "realm", 0))
    shutil.rmtree(folder)
    tiny.stage_run("evaluate", PARAMS, root).finish({})
    with pytest.raises(UserError, match="realm-lab prepare"):
        ask(open_run(PARAMS, root, 0, "realm"), question_of(corpus))
    options = ["--params", str(tiny.PARAMETERS), "--root", str(root), "--set", "model.dropout=0.1"]
    assert cli.main(["prepare", *options]) == 0
    assert ask(open_run(PARAMS, root, 0, "realm"), question_of(corpus)) == ask(
        open_run(PARAMS, line, 0, "realm"), question_of(corpus)
    )


@pytest.mark.parametrize(
    "place", ["runs/stages/finetune-*/model/reader/model.safetensors", "runs/embeddings/*/embeddings.bin"]
)
def test_what_is_damaged_answers_nothing(
    line: Path, corpus: PreparedCorpus, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verify = ["doctor", "--verify", "--root", str(line)]
    assert cli.main(verify) == 0
    capsys.readouterr()
    paths = {path: path.read_bytes() for path in line.glob(place)}
    for path, content in paths.items():
        path.write_bytes(bytes(len(content) // 2) + content[len(content) // 2 :])
    try:
        with pytest.raises(UserError, match=r"delete .* and run again") as caught:
            ask(open_run(PARAMS, line, 0, "realm"), question_of(corpus))
        assert any(str(path) in str(caught.value) for path in paths)
        assert cli.main(verify) == 1
        printed = capsys.readouterr().out
        assert all(str(path) in printed for path in paths)
    finally:
        for path, content in paths.items():
            path.write_bytes(content)


def test_fill_asks_the_models_that_finetuning_begins_with(line: Path, corpus: PreparedCorpus) -> None:
    warm = {"finetune.initial_reader": "warm_start", "finetune.initial_retriever": "warm_start", "model.dropout": 0.1}
    said = []
    for chosen, system in ((tiny.params(warm), "realm"), (PARAMS, "warm_start"), (PARAMS, "realm")):
        said.append(fill(open_run(chosen, line, 0, system), sentence_of(corpus)))
    assert said[0] == said[1] != said[2]


def test_fill_retrieves_with_the_query_form_of_pretraining(line: Path, corpus: PreparedCorpus) -> None:
    shares = []
    for form in ("masked", "question"):
        params = tiny.params({"model.dropout": 0.1, "pretrain.query_form": form})
        found = fill(open_run(params, line, 0, "warm_start"), sentence_of(corpus))
        shares.append([candidate.probability for candidate in found.candidates])
    assert shares[0] != shares[1]


def test_the_command_line_and_its_tables(
    line: Path, corpus: PreparedCorpus, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--root", str(line)]
    assert cli.main(["ask", question_of(corpus), "-k", "3", *options]) == 0
    table = capsys.readouterr().out
    assert table.startswith("answer  ")
    assert "p(z|x)" in table
    assert cli.main(["ask", sentence_of(corpus), "-k", "2", *options]) == 0
    table = capsys.readouterr().out
    assert "(null document)" in table
    assert "no retrieval" in table
    assert cli.main(["fill", f"zzyyxx ? {sentence_of(corpus)}", *options]) == 0
    assert capsys.readouterr().err == "realm-lab: not in this run's vocabulary: zzyyxx\n"
    assert cli.main(["ask", " ", *options]) == 2
    assert capsys.readouterr().err == "realm-lab: error: the question is empty\n"
    assert cli.main(["ask", sentence_of(corpus), "--retriever", "bm25", *options]) == 2
    assert "leave it out with a [MASK]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shares", "weak"),
    [
        ([0.26, 0.22, 0.19, 0.16, 0.16], True),
        ([0.31, 0.19, 0.17, 0.17, 0.16], False),
        ([0.1, 0.15, 0.45, 0.15, 0.15], False),  # the best is not the first
        ([1.0], False),  # nothing to prefer it to
    ],
)
def test_a_retriever_that_prefers_no_passage_is_named(
    shares: list[float], weak: bool, line: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    candidates = [ReadPassage({"title": "a", "body": "b"}, [0, 1], "b", share, 0.5, None) for share in shares]
    monkeypatch.setattr("realm_lab.engine.systems.ask.ask", lambda *_: Reply("who ?", "b", candidates, 0))
    answer(open_run(PARAMS, line, 0, "realm"), "who ?", as_json=True)
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == weak
    assert json.loads(printed.out)["near_uniform"] == weak


def test_bm25_can_find_the_passages_that_are_read(said: Verb, corpus: PreparedCorpus) -> None:
    question = corpus.questions("test").texts[0]
    found = said(ask, question, k=4, retriever="bm25")["candidates"]
    rows, scores = Bm25.of_texts(*texts_of(corpus.passages())).search([question], 4)
    text = corpus.passages().text
    assert [candidate["passage"]["id"] for candidate in found] == [text.row(row)["id"] for row in rows[0]]
    total = sum(math.exp(score) for score in scores[0])
    assert [candidate["probability"] for candidate in found] == pytest.approx(
        [math.exp(score) / total for score in scores[0]], rel=1e-4
    )


def test_a_blank_in_a_question_is_what_pretraining_masks_with(line: Path) -> None:
    context = open_run(PARAMS, line, 0, "realm")
    word = context.corpus.questions("test").texts[0].split()[0]
    pieces, mask = list(context.wordpieces([word])[0]), context.special.mask
    blank, plain, twice = context.question_tokens([f"{word} [MASK] {word}.", f"{word}.", f"[MASK] [MASK]{word}"])
    stop = context.wordpieces(["."])[0]
    assert blank.tolist() == [*pieces, mask, *pieces, *stop]
    assert plain.tolist() == [*pieces, *stop]
    assert twice.tolist() == [mask, mask, *pieces]
    longest = tiny.params().corpus.sentence_length - 2
    assert len(context.question_tokens([f"{word} " * longest])[0]) == longest
