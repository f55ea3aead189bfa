"""Prediction files of every format: how they are read, matched with their questions, and scored."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from realm_lab.corpus.records import Question
from realm_lab.errors import UserError
from realm_lab.evaluation.prediction_files import match, own_questions, read_entries, read_references
from realm_lab.evaluation.prediction_scores import score_predictions, score_retrieval

QUESTIONS = [
    Question("a", "who wrote hamlet", ("William Shakespeare", "Shakespeare"), "Hamlet#0"),
    Question("b", "where is paris", ("France",), None),
    Question("c", "when was 1969", (r"19\d9",), None, "regex"),
    Question("d", "where is paris", ("Texas",), None),
]
RIGHT = {"a": "shakespeare!", "b": "Texas", "c": "1979 or so", "d": "the Texas"}
SCORES = [1.0, 0.0, 1.0, 1.0]
BY_TEXT = [{"question": q.question, "prediction": RIGHT[q.id]} for q in QUESTIONS]


def best_of(identity: str) -> list[dict[str, Any]]:
    """The answer of 50 passages, which counts, and that of 10, as DPR writes them."""
    return [{"top_k": k, "prediction": {"text": text, "score": k}} for k, text in ((50, RIGHT[identity]), (10, "no"))]


def lines(rows: Sequence[Any]) -> str:
    return "\n".join(map(json.dumps, rows)) + "\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("map.json", json.dumps(RIGHT, indent=1)),
        ("ids.jsonl", lines([{"id": key, "prediction": value} for key, value in RIGHT.items()])),
        ("texts.jsonl", lines(BY_TEXT)),  # equal questions: in order
        ("blank_lines.jsonl", "\n\n" + lines(BY_TEXT).replace("\n", "\r\n\r\n")),
        ("objects_without_name", lines(BY_TEXT)),
        ("array.json", json.dumps(BY_TEXT)),
        ("hugging_face.json", json.dumps([{"id": k, "prediction_text": v} for k, v in RIGHT.items()])),
        ("dpr.json", json.dumps([{"question": q.question, "predictions": best_of(q.id)} for q in QUESTIONS])),
        ("plain.txt", "".join(value + "\n" for value in RIGHT.values())),
        ("plain_without_last_line_end", "\n".join(RIGHT.values())),
        ("braces.txt", "\n".join(RIGHT.values()) + "\n"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_every_format_says_the_same(tmp_path: Path, name: str, text: str, compressed: bool) -> None:
    path = tmp_path / (name + ".gz" if compressed else name)
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    matched = match(read_entries(path, QUESTIONS), QUESTIONS)
    assert [entry and entry.prediction for entry in matched.entries] == list(RIGHT.values())
    assert not any(matched.faults.values())
    scored = score_predictions(QUESTIONS, matched)
    assert [row["exact_match"] for row in scored.rows] == SCORES
    assert [row["metric"] for row in scored.rows] == ["orqa", "orqa", "regex", "orqa"]
    assert [row["f1"] for row in scored.rows] == [1.0, 0.0, None, 1.0]
    assert (scored.summary["exact_match"], scored.summary["f1"]) == (0.75, pytest.approx(2 / 3))


def test_what_does_not_match_is_named_and_wrong(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prediction": "Shakespeare"},
        {"id": "a", "prediction": "Bacon"},  # contradicts
        {"id": "c", "prediction": "1969"},
        {"id": "c", "prediction": "1969"},  # says it again
        {"id": "d", "prediction": None},  # says that it has none
        {"id": "zz", "prediction": "x"},
        {"question": "who?", "prediction": "x"},
    ]
    path = tmp_path / "p.jsonl"
    path.write_text(lines(rows))
    matched = match(read_entries(path, QUESTIONS), QUESTIONS)
    assert matched.faults["missing"] == ["b", "d"]
    assert matched.faults["contradictory"] == ["a"]
    assert matched.faults["repeated"] == ["c"]
    assert matched.faults["surplus"] == ["zz", "who?"]
    summary = score_predictions(QUESTIONS, matched).summary
    assert summary["missing"] == ["b", "d"]
    assert (summary["exact_match"], summary["exact_match_answered"], summary["answered"]) == (0.25, 1.0, 1)


def test_a_key_that_stands_twice_is_not_taken_silently(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"a": "Shakespeare", "b": "France", "a": "Bacon"}')
    assert match(read_entries(path, None), QUESTIONS).faults["contradictory"] == ["a"]


def test_one_answer_to_a_text_that_is_asked_twice_counts_for_both(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(lines([{"question": " where is paris ", "prediction": "France"}]))
    matched = match(read_entries(path, QUESTIONS), QUESTIONS)
    assert [row["exact_match"] for row in score_predictions(QUESTIONS, matched).rows] == [0, 1, 0, 0]
    assert matched.faults["missing"] == ["a", "c"]


def test_the_empty_answer_is_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("\n\n\n\n")
    scored = score_predictions(QUESTIONS, match(read_entries(path, QUESTIONS), QUESTIONS))
    assert (scored.summary["answered"], scored.summary["empty"], scored.summary["missing"]) == (4, 4, [])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("few.txt", "x\ny\n", "2 lines for 4 questions"),
        ("broken.jsonl", '{"id": "a", "prediction": "x"}\n{"id": ', r"line 2, column 8: not valid JSON .* cut off"),
        ("array.json", '[{"id": "a", "prediction": "x"}', r"array.json, line 1: not valid JSON"),
        ("number.json", '{"a": 3}', "'a': 'prediction' is a int, not a str"),
        ("nothing.jsonl", '{"id": "a", "answer": "x"}', r"line 1: 'prediction' is missing \(found: id, answer\)"),
        ("anonymous.jsonl", '{"prediction": "x"}\n{"prediction": "y"}', "line 1: neither 'id' nor 'question'"),
        ("members.json", '["x"]', r"record 1 \(line 1\): a str where an object should be"),
        ("contexts.json", '[{"question": "q", "ctxs": [{"title": "t"}]}]', "ctxs 1: 'text' is missing"),
        (
            "flag.json",
            '[{"question": "q", "ctxs": [{"has_answer": "no"}]}]',
            "ctxs 1: 'has_answer' is a str",
        ),
        ("answers.json", '[{"question": "q", "answers": 3, "ctxs": []}]', r"record 1 \(line 1\): 'answers' is a int"),
        ("list_id.jsonl", '{"id": ["a"], "prediction": "x"}', "line 1: 'id' is a list, not a str"),
        ("half.json", '{"a": "\\ud800"}', "'a': 'prediction' holds half of a surrogate pair"),
        ("deep.json", '{"a": ' + "[" * 100_000, "deep.json, line 1: not usable JSON"),
    ],
)
def test_bad_files_are_refused_with_place_and_remedy(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_entries(path, QUESTIONS)


PARAGRAPH = '{"data": [{"title": "T", "paragraphs": [{"context": "c"%s}]}]}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"data": []}', "no articles under 'data'"),
        ('{"data": [{"title": "T"}]}', "article 1: 'paragraphs' is missing"),
        (PARAGRAPH % "", "paragraph T#0: 'qas' is missing"),
        (PARAGRAPH % ', "qas": [3]', "question 1: a int where an object should be"),
        (PARAGRAPH % ', "qas": [{"question": "q"}]', "'answers' is missing"),
        (PARAGRAPH % ', "qas": [{"question": "q", "answers": [{}]}]', "question 1: 'text' is missing"),
        (PARAGRAPH % ', "qas": [{"question": "q", "answers": []}]', "question 1: no 'id'"),
        ('[{"title": "T", "paragraphs": []}]', r"record 1 \(line 1\): 'question' is missing"),
    ],
)
def test_bad_files_of_questions_are_refused_as_prepare_does(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "squad.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_references(path)
    assert str(caught.value).startswith(str(path))


def test_one_answer_that_is_no_list_is_one_answer(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(
        json.dumps([{"question": "q", "answers": "a city", "ctxs": [{"text": "A b."}, {"text": "A city."}]}])
    )
    entries = read_entries(path, None)
    asked = list(own_questions(path, entries))
    assert asked[0].answers == ("a city",)
    assert score_retrieval(asked, match(entries, asked)).rows[0]["rank_answer"] == 2


def squad_file(path: Path, unanswerable: bool) -> Path:
    items: list[dict[str, Any]] = [
        {"id": "1", "question": " Who? ", "answers": [{"text": "the Beatles", "answer_start": 0}]},
        {"id": "2", "question": "Who?", "answers": [{"text": "the", "answer_start": 0}]},
    ]
    if unanswerable:
        items = [item | {"is_impossible": False} for item in items]
        items.append({"id": "3", "question": "Why?", "answers": [], "is_impossible": True})
    data = [{"title": "T", "paragraphs": [{"context": "the Beatles", "qas": items}]}]
    path.write_text(json.dumps({"version": "x", "data": data}))
    return path


@pytest.mark.parametrize(("unanswerable", "scores"), [(False, [1.0, 1.0]), (True, [1.0, 1.0, 1.0])])
def test_squad_is_scored_by_its_own_script(tmp_path: Path, unanswerable: bool, scores: list[float]) -> None:
    found = read_references(squad_file(tmp_path / "squad.json", unanswerable))
    assert found.squad_version == ("2.0" if unanswerable else "1.1")
    assert [question.id for question in found.questions] == ["1", "2", "3"][: len(scores)]
    predictions = tmp_path / "p.json"
    predictions.write_text(json.dumps({"1": "Beatles", "2": "", "3": ""}))
    matched = match(read_entries(predictions, found.questions), found.questions)
    scored = score_predictions(found.questions, matched, version=found.squad_version)
    assert [row["metric"] for row in scored.rows] == ["squad"] * len(scores)
    assert [row["exact_match"] for row in scored.rows] == scores
    assert scored.rows[1]["f1"] == (1.0 if unanswerable else 0.0)
    assert matched.faults["surplus"] == ([] if unanswerable else ["3"])


def test_questions_that_no_reader_would_train_on_are_still_scored(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(lines([{"question": "q1", "answer": ["the"]}, {"question": "q1", "answer": ["x"]}]))
    assert [question.answers for question in read_references(path).questions] == [("the",), ("x",)]


CONTEXTS = [
    {"id": "Hamlet#1", "title": "Hamlet", "text": "A play by Shakespeares.", "has_answer": True},
    {"id": "Hamlet#0/3", "title": "Hamlet", "text": "By SHAKESPEARE, around 1599.", "has_answer": False},
]


def test_retrieved_passages_are_ranked_by_four_rules(tmp_path: Path) -> None:
    rows = [
        {"question": "who wrote hamlet", "answers": ["Shakespeare"], "ctxs": CONTEXTS},
        {"question": "when was 1969", "answers": [r"15\d9"], "ctxs": CONTEXTS},
    ]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(rows))
    asked = [QUESTIONS[0], QUESTIONS[2]._replace(answers=(r"^by.*15\d9", "(")), QUESTIONS[1]]
    scored = score_retrieval(asked, match(read_entries(path, None), asked))
    ranks = [[row[f"rank_{name}"] for name in ("answer", "answer_raw", "stated", "gold")] for row in scored.rows]
    assert ranks == [
        [2, 1, 1, 2],  # whole words of any case; letters as they are, inside a word; the file's word; the document
        [2, None, 1, None],
        [None, None, None, None],
    ]
    assert scored.summary["missing"] == ["b"]
    assert {name: value for name, value in scored.summary.items() if "recall" in name} == {
        "recall_at_1": 0.0,
        "raw_recall_at_1": 1 / 3,
        "stated_recall_at_1": 2 / 3,
        "gold_recall_at_1": 0.0,
    }
    assert [(p.question, p.pattern, p.kind) for p in scored.problems] == [("c", "(", "invalid")]
    own = list(own_questions(path, read_entries(path, None)))
    assert [question.answers for question in own] == [("Shakespeare",), (r"15\d9",)]


def test_files_that_name_no_questions_need_them(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("x\n")
    with pytest.raises(UserError, match="--questions"):
        read_entries(tmp_path / "p.txt", None)
    path = tmp_path / "r.json"
    path.write_text(json.dumps([{"question": "q", "ctxs": CONTEXTS}]))
    with pytest.raises(UserError, match="--questions"):
        list(own_questions(path, read_entries(path, None)))
