"""`realm-lab doctor --corpus`: a corpus that must fail, and one that must pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab import cli
from realm_lab.masking import MaskedSentence
from realm_lab.models.candidate_reader import CandidateReader, Reading
from realm_lab.models.spans import find_answer
from realm_lab.systems.context import open_run
from realm_lab.systems.gate import gate
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


def test_a_toy_world_passes_with_a_reader_that_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reader here copies, as that of the default run does after its warm start, which takes minutes."""
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
    assert "realm-lab warm-start" in capsys.readouterr().err
