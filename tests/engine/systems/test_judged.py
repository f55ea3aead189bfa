"""Judged relevance through a whole run: BEIR's folder in, nDCG@10 and recall@100 out, as an independent program has
them."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm_lab.cli import main
from realm_lab.engine.corpus.prepare import corpus_inputs, prepare
from realm_lab.engine.corpus.store import NO_ROW
from realm_lab.engine.params.load import load
from realm_lab.engine.systems.context import Context, open_run
from realm_lab.engine.systems.registry import Retrieved
from realm_lab.errors import UserError
from tests.factories.errors import refused

DOCUMENTS, QUERIES = 150, 12
WORDS = [first + second for first in "bdfgklmnprst" for second in ("alo", "emi", "ora", "usk", "ine", "ato")]
Qrels = dict[str, dict[str, int]]


def write_beir(folder: Path) -> Qrels:
    """Write a folder of BEIR; some documents are cut into several passages, one is a query and one has no text."""
    draw = random.Random(0)
    (folder / "qrels").mkdir(parents=True)
    records = []
    for number in range(DOCUMENTS):
        words = [draw.choice(WORDS) for _ in range(draw.choice([8, 8, 60]))]
        words[::5] = [word.capitalize() for word in words[::5]]
        sentences = [" ".join(words[start : start + 8]) + " ." for start in range(0, len(words), 8)]
        records.append({"_id": f"d {number}", "title": f"Page {number}", "text": " ".join(sentences), "metadata": {}})
    queries, qrels = [], {}
    for number in range(QUERIES):
        document = draw.randrange(DOCUMENTS)
        text = " ".join(draw.sample(str(records[document]["text"]).split(), 4))
        queries.append({"_id": f"q{number}", "text": text, "metadata": {}})
        qrels[f"q{number}"] = {f"d {draw.randrange(DOCUMENTS)}": draw.randrange(4) for _ in range(9)}
        qrels[f"q{number}"][f"d {document}"] = 2
    records.append({"_id": "q6", "title": "", "text": queries[6]["text"]})
    records.append({"_id": "silent", "title": "Silent", "text": ""})
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    qrels["q0"]["silent"] = 1
    qrels["q1"], qrels["q5"] = {"d 3": 0}, {"silent": 1}
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    for split, own in {"train": ["q2", "q3", "q4"], "test": [*qrels]}.items():
        rows = [f"{q}\t{d}\t{grade}\n" for q in own for d, grade in qrels[q].items()]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return qrels


PARAMETERS = """
preset: smoke
seeds: [0]
corpus:
  source: files
  tagger: rule
  pretrain_corpus: same
  passage_length: 40
  files: {knowledge: [FOLDER], questions_train: [FOLDER], questions_test: [FOLDER], dev_split: none}
tokenizer: {vocabulary_size: 500}
warm_start: {reader: {steps: 2}, embedder: {steps: 2, attempts: 1}}
pretrain: {steps: 2}
finetune: {steps: 0}
system_options: {dpr: {steps: 3, batch_size: 3}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("beir")
    write_beir(root / "data")
    (root / "params.yaml").write_text(PARAMETERS.replace("FOLDER", str(root / "data")))
    return root


def theirs(context: Context, qrels: Qrels, retrieve: Callable[[Sequence[str], int], Retrieved]) -> tuple[float, float]:
    """Return nDCG@10 and recall@100 of ir-measures, of documents by their best passage."""
    ir_measures: Any = importlib.import_module("ir_measures")  # which has no types
    questions, passages = context.corpus.questions("test"), context.passages
    found = retrieve(questions.texts, len(passages))
    run: dict[str, dict[str, float]] = {}
    for identity, rows in zip(questions.ids, found.rows_QK, strict=True):
        documents = dict.fromkeys(passages.text.row(row)["document"] for row in rows if row >= 0)
        assert identity != "q6" or identity in documents, "which BEIR leaves out"
        documents.pop(identity, None)
        run[identity] = {document: 1000.0 - rank for rank, document in enumerate(documents)}
    measures = ir_measures.nDCG @ 10, ir_measures.R @ 100
    values = ir_measures.calc_aggregate(measures, qrels, run)
    return values[measures[0]], values[measures[1]]


def test_ir_measures_finds_our_ndcg_and_recall(folder: Path) -> None:
    system = "dpr"
    qrels: Qrels = {}
    for line in (folder / "data/qrels/test.tsv").read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        qrels.setdefault(query, {})[document] = int(grade)
    study: dict[str, Any] = {"question": "Does it run?", "seeds": [0], "baseline": "only"}
    study |= {"cells": {"only": {"system": system}}, "metrics": ["ndcg_at_10", "judged_recall_at_100"]}
    (folder / "experiments").mkdir(exist_ok=True)
    (folder / "experiments" / f"{system}.yaml").write_text(json.dumps(study))
    assert main(["sweep", system, "--launcher", "inline", "--root", str(folder)]) == 0
    context = open_run(load(folder / "params.yaml"), folder, 0, system)
    results = context.stage("evaluate").results()
    assert len(context.passages) > DOCUMENTS
    mine = results["ndcg_at_10_finetuned"], results["judged_recall_at_100_finetuned"]
    assert mine == pytest.approx(theirs(context, qrels, context.system.retrieve), abs=1e-9)
    bm25 = results["bm25"]["ndcg_at_10"], results["bm25"]["judged_recall_at_100"]
    assert bm25 == pytest.approx(theirs(context, qrels, context.bm25.search), abs=1e-9)
    assert 0.1 < bm25[0] < 0.9
    assert "recall_at_5" not in results
    assert "answers" in results["not_measured"]
    summary = json.loads((folder / "reports" / system / "summary.json").read_text())
    assert "ndcg_at_10" in json.dumps(summary)
    # mined from the finished run
    mined = folder / "mined.json"
    command = ["mine", str(mined), "--split", "test", "--retriever", "run", "--system", "dpr", "--negatives", "3"]
    assert main([*command, "--root", str(folder)]) == 0
    records = {record["id"]: record for record in json.loads(mined.read_text())}
    assert records.keys() == qrels.keys() - {"q1", "q5"}, "they have no relevant passage"
    for query, record in records.items():
        relevant = {document for document, grade in qrels[query].items() if grade}
        assert {own["passage_id"].partition("/")[0] for own in record["positive_ctxs"]} <= relevant
        assert not {own["passage_id"].partition("/")[0] for own in record["hard_negative_ctxs"]} & relevant
        assert len(record["hard_negative_ctxs"]) == 3
        assert query not in {own["passage_id"] for own in record["hard_negative_ctxs"]}


def test_judgements_are_rows_of_the_prepared_corpus(folder: Path) -> None:
    context = open_run(load(folder / "params.yaml"), folder, 0, "bm25_reader")
    questions, passages = context.corpus.questions("test"), context.passages
    assert questions.ids == [f"q{number}" for number in range(QUERIES)]
    assert not any(questions.answers)
    rows, grades = questions.judged[0], questions.relevance[0]
    assert [*rows].count(NO_ROW) == 1, "the document without text"
    assert len(rows) > 10, "every passage of a document that was cut"
    assert {*questions.gold[0].tolist()} == {*rows[(grades > 0) & (rows != NO_ROW)].tolist()}
    assert len({passages.text.row(row)["document"] for row in rows[rows != NO_ROW]}) == 10


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("qrels/test.tsv", "q1\tnowhere\t1\n", "the document 'nowhere' is in no file of corpus.files.knowledge; name"),
        ("qrels/test.tsv", "q99\td 1\t1\n", "the query 'q99' is not in "),
        ("qrels/test.tsv", "q1\td 1\n", "2 columns; expected the columns query, 0, document, relevance"),
        ("queries.jsonl", "{\n", "not valid JSON"),
        ("queries.jsonl", '{"text": "no id"}\n', "'_id' is missing (found: text); expected {_id, text}"),
    ],
)
def test_faulty_judgements_are_one_line_and_nothing_is_written(
    tmp_path: Path, file: str, line: str, message: str
) -> None:
    write_beir(tmp_path / "data")
    (tmp_path / "params.yaml").write_text(PARAMETERS.replace("FOLDER", str(tmp_path / "data")))
    path = tmp_path / "data" / file
    path.write_text(path.read_text() + line)
    number = len(path.read_text().splitlines())
    with refused(message, path=path, line=number):
        prepare(load(tmp_path / "params.yaml"), tmp_path / "prepared", 0)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "params.yaml"}


def test_a_beir_folder_lacks_a_file(tmp_path: Path) -> None:
    write_beir(tmp_path / "data")
    (tmp_path / "params.yaml").write_text(PARAMETERS.replace("FOLDER", str(tmp_path / "data")))
    (tmp_path / "data/qrels/test.tsv").rename(tmp_path / "data/qrels/dev.tsv")
    with pytest.raises(
        UserError, match=r"qrels/test.tsv: no such file in this BEIR folder \(qrels has dev.tsv, train.tsv"
    ):
        prepare(load(tmp_path / "params.yaml"), tmp_path / "prepared", 0)


def test_the_key_follows_judgements_and_queries(folder: Path, tmp_path: Path) -> None:
    params = load(folder / "params.yaml")
    before = corpus_inputs(params, 0)
    assert len(before["judgements"]) == 2
    queries = folder / "data" / "queries.jsonl"
    text = queries.read_text()
    queries.write_text(text.replace('"q5"', '"q5" '))
    assert corpus_inputs(params, 0) != before
    queries.write_text(text)
    assert corpus_inputs(params, 0) == before


def test_documents_are_searched_until_there_are_enough() -> None:
    from types import SimpleNamespace

    from realm_lab.engine.evaluation.judged import find_documents

    names = np.array(["a"] * 5 + ["b", "a", "c", "d"])
    text = SimpleNamespace(taken=lambda column, rows: names[rows].tolist())

    class Passages:
        def __init__(self) -> None:
            self.text = text

        def __len__(self) -> int:
            return len(names)

    asked = []

    def retrieve(k: int) -> np.ndarray:
        asked.append(k)
        return np.arange(len(names))[None, :k]

    passages: Any = Passages()
    assert find_documents(retrieve, passages, [""], 3) == [["a", "b", "c"]]
    assert asked == [3, 6, 9]
    assert find_documents(retrieve, passages, ["a"], 3) == [["b", "c", "d"]]
