"""DPR as a whole: its stage resumes bit-exactly, fine-tuning leaves its towers unchanged, and it answers."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from realm_lab.cli import main
from realm_lab.contrib.rivals.training import dual_encoder
from realm_lab.errors import UserError
from tests import tiny
from tests.whole import Whole

WEIGHTS = ("model.safetensors", "projections.safetensors")


@pytest.fixture(scope="module")
def results(whole: Whole) -> dict[str, Any]:
    return whole.results("dpr")


@pytest.mark.slow
def test_it_goes_the_whole_way(whole: Whole, results: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert results["questions"] == 12
    assert results["recall_at_20"] == results["recall_at_20_finetuned"]  # its towers do not learn while the reader does
    assert "not_measured" not in results
    trained = whole.context("dpr").stage("dpr").results()
    total = len(whole.context("dpr").corpus.questions("train"))
    assert trained["questions_trained"] + trained["questions_without_passage"] == total
    assert trained["questions_without_negative"] == 0
    assert 0 <= trained["accuracy_in_batch"] <= 1
    assert len(whole.ask("dpr", capsys)["candidates"]) == 5


@pytest.mark.slow
def test_its_towers_learn_in_their_stage_alone(whole: Whole, results: dict[str, Any]) -> None:
    context = whole.context("dpr")
    assert context.trained() == "dpr"
    folders = {stage: context.model_folder(stage) / "embedder" for stage in ("warm_start", "dpr", "finetune")}
    for name in WEIGHTS:
        began, learned, ended = (load_file(folders[stage] / name) for stage in folders)
        for part, value in learned.items():
            assert value.equal(ended[part]), part
        assert any(not value.equal(began[part]) for part, value in learned.items())
    readers = [load_file(context.model_folder(stage) / "reader" / WEIGHTS[0]) for stage in ("warm_start", "dpr")]
    assert all(value.equal(readers[1][part]) for part, value in readers[0].items())


@pytest.mark.slow
def test_a_reader_on_a_fixed_retriever_has_no_early_loss(tmp_path: Path) -> None:
    """An early loss would train nothing; here it would also need more passages than there are."""
    short = {"warm_start.reader.steps": 1, "warm_start.embedder.steps": 0, "finetune.steps": 2}
    params = tiny.params(short | {"finetune.early_loss_candidates": 5000})
    tiny.run("warm_start", params, tiny.prepare(params, tmp_path), "bm25_reader")
    rows = tiny.metrics(tiny.run("finetune", params, tmp_path, "bm25_reader"))
    assert all("loss_early" not in row for row in rows)


@pytest.mark.slow
def test_two_processes_do_what_one_does(tmp_path: Path) -> None:
    """The batch cannot be halved, and each process uses the passages of the other as negatives."""
    changes = {"system_options": {"dpr": {"steps": 6, "batch_size": 5}}, "finetune.steps": 1}
    params = tiny.params(changes)
    one, two = tmp_path / "one", tmp_path / "two"
    tiny.run("warm_start", params, tiny.prepare(params, one), "dpr")
    shutil.copytree(one, two)
    alone = tiny.metrics(tiny.run("dpr", params, one, "dpr"))
    shared = tiny.params(changes | {"launch.ranks": 2})
    (two / "params.yaml").write_text(json.dumps(shared.model_dump(mode="json")))
    (two / "experiments").mkdir()
    (two / "experiments" / "dpr.yaml").write_text(
        '{"question": "?", "seeds": [0], "baseline": "only", "cells": {"only": {"system": "dpr"}}}'
    )
    assert main(["sweep", "dpr", "--launcher", "local", "--root", str(two)]) == 0
    together = tiny.metrics(tiny.stage_run("dpr", shared, two, "dpr"))
    assert [row.keys() for row in together] == [row.keys() for row in alone]
    for row, other in zip(alone, together, strict=True):
        for name, value in row.items():
            assert other[name] == pytest.approx(value, rel=1e-4, abs=1e-5), (row["step"], name)


@pytest.mark.slow
def test_without_any_passage_with_an_answer_it_says_so(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    context = whole.context("dpr")
    questions = context.corpus.questions("train")
    none: Any = SimpleNamespace(
        ids=questions.ids, tokens=questions.tokens, texts=questions.texts,
        answers=[["no such answer"]] * len(questions),
        gold=[np.empty(0, np.int64)] * len(questions), judged=questions.judged, relevance=questions.relevance,
    )  # fmt: skip
    monkeypatch.setattr(context.corpus, "questions", lambda split: none)
    with pytest.raises(UserError, match="no passage answers training questions"):
        dual_encoder.train_towers(context, context.stage("dpr"))
