"""Mined hard negatives: checked by letters, and read back as the training questions of `dpr`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from realm_lab.cli import main
from realm_lab.engine.corpus.prepare import prepare
from realm_lab.engine.corpus.store import NO_ROW, PreparedCorpus
from realm_lab.engine.params.load import load
from tests.engine.systems.test_judged import PARAMETERS, write_beir


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared project: questions with answers; some documents are cut into several passages."""
    root = tmp_path_factory.mktemp("mine")
    write_beir(root / "data")
    records = [json.loads(line) for line in (root / "data/corpus.jsonl").read_text().splitlines()[:-1]]
    asked = []
    for number, record in enumerate(records[:40]):
        words = record["text"].split()
        asked.append({"id": f"q{number}", "question": " ".join(words[-6:-2]), "answer": words[1]})
    asked[3]["answer"] = "nowhere"
    (root / "questions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in asked))
    own = "questions_train: [FOLDER], questions_test: [FOLDER]"
    text = PARAMETERS.replace(own, f"questions_train: [{root}/questions.jsonl]").replace("FOLDER", f"{root}/data")
    (root / "params.yaml").write_text(text)
    assert main(["prepare", "--root", str(root)]) == 0
    return root


@pytest.mark.slow
def test_negatives_hold_no_answer_and_come_back_as_the_negatives_of_dpr(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = root / "mined.json"
    assert main(["mine", str(path), "--negatives", "4", "--json", "--root", str(root)]) == 0
    counts = json.loads(capsys.readouterr().out)
    records = json.loads(path.read_text())
    assert (counts["questions"], counts["without_positive"]) == (len(records), 40 - len(records))
    assert "q3" not in {record["id"] for record in records}
    for record in records:
        [answer] = record["answers"]
        [positive] = record["positive_ctxs"]
        assert f" {answer.lower()} " in f" {positive['text'].lower()} "
        assert len(record["hard_negative_ctxs"]) == 4
        scores = [passage["score"] for passage in record["hard_negative_ctxs"]]
        assert scores == sorted(scores, reverse=True)
        for passage in record["hard_negative_ctxs"]:
            assert f" {answer.lower()} " not in f" {passage['text'].lower()} "
    assert any("/" in passage["passage_id"] for record in records for passage in record["hard_negative_ctxs"])

    text = (root / "params.yaml").read_text().replace("questions.jsonl", "mined.json")
    (root / "again.yaml").write_text(text)
    prepare(load(root / "again.yaml"), root / "again", 0)
    corpus = PreparedCorpus(root / "again")
    questions, passages = corpus.questions("train"), corpus.passages()
    assert questions.ids == [record["id"] for record in records]
    for number, record in enumerate(records):
        rows, grades = questions.judged[number], questions.relevance[number]
        assert NO_ROW not in rows
        named = [passages.id_of(row) for row in rows[np.asarray(grades) == 0]]
        assert named == [passage["passage_id"] for passage in record["hard_negative_ctxs"]]
        assert [passages.id_of(row) for row in questions.gold[number]] == [record["positive_ctxs"][0]["passage_id"]]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["m.json", "--split", "test"],
            "no test questions in the prepared corpus; name them in corpus.files.questions_t",
        ),
        (["m.json", "--retriever", "run", "--system", "dpr"], "the finetune stage has not finished"),
        (["questions.jsonl"], "is an input, which the output would replace"),
        (["index/m.json", "--split", "test"], "no test questions"),  # a kind of pages, not an input
    ],
)
def test_what_cannot_be_mined_is_one_line_and_nothing_is_written(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    monkeypatch.chdir(root)
    (root / "index").mkdir(exist_ok=True)
    (root / "index" / "m.json").write_text("[]")
    before = {path: path.read_bytes() for path in root.glob("*.json*")}
    assert main(["mine", *more, "--root", str(root)]) == 2
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in root.glob("*.json*")} == before
