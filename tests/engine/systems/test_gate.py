"""`realm-lab doctor --corpus`: a corpus that must fail, and one that must pass."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab import cli
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import CandidateReader, Reading
from realm_lab.engine.models.spans import find_answer
from realm_lab.engine.systems.asked import AskedQuestions
from realm_lab.engine.systems.context import open_run
from realm_lab.engine.systems.gate import gate
from tests import tiny

UNRELATED = "\n\n".join(
    f"Mayor {name}son opened a bridge in {name}ville on {day} May {1900 + day}."
    for day, name in enumerate(["Al", "Ber", "Cor", "Dan", "Ed", "Fin", "Gor", "Hal", "Ir", "Jon", "Kel", "Lor"], 1)
)


def test_a_corpus_that_repeats_nothing_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, text in enumerate(UNRELATED.split("\n\n")):
        (tmp_path / f"{number:02d}.txt").write_text(text)
    names = sorted(str(path) for path in tmp_path.glob("*.txt"))
    change: dict[str, Any] = {"corpus.source": "files", "corpus.pretrain_corpus": "same", "corpus.tagger": "rule"}
    change |= {"corpus.files.knowledge": names, "corpus.passage_length": 64, "corpus.sentence_length": 60}
    change |= {"pretrain.candidates": 3, "warm_start.reader.steps": 2, "warm_start.embedder.steps": 0}
    params = tiny.params(change)
    root = tiny.prepare(params, tmp_path / "root", "warm_start")
    found = gate(open_run(params, root, 0, "realm"))
    assert found.problems
    assert found.among_candidates.mean < 0.35
    flags = [part for key, value in change.items() for part in ("--set", f"{key}={value}")]
    given = ["doctor", "--corpus", "--root", str(root), "--params", str(tiny.PARAMETERS)]
    capsys.readouterr()
    assert cli.main([*given, *flags]) == 1
    assert "will not learn" in capsys.readouterr().out


PLACES = ["Oslo", "Rome", "Lima", "Kyiv", "Bern", "Baku"]


def test_evidence_is_found_by_its_id_and_the_gate_compares_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two items hold each answer, and one is named as evidence. The reader here prefers it for all answers but one."""
    items = [
        {"id": f"{place} {number}", "title": "", "text": text.format(place), "article": f"{place} {number}"}
        for place in PLACES
        for number, text in enumerate(["The king went to {} last week.", "A ship from {} brought more tea."])
    ]
    clozes = [
        {"id": place, "question": "The old king went to [MASK].", "answer": [place], "evidence_ids": [f"{place} 0"]}
        for place in PLACES
    ]
    clozes += [{"id": "none", "question": "It rains in [MASK] again.", "answer": ["Oslo"], "evidence_ids": ["gone"]}]
    for name, records in (("items", items), ("clozes", clozes)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    change: dict[str, Any] = {"corpus.source": "files", "corpus.pretrain_corpus": "same", "corpus.tagger": "rule"}
    change |= {"corpus.files.knowledge": [str(tmp_path / "items.jsonl")], "corpus.files.dev_split": "none"}
    splits = [f"corpus.files.questions_{split}" for split in ("train", "dev", "test")]
    change |= {split: [str(tmp_path / "clozes.jsonl")] for split in splits}
    change |= {"corpus.passage_length": 32, "corpus.sentence_length": 30, "pretrain.candidates": 3}
    change |= {"warm_start.reader.steps": 2, "warm_start.embedder.steps": 0}
    params = tiny.params(change)
    root = tiny.prepare(params, tmp_path / "root", "warm_start")
    context = open_run(params, root, 0, "realm")
    rows = {document: row for row, document in enumerate(context.passages.text.column("document"))}

    asked = AskedQuestions.of_split(context, "test")
    assert asked.supporting == [*((rows[f"{place} 0"],) for place in PLACES), ()]
    found = np.array([[rows["Rome 1"], rows[f"{place} 0"]] for place in PLACES] + [[0, 1]])
    found[0] = rows["Oslo 0"], rows["Rome 0"]
    values, _ = asked.recalls(found)
    assert (values["evidence_at_1"], values["evidence_at_5"]) == (1 / 6, 1.0)
    clusters = [row["cluster"] for row in asked.rows()]
    assert clusters[0] == clusters[-1] != clusters[1]  # Oslo is the answer to both

    def prefers(self: CandidateReader, sentences: Sequence[MaskedSentence], rows_BK: np.ndarray) -> Reading:
        evidence = {rows[f"{place} 0"] for place in PLACES[1:]}
        nats = [[-2.0 + (row in evidence) - (row == rows["Oslo 0"]) for row in own] for own in rows_BK.tolist()]
        return Reading(torch.tensor(nats)[:, :, None], torch.ones(len(sentences), 1, dtype=torch.bool))

    monkeypatch.setattr(CandidateReader, "read", prefers)
    support = gate(context).support
    assert support is not None
    assert (support.spans, support.with_words) == (6, 6)
    assert (support.preferred.mean, support.over_best.mean) == pytest.approx((5 / 6, 4 / 6))
    given = ["doctor", "--corpus", "--root", str(root), "--params", str(tiny.PARAMETERS)]
    cli.main([*given, *(part for key, value in change.items() for part in ("--set", f"{key}={value}"))])
    assert "preferred in 0.83" in capsys.readouterr().out


def test_a_toy_world_passes_with_a_reader_that_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reader here copies, like the reader of the default run after its warm start, which takes minutes."""
    root = tiny.prepare(tiny.params(), tmp_path, "warm_start")
    given = ["doctor", "--corpus", "--root", str(root), "--params", str(tiny.PARAMETERS)]
    given += ["--set", "pretrain.candidates=40"]
    assert cli.main(given) == 1  # with its own reader of a dozen steps
    assert "reader gains too little" in capsys.readouterr().out

    def copies(self: CandidateReader, sentences: Sequence[MaskedSentence], rows_BK: np.ndarray) -> Reading:
        nats = [
            [-2.0 if row >= 0 and _holds(self.passages.bodies[row], one.targets) else -10.0 for row in rows]
            for one, rows in zip(sentences, rows_BK, strict=True)
        ]
        return Reading(torch.tensor(nats)[:, :, None], torch.ones(len(sentences), 1, dtype=torch.bool))

    monkeypatch.setattr(CandidateReader, "read", copies)
    assert cli.main(given) == 0
    assert "will not learn" not in capsys.readouterr().out


def _holds(body: np.ndarray, targets: np.ndarray) -> bool:
    return bool(find_answer(np.asarray(body), [targets], len(targets)))


def test_without_a_warm_start_it_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.prepare(tiny.params(), tmp_path)
    assert cli.main(["doctor", "--corpus", "--root", str(tmp_path), "--params", str(tiny.PARAMETERS)]) == 2
    assert "realm-lab run" in capsys.readouterr().err
