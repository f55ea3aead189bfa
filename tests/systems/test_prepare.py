"""A corpus is prepared once, under runs/, and copied for DVC, which may delete the copy."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from realm_lab.runner import pipeline
from realm_lab.systems import prepare as prepare_stage
from realm_lab.systems.identity import corpus_folder, exported_corpus_folder, kept_corpus_folder, plan_run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("linked", [True, False])
def test_the_copy_for_dvc_shares_its_bytes_and_nothing_is_prepared_twice(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    params = tiny.params()
    plan = plan_run(params, "realm", 0)
    exported, kept = exported_corpus_folder(tmp_path, plan), kept_corpus_folder(tmp_path, plan)
    tiny.prepare(params, tmp_path)
    assert corpus_folder(tmp_path, plan) == kept
    assert not (tmp_path / "data").exists()
    if not linked:
        monkeypatch.setattr("os.link", lambda source, target: (_ for _ in ()).throw(OSError("no links")))
    pipeline.run("prepare", params, tmp_path)
    before = contents(kept)
    assert contents(exported) == before
    assert ((kept / "manifest.json").stat().st_nlink > 1) == linked
    monkeypatch.setattr(prepare_stage, "prepare_corpus", None)  # nothing is made anew
    shutil.rmtree(tmp_path / "data")  # as DVC does
    assert contents(kept) == before
    pipeline.run("prepare", params, tmp_path)
    assert contents(exported) == before
    shutil.rmtree(kept)  # what DVC keeps does as well
    assert corpus_folder(tmp_path, plan) == exported
    tiny.prepare(params, tmp_path)
    assert contents(kept) == before
