"""`realm-lab evaluate --predictions` from the command line: scores, faults on stderr, and two files compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from realm_lab.cli import main


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """200 questions, and two files of answers: the second is right 30 times more and wrong 10 times more."""
    questions = [{"id": str(n), "question": f"q{n}", "answer": [f"x{n}"]} for n in range(200)]
    first = {str(n): f"x{n}" if n < 100 else "no" for n in range(200)}
    second = {str(n): f"x{n}" if 10 <= n < 130 else "no" for n in range(199)}
    found = {name: tmp_path / f"{name}.jsonl" for name in ("questions", "first", "second")}
    found["questions"].write_text("\n".join(map(json.dumps, questions)))
    for name, predictions in (("first", first), ("second", second)):
        rows = [{"id": key, "prediction": value} for key, value in predictions.items()]
        found[name].write_text("\n".join(map(json.dumps, rows)))
    return found


def evaluate(files: dict[str, Path], *names: str, options: tuple[str, ...] = ()) -> int:
    predictions = [str(files[name]) for name in names]
    return main(["evaluate", "--questions", str(files["questions"]), "--predictions", *predictions, *options])


def test_scores_and_faults_are_printed(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(files, "second") == 0
    printed = capsys.readouterr()
    assert "exact_match               60.00 %" in printed.out
    assert "1 questions without a prediction, counted as wrong: 199" in printed.err


def test_json_and_scores_of_each_question(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores.jsonl"
    assert evaluate(files, "first", "second", options=("--json", "--out", str(out))) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["exact_match"] for each in found["files"]] == [0.5, 0.6]
    assert found["files"][1]["missing"] == ["199"]
    compared = found["comparison"]["exact_match"]
    assert compared["delta"] == pytest.approx(0.1)
    assert (compared["better"], compared["worse"]) == (30, 10)
    spread = (0.2 - 0.1**2) ** 0.5 / 200**0.5  # of the mean of 200 paired differences
    assert compared["low"] == pytest.approx(0.1 - 1.96 * spread, abs=0.02)
    assert compared["high"] == pytest.approx(0.1 + 1.96 * spread, abs=0.02)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 400
    assert rows[0]["file"] == str(files["first"])
    assert sum(row["exact_match"] for row in rows) == 220


def test_metric_and_rule_can_be_chosen(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    def share(*options: str) -> float:
        assert evaluate(files, "first", options=("--json", *options)) == 0
        return float(json.loads(capsys.readouterr().out)["files"][0]["exact_match"])

    assert share("--metric", "squad") == 0.5
    files["first"].write_text("\n".join(json.dumps({"id": str(n), "prediction": f"X{n} y"}) for n in range(200)))
    assert share("--metric", "regex") == 1.0  # from the start
    assert share("--metric", "regex", "--regex-match", "full") == 0.0
    assert share() == 0.0


def test_faults_of_the_user_are_one_line(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--root", str(tmp_path), "--predictions", str(tmp_path / "no.json")]) == 2
    assert "no.json" in capsys.readouterr().err
    (tmp_path / "r.json").write_text('[{"question": "q", "ctxs": [{"text": "t"}]}]')
    assert main(["evaluate", "--root", str(tmp_path), "--predictions", str(tmp_path / "r.json")]) == 2
    assert "name the questions with --questions" in capsys.readouterr().err
