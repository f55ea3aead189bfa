"""REALM with an encoder of another family than BERT: the whole pipeline, and resuming in the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from realm_lab.cli import main
from realm_lab.engine.corpus.sources import source_options
from realm_lab.engine.params.load import load, nested
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.identity import plan_run
from realm_lab.engine.worlds.world import ToyWorld
from realm_lab.errors import UserError
from tests import tiny
from tests.engine.models.families import write_family
from tests.engine.systems.test_resuming import interrupted_once

SIZES = {"model.hidden_size": 32, "model.layers": 3, "model.heads": 2, "model.intermediate_size": 48}
FEW: dict[str, Any] = {
    "corpus.source": {"name": "toy", "world": "easy", "entities": 80, "articles": 200},
    "warm_start.reader.steps": 2,
    "warm_start.embedder.steps": 2,
    "pretrain.steps": 9,  # a refresh
    "finetune.steps": 3,
    "evaluate.cloze_sentences": 8,
    "evaluate.questions": 12,
}
LENGTHS = {"corpus.passage_length": 80, "corpus.sentence_length": 56}  # more pieces than the world's own words have


def write(folder: Path, family: str, params: Params, positions: int = 140) -> dict[str, Any]:
    """Write an encoder with a tokenizer learned from the toy world; returns the parameters that name both."""
    world = ToyWorld(source_options(params.corpus), 0)
    write_family(folder, family, [f"{one.title}. {one.body}" for one, _ in world.passages(0)], positions)
    return {"model.checkpoint": str(folder), "tokenizer.checkpoint": str(folder), "model.dropout": 0.1}


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("family", ["xlm-roberta", "electra", "modernbert"])  # one of each tokenizer
def test_it_goes_the_whole_way(tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("preset: smoke\n")
    given = write(tmp_path / "encoder", family, load(path)) | LENGTHS | FEW | {"launch.threads": 1}
    path.write_text(json.dumps({"preset": "smoke", **nested(given)}))
    study = {"question": "Does it run?", "seeds": [0], "baseline": "only", "cells": {"only": {"system": "realm"}}}
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "one.yaml").write_text(json.dumps(study))
    assert main(["sweep", "one", "--launcher", "inline", "--root", str(tmp_path)]) == 0
    for verb in (["ask", "who ?"], ["fill", "it is in [MASK] ."]):
        capsys.readouterr()
        assert main([*verb, "--json", "--root", str(tmp_path), "--params", str(path)]) == 0
        assert json.loads(capsys.readouterr().out)["candidates"]


@pytest.mark.slow
def test_it_resumes_in_the_same_bits(tmp_path: Path) -> None:
    few = {"warm_start.reader.steps": 2, "warm_start.embedder.steps": 2, "pretrain.steps": 8}
    often = {"launch.checkpoint_interval_seconds": 2, "warm_start.embedder.initial_encoder": "checkpoint"}
    params = tiny.params(SIZES | LENGTHS | few | often | write(tmp_path / "encoder", "roberta", tiny.params()))
    whole = tiny.prepare(params, tmp_path / "whole", "warm_start")
    shutil.copytree(whole, tmp_path / "killed")
    expected = tiny.outcome(tiny.run("pretrain", params, whole))
    with interrupted_once(5) as done:
        with pytest.raises(KeyboardInterrupt):
            tiny.run("pretrain", params, tmp_path / "killed")
        assert tiny.outcome(tiny.run("pretrain", params, tmp_path / "killed")) == expected
    assert done[:7] == [1, 2, 3, 4, 5, 4, 5]


def test_an_encoder_that_cannot_read_a_passage_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for family in ("roberta", "modernbert"):
        given = write(tmp_path / family, family, tiny.params(), positions=135)
        with pytest.raises(UserError, match=r"135 positions, but .* needs 136"):
            plan_run(tiny.params(SIZES | LENGTHS | given), "realm", 0)
        assert plan_run(tiny.params(SIZES | LENGTHS | given | {"corpus.passage_length": 79}), "realm", 0).stages
