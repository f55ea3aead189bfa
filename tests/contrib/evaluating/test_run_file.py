"""TREC run files: an independent program computes the recall and ranks of realm_lab from them."""

import importlib
import importlib.util
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm_lab.cli import main
from realm_lab.contrib.evaluating import run_file
from realm_lab.engine.systems.asked import AskedQuestions
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.registry import Retrieved
from tests.whole import Whole

Run = dict[str, dict[str, float]]  # question -> passage -> score


@pytest.fixture(scope="module")
def results(whole: Whole) -> dict[str, Any]:
    return whole.results("bm25_reader")


@pytest.fixture
def context(whole: Whole, results: dict[str, Any]) -> Context:
    return whole.context("bm25_reader")


@pytest.fixture
def path(whole: Whole, results: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "new" / "bm25.run"
    command = ["evaluate", "--run-file", str(path), "--system", "bm25_reader", "--root", str(whole.root)]
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().out == f"{path}: 12 questions\n"
    return path


def read(path: Path) -> Run:
    run: Run = defaultdict(dict)
    for line in path.read_text().splitlines():
        question, q0, passage, rank, score, _ = line.split(" ")
        assert q0 == "Q0"
        assert int(rank) == len(run[question]) + 1
        assert passage not in run[question]
        run[question][passage] = float(score)
    return run


def judgements(context: Context) -> dict[str, set[str]]:
    """Return question -> passages whose body has an answer, compared as text."""
    questions = context.corpus.questions("test")
    rows = [context.passages.text.row(row) for row in range(len(context.passages))]
    return {
        identity: {
            row["id"] for row in rows if any(f" {answer.lower()} " in f" {row['body'].lower()} " for answer in answers)
        }
        for identity, answers in zip(questions.ids, questions.answers, strict=True)
    }


@pytest.mark.slow
def test_ir_measures_finds_our_recall_and_reciprocal_ranks(
    context: Context, results: dict[str, Any], path: Path
) -> None:
    ir_measures: Any = importlib.import_module("ir_measures")  # which has no types
    Success, RR = ir_measures.Success, ir_measures.RR
    run, relevant = read(path), judgements(context)
    assert len(run) == 12
    for scores in run.values():  # trec_eval's rule: order by score, and by id if scores are equal, the larger first
        order = sorted(scores, key=lambda passage: (np.float32(scores[passage]), passage), reverse=True)
        assert order == list(scores)
    judged = {question: dict.fromkeys(relevant[question], 1) for question in run}
    found = ir_measures.calc_aggregate([Success @ 1, Success @ 5, Success @ 20], judged, run)
    for depth in (1, 5, 20):
        assert found[Success @ depth] == pytest.approx(results[f"recall_at_{depth}"])
    asked = AskedQuestions.of_split(context, "test")
    ranks = asked.ranks(context.system.retrieve(asked.texts, 100).rows_QK).answer
    theirs = {measured.query_id: measured.value for measured in ir_measures.iter_calc([RR], judged, run)}
    assert [theirs[identity] for identity in asked.ids] == pytest.approx([1 / r if r else 0.0 for r in ranks.tolist()])


def test_equal_scores_and_blanks_in_ids_are_no_matter(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = np.array([3.0, 3.0, 3.0, 2.5, 0.0, 0.0, -np.inf], np.float32)

    def retrieve(questions: list[str], k: int) -> Retrieved:
        rows = np.array([5, 3, 4, 0, 2, 1, -1])
        return Retrieved(np.tile(rows, (len(questions), 1)), np.tile(scores, (len(questions), 1)))

    monkeypatch.setattr(context.system, "retrieve", retrieve)
    monkeypatch.setattr(context.passages, "id_of", lambda row: f"a b\u2003%{row}")
    run_file.write_run_file(context, tmp_path / "run")
    for found in read(tmp_path / "run").values():
        assert list(found) == [f"a%20b%E2%80%83%25{row}" for row in (5, 3, 4, 0, 2, 1)]
        written = np.array(list(found.values()), np.float32)
        assert (np.diff(written) < 0).all()
        np.testing.assert_allclose(written, scores[:6], rtol=1e-6, atol=1e-40)


def test_a_system_that_retrieves_nothing_is_one_line(
    whole: Whole, results: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.run"
    command = ["evaluate", "--run-file", str(path), "--root", str(whole.root), "--system", "closed_book"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"realm-lab: error: .*system closed_book retrieves no passages\n", error)
    assert not path.exists()
