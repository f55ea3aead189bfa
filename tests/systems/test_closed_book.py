"""Closed book as a whole: it answers without passages, says so, and follows no corpus update."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from realm_lab.cli import main
from realm_lab.training.generation import GenerationTask
from tests.systems.conftest import OPTIONS, Whole


@pytest.fixture(scope="module")
def results(whole: Whole) -> dict[str, Any]:
    return whole.results("closed_book")


def test_it_goes_the_whole_way(results: dict[str, Any]) -> None:
    assert results["questions"] == 12
    assert 0 <= results["exact_match"] <= 1
    assert results["exact_match_span"] is None
    assert "recall_at_5" not in results
    assert results["not_measured"] == {"retrieval": "system closed_book retrieves no passages"}


def test_it_does_not_follow_a_corpus_update(whole: Whole, results: dict[str, Any]) -> None:
    system = whole.context("closed_book").system
    questions = system.context.corpus.questions("test").texts
    updated = system.on_corpus(system.context.corpus.passages(version=1), "updated")
    assert updated.answer(questions) == system.answer(questions)
    assert results["corpus_update"]["changed_questions"]
    assert results["corpus_update"]["unchanged_exact_match_before"] == pytest.approx(
        results["corpus_update"]["unchanged_exact_match_after"]
    )


def test_ask_answers_without_passages_and_refuses_some(
    whole: Whole, results: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert whole.ask("closed_book", capsys)["candidates"] == []
    asked = ["ask", "who?", "--system", "closed_book", "--root", str(whole.root)]
    assert main([*asked, "--retriever", "bm25"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "system closed_book reads no passages" in error


@pytest.mark.parametrize("stage", ["span_corruption", "salient_spans"])
def test_killed_it_ends_in_the_same_bits(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr("realm_lab.training.loop.time", SimpleNamespace(monotonic=itertools.count().__next__))
    params = tiny.params({"system_options": OPTIONS, "model.dropout": 0.1, "launch.checkpoint_interval_seconds": 2})
    tiny.prepare(params, tmp_path / "whole")
    if stage == "salient_spans":
        tiny.run("span_corruption", params, tmp_path / "whole", "closed_book")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    expected = tiny.outcome(tiny.run(stage, params, tmp_path / "whole", "closed_book"))
    original, done = GenerationTask.train_step, list[int]()

    def train_step(self: Any, step: int) -> dict[str, float]:
        if step == 5 and 5 not in done:
            done.append(step)
            raise KeyboardInterrupt
        done.append(step)
        return original(self, step)

    monkeypatch.setattr(GenerationTask, "train_step", train_step)
    with pytest.raises(KeyboardInterrupt):
        tiny.run(stage, params, tmp_path / "killed", "closed_book")
    found = tiny.outcome(tiny.run(stage, params, tmp_path / "killed", "closed_book"))
    assert done[6:] == list(range(3, 8))  # from the checkpoint
    assert found == expected
