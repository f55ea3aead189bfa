"""`realm-lab evaluate --predictions`: files made elsewhere scored, two compared, and what is wrong with them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from realm_lab.core.files import write_json_lines
from realm_lab.corpus.records import Question
from realm_lab.corpus.regex_answers import Rule
from realm_lab.errors import UserError
from realm_lab.evaluation.open_qa import SquadVersion
from realm_lab.evaluation.prediction_files import match, own_questions, read_entries, read_references
from realm_lab.evaluation.prediction_scores import ChosenMetric, Scored, score_predictions, score_retrieval
from realm_lab.reporting.rendering import render
from realm_lab.reporting.statistics import per_example_interval

NAMED = 10  # ids that a message names; --out and --json have them all
MESSAGES = {
    "missing": "questions without a prediction, counted as wrong",
    "contradictory": "questions with several predictions that differ, counted as wrong",
    "repeated": "questions with the same prediction several times",
    "surplus": "predictions for no question, left out",
}


def score_files(
    files: Sequence[Path],
    questions: Path | None,
    known: Sequence[Question] | None = None,
    *,
    metric: ChosenMetric = "auto",
    rule: Rule = "start",
) -> list[Scored]:
    """Scores of each file; `known` are the questions where no file names them."""
    version: SquadVersion | None = None
    if questions is not None:
        known, version = read_references(questions)
    scored = []
    for path in files:
        entries = read_entries(path, known)
        is_retrieval = bool(entries) and all(entry.contexts is not None for entry in entries)
        asked = list(known) if known is not None else list(own_questions(path, entries))
        matched = match(entries, asked)
        if is_retrieval and not any(entry.prediction is not None for entry in entries):
            scored.append(score_retrieval(asked, matched))
        else:
            scored.append(score_predictions(asked, matched, metric, version, rule))
    return scored


def compare(first: Scored, second: Scored) -> dict[str, Any]:
    """The second file against the first, question by question: paired bootstrap over the questions."""
    if [row["id"] for row in first.rows] != [row["id"] for row in second.rows]:
        raise UserError("the two files bring questions of their own, which differ; name them with --questions")
    compared: dict[str, Any] = {}
    for name in ("exact_match", "f1"):
        pairs = [(a.get(name), b.get(name)) for a, b in zip(first.rows, second.rows, strict=True)]
        deltas = np.array([b - a for a, b in pairs if a is not None and b is not None])
        if not len(deltas):
            continue
        low, high = (end if math.isfinite(end) else None for end in per_example_interval([deltas]))
        better, worse = int((deltas > 0).sum()), int((deltas < 0).sum())
        compared[name] = {"delta": float(deltas.mean()), "low": low, "high": high, "better": better, "worse": worse}
    if not compared:
        raise UserError("two files of retrieved passages are not compared; give one, or files of answers")
    return compared


def report(files: Sequence[Path], scored: Sequence[Scored], as_json: bool, out: Path | None) -> None:
    """Print the scores and write each question's to `out`, as JSON lines (with the file's name where there are two)."""
    comparison = compare(*scored) if len(scored) == 2 else {}
    named = list(zip(map(str, files), scored, strict=True))
    if out is not None:
        write_json_lines(out, (({"file": path} if len(files) > 1 else {}) | row for path, s in named for row in s.rows))
    if as_json:
        found = [
            {"file": path, **each.summary, "problems": [problem._asdict() for problem in each.problems]}
            for path, each in named
        ]
        print(json.dumps({"files": found, "comparison": comparison or None}, indent=2))
        return
    print(render("predictions.j2", files=named, comparison=comparison), end="")
    for path, each in named:
        _warn(path, each)


def _warn(path: str, scored: Scored) -> None:
    """On stderr: what was not scored as it is."""
    messages = {
        "missing": "questions without a prediction, counted as wrong",
        "contradictory": "questions with several predictions that differ, counted as wrong",
        "repeated": "questions with the same prediction several times",
        "surplus": "predictions for no question, left out",
    }
    found = {message: [one[:60] for one in scored.summary[name]] for name, message in messages.items()}
    found["pattern problems"] = [
        f"question '{p.question}': {p.kind} pattern {p.pattern[:60]!r} ({p.error[:200]})" for p in scored.problems
    ]
    for message, names in found.items():
        if names:
            rest = ", ... (see --json)" if len(names) > NAMED else ""
            print(f"{path}: {len(names)} {message}: {', '.join(names[:NAMED])}{rest}", file=sys.stderr)
