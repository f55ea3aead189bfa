"""A corpus has two places: one that DVC versions and may delete, one that studies keep."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from realm_lab.runner import pipeline
from realm_lab.runner.worker import run_stage
from realm_lab.systems import prepare as prepare_stage
from realm_lab.systems.identity import corpus_folder, exported_corpus_folder, kept_corpus_folder, plan_run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("linked", [True, False])
def test_a_study_keeps_the_corpus_that_is_there(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    params = tiny.params()
    plan = plan_run(params, "realm", 0)
    pipeline.run("prepare", params, tmp_path)
    exported, kept = exported_corpus_folder(tmp_path, plan), kept_corpus_folder(tmp_path, plan)
    assert corpus_folder(tmp_path, plan) == exported
    if not linked:
        monkeypatch.setattr("os.link", lambda source, target: (_ for _ in ()).throw(OSError("no links")))
    run_stage("prepare", "realm", params, 0, tmp_path, for_study=True)
    assert corpus_folder(tmp_path, plan) == kept
    assert contents(kept) == contents(exported)
    assert ((kept / "manifest.json").stat().st_nlink > 1) == linked
    before = contents(kept)
    shutil.rmtree(tmp_path / "data")  # as DVC does
    assert contents(kept) == before
    monkeypatch.setattr(prepare_stage, "prepare_corpus", None)  # nothing is made anew
    pipeline.run("prepare", params, tmp_path)
    assert contents(exported) == before


def test_a_study_prepares_what_is_not_there(tiny: ModuleType, tmp_path: Path) -> None:
    params = tiny.params()
    plan = plan_run(params, "realm", 0)
    run_stage("prepare", "realm", params, 0, tmp_path, for_study=True)
    assert not (tmp_path / "data").exists()
    pipeline.run("prepare", params, tmp_path / "other")
    assert contents(kept_corpus_folder(tmp_path, plan)) == contents(exported_corpus_folder(tmp_path / "other", plan))
