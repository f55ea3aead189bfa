"""The study `default` follows params.yaml back to runs that are known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from realm_lab.params.load import load
from realm_lab.runner.default_study import settle_default
from realm_lab.runner.plan import default_plan, record_study
from realm_lab.tracking.study_record import read_study_record, study_folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project whose default pipeline was one thing, and then an experiment."""
    for text in ("preset: smoke\n", "preset: smoke\npretrain: {masking: random_span}\n"):
        (tmp_path / "params.yaml").write_text(text)
        record_study(default_plan(load(tmp_path / "params.yaml")), tmp_path)
    return tmp_path


def masks(root: Path, text: str) -> str:
    """The masking scheme of `default`, settled after params.yaml says this."""
    parameters, record = root / "params.yaml", study_folder(root / "runs", "default") / "study.json"
    parameters.write_text(text)
    later = record.stat().st_mtime + 5
    os.utime(parameters, (later, later))
    settle_default(root)
    return str(read_study_record(record).common.get("pretrain.masking", "salient_span"))


def test_it_goes_back_with_params_yaml(root: Path) -> None:
    assert masks(root, "preset: smoke\n") == "salient_span"
    assert masks(root, "preset: smoke\npretrain: {masking: random_span}\n") == "random_span"


@pytest.mark.parametrize("text", ["preset: smoke\npretrain: {masking: random_token}\n", "preset: smok\n"])
def test_it_stays_where_the_file_is_being_edited(root: Path, text: str) -> None:
    assert masks(root, text) == "random_span"
