"""A project in which systems run all of their stages: the fixture `whole` of conftest.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from realm_lab.cli import main
from realm_lab.engine.params.load import load
from realm_lab.engine.systems.context import Context, open_run
from tests import tiny

WRITER: dict[str, Any] = {"denoise_steps": 4, "denoise_batch_size": 4, "steps": 8, "batch_size": 4, "passages": 3}
OPTIONS: dict[str, Any] = {
    "dpr": {"steps": 12, "batch_size": 8, "negatives": 3},
    "bm25_dpr_reader": {"negatives": 3},
    "hard_em": {"tau_steps": 6},
    "drqa": {"steps": 6, "batch_size": 8, "embedding_size": 12, "hidden_size": 8},
    "closed_book": {"corruption_steps": 8, "salient_span_steps": 8, "question_steps": 8, "batch_size": 8},
    "fid": WRITER,
    "rag": WRITER,
}


class Whole:
    """A project folder; `results` runs a study of one system."""

    def __init__(self, root: Path):
        self.root = root
        (root / "experiments").mkdir()
        self.set({"system_options": OPTIONS})

    def set(self, values: dict[str, Any]) -> None:
        """Write params.yaml: the tiny parameters and `values` of the top level."""
        lines = [f"{name}: {json.dumps(value)}\n" for name, value in values.items()]
        (self.root / "params.yaml").write_text(tiny.PARAMETERS.read_text() + "".join(lines))

    def context(self, system: str) -> Context:
        return open_run(load(self.root / "params.yaml"), self.root, 0, system)

    def results(self, system: str) -> dict[str, Any]:
        """Run all stages by the command line, and return the measurements of the last one."""
        study = {"question": "Does it run?", "seeds": [0], "baseline": "only", "cells": {"only": {"system": system}}}
        (self.root / "experiments" / f"{system}.yaml").write_text(json.dumps(study))
        with tiny.undrawn():
            assert main(["sweep", system, "--launcher", "inline", "--root", str(self.root)]) == 0
        found: dict[str, Any] = self.context(system).stage("evaluate").results()
        return found

    def ask(self, system: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        """Return the command line's answer to a test question."""
        question = self.context(system).corpus.questions("test").texts[0]
        capsys.readouterr()
        assert main(["ask", question, "--system", system, "--json", "--root", str(self.root)]) == 0
        answered: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answered
