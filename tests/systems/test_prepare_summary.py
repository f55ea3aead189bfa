"""What prepare says at the end, and how far it says it has come."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from realm_lab.corpus.store import Manifest
from realm_lab.runner.worker import run_stage
from realm_lab.systems.context import Context
from realm_lab.systems.identity import plan_run
from realm_lab.systems.prepare import ReadShare, summary


def test_the_summary_groups_what_was_dropped_by_its_kind() -> None:
    dropped = {"document: list page": 3, "document: empty text": 1200, "sentence shorter than 6 wordpieces": 2}
    manifest = Manifest("k", "d", "t", 10, {"passages": 13_353_718, "sentences": 2}, dropped)
    assert summary(manifest, {"made": 2, "reused": 1000, "damaged": 0}) == [
        "passages 13,353,718, sentences 2",
        "dropped or cut, document: 1,200 (document: empty text); 3 (document: list page)",
        "dropped or cut, sentence: 2 (sentence shorter than 6 wordpieces)",
        "shards: 2 made, 1,000 reused",
    ]
    assert summary(manifest._replace(dropped={}), {"made": 0, "reused": 0, "damaged": 0}) == [
        "passages 13,353,718, sentences 2"
    ]


def test_the_share_that_is_read_is_told_by_the_open_file(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(bytes(3000))
    second.write_bytes(bytes(1000))
    share = ReadShare([str(first), str(second)])
    assert share.now() is None
    with open(first, "rb", buffering=0) as file:
        file.read(1000)
        assert share.now() == 0.25
    with open(second, "rb", buffering=0) as file:
        file.read(500)
        assert share.now() == 0.875
    assert ReadShare([str(first), str(tmp_path)]).now() is None


def test_files_are_prepared_in_shards_that_the_next_edition_reuses(
    tiny: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert "shards: 1 made" in said
    assert len(list((tmp_path / "runs" / "shards").glob("*.shard"))) == 1
    stage = Context(params, plan_run(params, "realm", 0), tmp_path).stage("prepare")
    assert "passages 50" in (stage.path / "summary.md").read_text()
    assert (stage.status().step, stage.status().total_steps) == (50, 50)
    run_stage("prepare", "realm", tiny.params(files | {"corpus.files.questions_dev": []}), 0, tmp_path, for_study=True)
    changed = tiny.params(files | {"corpus.files.max_train_questions": 5})  # another corpus of the same text
    run_stage("prepare", "realm", changed, 0, tmp_path)
    assert "shards: 1 reused" in capsys.readouterr().err
