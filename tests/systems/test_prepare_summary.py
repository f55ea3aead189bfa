"""What prepare says at the end."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from realm_lab.corpus.chunking import CUT_WORDPIECES
from realm_lab.corpus.prepare import PASSAGE_WORDPIECES
from realm_lab.corpus.store import Manifest
from realm_lab.runner.worker import run_stage
from realm_lab.systems.context import Context
from realm_lab.systems.identity import plan_run
from realm_lab.systems.prepare import summary


def test_the_summary_groups_what_was_dropped_by_its_kind() -> None:
    dropped = {"document: list page": 3, "document: empty text": 1200, "sentence shorter than 6 wordpieces": 2}
    manifest = Manifest("k", "d", "t", 10, {"passages": 13_353_718, "sentences": 2}, dropped)
    assert summary(manifest) == [
        "passages 13,353,718, sentences 2",
        "dropped or cut, document: 1,200 (document: empty text); 3 (document: list page)",
        "dropped or cut, sentence: 2 (sentence shorter than 6 wordpieces)",
    ]
    assert summary(manifest._replace(dropped={})) == ["passages 13,353,718, sentences 2"]
    cut = manifest._replace(counts={PASSAGE_WORDPIECES: 1000}, dropped={CUT_WORDPIECES: 73})
    assert summary(cut) == [
        "wordpieces of passages 1,000",
        "dropped or cut, wordpieces: 73 (wordpieces: beyond corpus.passage_length, never read)",
        "7.30% of the passages' wordpieces are in sentences too long for a passage and never read",
    ]


def test_the_stage_tells_what_it_prepared(tiny: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "z.jsonl"
    lines = [{"id": str(n), "title": f"T {n}", "text": f"Ada Miller lived in Oslo until 19{n}."} for n in range(10, 60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = {
        "corpus.source": "files",
        "corpus.tagger": "rule",
        "corpus.pretrain_corpus": "same",
        "corpus.files.knowledge": [str(path)],
        "tokenizer.vocabulary_size": 300,
    }
    params = tiny.params(files)
    run_stage("prepare", "realm", params, 0, tmp_path)
    said = capsys.readouterr().err
    assert "passages 50" in said
    stage = Context(params, plan_run(params, "realm", 0), tmp_path).stage("prepare")
    assert "passages 50" in (stage.path / "summary.md").read_text()
    assert (stage.status().step, stage.status().total_steps) == (50, 50)
