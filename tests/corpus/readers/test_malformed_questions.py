"""What becomes of bad questions: read as they are, skipped and counted, or refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from realm_lab.corpus.readers import read_questions
from tests.corpus.readers.test_malformed import Case, Read, Refused, Skipped, check, lines, squad, tighten

CATASTROPHIC = "(a+)+$"

QUESTIONS = {
    "hub_squad_answers_as_a_list": Case(
        "s.jsonl",
        lines({"title": "T", "context": "One.", "question": "Who?", "answers": ["Ann"]}),
        Refused(", line 1: 'answers' is a list, not a dict; expected {id, title, context, question, answers: {text"),
    ),
    "hub_squad_answers_without_text": Case(
        "s.jsonl",
        lines({"title": "T", "context": "One.", "question": "Who?", "answers": {}}),
        Refused(", line 1, answers: 'text' is missing"),
    ),
    "no_question": Case("q.jsonl", b'{"answer": ["x"]}\n', Refused(", line 1: 'question' is missing (found: answer)")),
    "no_answer_field": Case(
        "q.jsonl", b'{"question": "x"}\n', Refused(", line 1: 'answer' is missing (found: question)")
    ),
    "answer_is_a_number": Case(
        "q.jsonl", b'{"question": "x", "answer": ["a", 3]}\n', Refused(", line 1: 'answer 2' is a i")
    ),
    "answer_is_one_text": Case("q.jsonl", b'{"question": "x", "answer": "Ann"}\n', Read([("Ann",)])),
    "id_is_a_list": Case(
        "q.jsonl", b'{"question": "x", "answer": ["a"], "id": []}\n', Refused(", line 1: 'id' is a list")
    ),
    "kind_unknown": Case(
        "q.jsonl",
        lines({"question": "x", "answer": "Ann", "answer_kind": "glob"}),
        Refused(", line 1: answer_kind 'glob'; w"),
    ),
    "answers_that_are_nothing": Case(
        "q.jsonl",
        lines({"question": "x", "answer": ["x", "?", " "]}),
        Skipped([("x",)], {"answer: normalises to nothing": 2}),
    ),
    "no_answers": Case("q.jsonl", lines({"question": "x", "answer": []}), Skipped([], {"question: no answer": 1})),
    "only_an_article": Case(
        "q.jsonl",
        lines({"question": "x", "answer": ["The"]}),
        Skipped([], {"answer: normalises to nothing": 1, "question: no answer": 1}),
    ),
    "blank_question": Case(
        "q.jsonl", lines({"question": " ", "answer": "Ann"}), Skipped([], {"question: empty text": 1})
    ),
    "question_id_twice": Case(
        "q.jsonl",
        lines({"id": 1, "question": "x", "answer": "Ann"}, {"id": "1", "question": "y", "answer": "Bob"}),
        Skipped([("Ann",)], {"question: duplicate id": 1}),
    ),
    "unanswerable": Case(
        "s.json",
        squad(id="a", question="Who?", answers=[], is_impossible=True),
        Skipped([], {"question: unanswerable": 1}),
    ),
    "squad_question_without_text": Case(
        "s.json",
        squad(id="b", answers=[]),
        Refused(", paragraph T#0, question 1: 'question' is missing (found: id, ans"),
    ),
    "invalid_pattern": Case(
        "trec.jsonl",
        lines({"question": "x", "answer": ["(a"]}),
        Skipped([("(a",)], {"answer: not a valid regular expression, kept and matches nothing": 1}),
    ),
    "catastrophic_pattern": Case(
        "trec.jsonl", lines({"question": "x", "answer": [CATASTROPHIC]}), Read([(CATASTROPHIC,)])
    ),
    "blank_pattern": Case(
        "trec.jsonl",
        lines({"question": "x", "answer": [" "]}),
        Skipped([], {"answer: normalises to nothing": 1, "question: no answer": 1}),
    ),
    "pattern_of_punctuation": Case("trec.jsonl", lines({"question": "x", "answer": [r"\?"]}), Read([(r"\?",)])),
    "pattern_with_a_tab": Case("trec.tsv", b"7\tfactoid\tWhat?\ta\tb|c\n", Read([("a\tb|c",)])),
    "trec_table_cut": Case(
        "trec.tsv", b"7\tfactoid\tWhat?\ta\n8\tfactoid\tWh", Refused(", line 2: 3 columns; expected id")
    ),
}


@pytest.mark.parametrize("case", QUESTIONS.values(), ids=QUESTIONS)
def test_questions(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tighten(case, monkeypatch)
    check(case, tmp_path, lambda path, dropped: [q.answers for q in read_questions(path, dropped)])


def test_an_invalid_pattern_is_named(tmp_path: Path) -> None:
    (tmp_path / "trec.jsonl").write_bytes(lines({"id": "t1", "question": "x", "answer": ["(a"]}))
    problems: list[str] = []
    list(read_questions(tmp_path / "trec.jsonl", problems=problems))
    assert len(problems) == 1
    assert problems[0].startswith("question 't1': '(a' is not a regular expression (missing )")
