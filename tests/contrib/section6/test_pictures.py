"""A world of pictures runs the whole pipeline, and systems that read no pictures refuse it."""

import json
from pathlib import Path
from typing import Any

import pytest

from realm_lab.cli import main
from realm_lab.engine.models.folders import write_embedder
from realm_lab.engine.models.initial import new_embedder, read_initial_embedder
from realm_lab.engine.params.load import load
from realm_lab.engine.systems.context import open_run
from realm_lab.errors import UserError
from tests import tiny
from tests.whole import Whole

PICTURES = {
    "corpus.source": {"name": "drawn", "world": "easy", "entities": 40, "articles": 120, "fillers_per_entity": 0},
    "model.pictures": True,
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A project with a corpus of pictures."""
    whole = Whole(tmp_path_factory.mktemp("drawn"))
    tiny.prepare(load(whole.root / "params.yaml", PICTURES), whole.root)
    return whole


@pytest.fixture(scope="module")
def drawn(prepared: Whole) -> Whole:
    """A project with a finished study of REALM among pictures."""
    whole = prepared
    cells = {"pictures": {"set": PICTURES}, "process": {"set": {**PICTURES, "pretrain.refresh.delay_steps": 1}}}
    study: dict[str, Any] = {"question": "Does it see?", "seeds": [0], "baseline": "pictures", "cells": cells}
    study |= {
        "set": {"launch.builder": "process"},
        "figures": ["realm_lab.contrib.section6.figures:retrieved_pictures"],
    }
    (whole.root / "experiments" / "drawn.yaml").write_text(json.dumps(study))
    assert main(["sweep", "drawn", "--launcher", "inline", "--root", str(whole.root)]) == 0
    return whole


def stages(whole: Whole, name: str) -> list[Path]:
    return sorted((whole.root / "runs" / "stages").glob(f"{name}-*"))


@pytest.mark.slow
def test_examples_hold_the_pictures_and_the_pages_show_them(drawn: Whole) -> None:
    found = [json.loads((path / "eval" / "explorer.json").read_text()) for path in stages(drawn, "evaluate")]
    shown = [c["picture"] for examples in found for e in examples for c in e["candidates"] if not c["is_null"]]
    assert shown
    assert all(shown)
    report = (drawn.root / "reports" / "drawn" / "report.md").read_text()
    assert "| (b) one document | an image" in report
    assert "![" in report.split("retrieved_pictures.png")[0]
    assert (drawn.root / "reports" / "drawn" / "figures" / "retrieved_pictures.png").stat().st_size > 20_000
    assert main(["report", "drawn", "--html", "--root", str(drawn.root)]) == 0
    page = (drawn.root / "reports" / "drawn" / "report.html").read_text()
    assert '<img class="picture" src="data:image/jpeg;base64,' in page


def test_a_model_of_text_is_no_model_of_pictures(tmp_path: Path) -> None:
    params = tiny.params()
    write_embedder(new_embedder(params, 700, 0, None), tmp_path)
    with pytest.raises(UserError, match=r"its patch_values is 0, the parameters ask for 768"):
        read_initial_embedder(tmp_path, tiny.params({"model.pictures": True}), 700, 0)


def test_systems_and_models_that_read_text_alone_say_so(prepared: Whole) -> None:
    params = load(prepared.root / "params.yaml", PICTURES)
    with pytest.raises(UserError, match=r"system bm25_reader reads text alone, and the knowledge corpus has pictures"):
        _ = open_run(params, prepared.root, 0, "bm25_reader").corpus
    blind = load(prepared.root / "params.yaml", {**PICTURES, "model.pictures": False})
    with pytest.raises(UserError, match=r"the knowledge corpus has pictures; set model.pictures to true"):
        _ = open_run(blind, prepared.root, 0, "realm").corpus
