"""A corpus is prepared once, under runs/, and copied for DVC, which may delete the copy; its summary."""

import shutil
from pathlib import Path

import pytest

from realm_lab.engine.corpus.chunking import CUT_WORDPIECES
from realm_lab.engine.corpus.prepare import PASSAGE_WORDPIECES
from realm_lab.engine.corpus.store import Manifest
from realm_lab.engine.systems import prepare as prepare_stage
from realm_lab.engine.systems.identity import corpus_folder, exported_corpus_folder, kept_corpus_folder, plan_run
from realm_lab.engine.systems.prepare import summary
from realm_lab.lab import pipeline
from tests import tiny


@pytest.mark.parametrize("linked", [True, False])
def test_the_copy_for_dvc_shares_its_bytes_and_nothing_is_prepared_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    params = tiny.params()
    plan = plan_run(params, "realm", 0)
    exported, kept = exported_corpus_folder(tmp_path, plan), kept_corpus_folder(tmp_path, plan)
    tiny.prepare(params, tmp_path)
    assert corpus_folder(tmp_path, plan) == kept
    assert not (tmp_path / "data").exists()
    if not linked:
        monkeypatch.setattr("os.link", lambda source, target: (_ for _ in ()).throw(OSError("no links")))
    pipeline.run("prepare", pipeline.planned(params), tmp_path)
    before = tiny.files(kept)
    assert tiny.files(exported) == before
    assert ((kept / "manifest.json").stat().st_nlink > 1) == linked
    monkeypatch.setattr(prepare_stage, "prepare_corpus", None)  # nothing is made again
    shutil.rmtree(tmp_path / "data")  # as DVC does
    assert tiny.files(kept) == before
    pipeline.run("prepare", pipeline.planned(params), tmp_path)
    assert tiny.files(exported) == before
    shutil.rmtree(kept)  # the copy of DVC does as well
    assert corpus_folder(tmp_path, plan) == exported
    tiny.prepare(params, tmp_path)
    assert tiny.files(kept) == before


def test_the_summary_counts_what_was_dropped_and_warns_of_what_was_cut() -> None:
    manifest = Manifest("k", "d", "t", 10, {PASSAGE_WORDPIECES: 1000}, {"document: list page": 3, CUT_WORDPIECES: 73})
    counts, *dropped, cut = summary(manifest)
    assert "1,000" in counts
    assert [line.split()[3] for line in dropped] == ["73", "3"]
    assert cut.startswith("7.30% of the passages' wordpieces")
