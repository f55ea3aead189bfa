"""`realm-lab evaluate --corpus`: a finished run with another corpus, against the corpus update of its evaluation."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from realm_lab.cli import main
from realm_lab.contrib.evaluating.corpus_update import documents_of
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.identity import plan_run
from tests import tiny


class Line(NamedTuple):
    params: Params
    root: Path
    results: dict[str, Any]

    def evaluate(self, *options: str) -> Path:
        """`realm-lab evaluate` on this run; returns the folder that it wrote last."""
        assert main(["evaluate", "--root", str(self.root), *options]) == 0
        folders = list((self.root / "runs").glob("realm-s0-*/corpus_updates/*"))
        return max(folders, key=lambda folder: (folder / "result.json").stat().st_mtime_ns)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Line:
    """The tiny pipeline, finished, with its parameters in params.yaml."""
    root, params = tmp_path_factory.mktemp("line"), tiny.params()
    tiny.prepare(params, root)
    for stage in tiny.STAGES:
        run = tiny.run(stage, params, root)
    (root / "params.yaml").write_bytes(tiny.PARAMETERS.read_bytes())
    return Line(params, root, run.results())


@pytest.fixture(scope="module")
def context(line: Line) -> Context:
    return Context(plan_run(line.params, "realm", 0), line.root)


def write_documents(path: Path, passages: Any, change: dict[int, str] | None = None) -> Path:
    """Write toy passages as a file of documents, one passage each."""
    rows = [passages.text.row(row) for row in range(len(passages))]
    with path.open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows):
            body = (change or {}).get(number, row["body"])
            file.write(json.dumps({"id": f"d{number}", "title": row["title"], "text": body}) + "\n")
    return path


@pytest.mark.slow
def test_the_second_version_as_files_gives_what_the_stage_measured(
    line: Line, context: Context, tmp_path: Path
) -> None:
    path = write_documents(tmp_path / "second.jsonl", context.corpus.passages(version=1))
    folder = line.evaluate("--corpus", str(path), "--name", "swap")
    found = json.loads((folder / "result.json").read_text())
    asked = found["questions"]
    rows = [json.loads(text) for text in (folder / "questions.jsonl").read_text().splitlines()]
    assert len(rows) == asked["changed_questions"] + asked["unchanged_questions"]
    # The stage asks 12 of the test questions, the command all of them; both agree on the 12.
    stage = [json.loads(text) for text in _predictions(line).read_text().splitlines()]
    ids = {row["id"] for row in stage}
    mine = {row["id"]: row for row in rows}
    assert [mine[row["id"]]["old"]["prediction"] for row in stage] == [row["prediction"] for row in stage]
    changed = [row for row in rows if row["changed"] and row["id"] in ids]
    follows = np.mean([row["new"]["matches_new"] for row in changed])
    assert follows == pytest.approx(line.results["corpus_update"]["follows"])
    assert len(changed) == line.results["corpus_update"]["changed_questions"]
    shares = asked["new_corpus"]
    assert shares["follows"] + shares["stays"] + shares["wrong"] == pytest.approx(1)
    passages = found["corpora"]
    assert passages["old"]["embedded"] == 0  # fine-tuning has embedded them
    bodies = [
        {(r["title"], r["body"]) for r in map(corpus.text.row, range(len(corpus)))}
        for corpus in (context.passages, context.corpus.passages(version=1))
    ]
    assert passages["new"]["embedded"] == len(bodies[1] - bodies[0])  # only what changed
    report = (folder / "report.md").read_text()
    assert report.startswith("# Corpus update: swap\n")
    assert f"{asked['changed_questions']} questions whose answer changed: follows |" in report


def _predictions(line: Line) -> Path:
    (path,) = (line.root / "runs").glob("stages/evaluate-*/eval/predictions.jsonl")
    return path


def test_blanks_are_filled_with_both_corpora_and_the_source_is_never_read(
    line: Line, context: Context, tmp_path: Path
) -> None:
    passages = context.passages
    path = write_documents(tmp_path / "old.jsonl", passages)
    new = write_documents(tmp_path / "new.jsonl", passages, {0: passages.text.row(1)["body"]})
    items = []
    for row in (0, 2, 4, 6):
        words = passages.text.row(row)["body"].split()
        text = " ".join([*words[:2], "[MASK]", *words[3:8]])
        items.append({"id": f"c{row}", "cloze": text, "answer": words[2], "source_id": f"d{row}"})
    items.append({"id": "none", "cloze": "no blank at all", "answer": "x", "source_id": "d0"})
    cloze = tmp_path / "cloze.jsonl"
    cloze.write_text("\n".join(map(json.dumps, items)))
    options = ["--corpus", str(new), "--corpus-old", str(path), "--cloze", f"made={cloze}", "--name", "blanks"]
    folder = line.evaluate(*options)
    found = json.loads((folder / "result.json").read_text())
    assert "questions" not in found
    made = found["clozes"]["made"]
    assert made["items"] == 4
    assert made["skipped"] == ["none: 0 times [MASK] in the text, not once"]
    rows = [json.loads(text) for text in (folder / "cloze-made.jsonl").read_text().splitlines()]
    for row in rows:
        for side in ("old", "new"):
            assert len(row[side]["passages"]) == line.params.pretrain.candidates - 1
            assert not any(passage.startswith(row["source"] + "/") for passage in row[side]["passages"])
    for side in ("old", "new"):
        mean = np.mean([row[side]["log_likelihood"] for row in rows])
        assert made[side]["log_likelihood"] == pytest.approx(mean)
    assert found["corpora"]["new"]["embedded"] <= 1
    again = line.evaluate(*options)  # the prepared corpora are reused
    repeated = json.loads((again / "result.json").read_text())
    assert {**repeated, "seconds": 0} == {**found, "seconds": 0}


def test_questions_whose_references_normalise_to_nothing_are_named(
    line: Line, context: Context, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_documents(tmp_path / "second.jsonl", context.corpus.passages(version=1))
    rows = [{"id": "a", "question": "who ?", "answer": ["the"]}, {"id": "b", "question": "who ?", "answer": ["x"]}]
    (questions := tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    folder = line.evaluate("--corpus", str(text), "--questions", str(questions), "--name", "unscorable")
    asked = json.loads((folder / "result.json").read_text())["questions"]
    assert (asked["unscorable"], asked["unchanged_questions"]) == (["a"], 1)
    questions.write_text(json.dumps(rows[0]))
    command = ["--corpus", str(text), "--questions", str(questions), "--name", "none"]
    assert main(["evaluate", "--root", str(line.root), *command]) == 2
    assert str(questions) in capsys.readouterr().err


def test_a_file_of_both_versions_gives_each_side_its_own(tmp_path: Path) -> None:
    texts = {"old_context": "old text", "new_context": "new text", "swapped": [], "unchanged": []}
    path = tmp_path / "swapped.jsonl"
    path.write_text(json.dumps({"title": "T_x", "paragraph": 3} | texts))
    found = [{one.id: one.text for one in documents_of([path], later=later)} for later in (False, True)]
    assert found == [{"T_x#3": "old text"}, {"T_x#3": "new text"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--corpus", "no.jsonl"], "no.jsonl"),
        (["--corpus", "x", "--predictions", "y"], "give one"),
        (["--corpus", "x", "--name", "../../outside"], "--name '../../outside': use letters, digits"),
        (["--corpus", "x", "--cloze", "../a=b"], "--cloze '../a': use letters, digits"),
        (["--corpus", "x", "--cloze", "a=b", "--cloze", "a=c"], "--cloze: two files have the same NAME"),
        (["--run-file", "{root}/params.yaml"], "params.yaml: is an input"),
        (["--run-file", "{root}"], "is a folder; name a file in it"),
    ],
)
def test_faults_are_one_line(line: Line, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [text.format(root=line.root) for text in options]
    assert main(["evaluate", "--root", str(line.root), *options]) == 2
    assert message in capsys.readouterr().err


def test_predictions_need_questions(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("realm_lab.engine.systems.asked.stored_questions", lambda questions: [])
    (tmp_path / "p.json").write_text('{"q1": "Oslo"}')
    assert main(["evaluate", "--root", str(line.root), "--predictions", str(tmp_path / "p.json")]) == 2
    assert "no test questions in the prepared corpus; name some with --questions" in capsys.readouterr().err
