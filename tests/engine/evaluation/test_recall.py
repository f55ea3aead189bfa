"""Ranks and recall@k against a plain reading of the passages."""

import re
from typing import Any

import numpy as np
import pytest

from realm_lab.engine.corpus.records import AnswerKind
from realm_lab.engine.corpus.regex_answers import Patterns
from realm_lab.engine.evaluation import recall
from realm_lab.engine.evaluation.recall import DEPTHS, Ranks, rank_answers, recall_metrics, search_questions
from realm_lab.engine.models.initial import new_embedder
from tests.tiny_system import Reference, TinySystem


def answer_ranks(system: TinySystem, rows_BK: np.ndarray, answers: list[list[str]]) -> list[int]:
    """1-based rank of the first passage with an answer as whole words, read as text; toy answers are plain words."""
    bodies = [set(body.split()) for body in system.passages.text.column("body")]
    ranks = []
    for rows, references in zip(rows_BK.tolist(), answers, strict=True):
        held = [row >= 0 and any(reference in bodies[row] for reference in references) for row in rows]
        ranks.append(held.index(True) + 1 if any(held) else 0)
    return ranks


def ranked(system: TinySystem, rows_BK: np.ndarray, answers: list[list[str]], gold: list[np.ndarray]) -> Ranks:
    ids = [str(number) for number in range(len(rows_BK))]
    kinds: list[AnswerKind] = ["text"] * len(rows_BK)
    return rank_answers(rows_BK, system.passages, answers, gold, kinds, ids, Patterns())


def test_ranks_are_those_of_reading_every_passage(system: TinySystem) -> None:
    questions = system.corpus.questions("dev")
    generator = np.random.default_rng(0)
    rows_BK = np.stack([generator.permutation(len(system.passages))[:60] for _ in range(len(questions))])
    rows_BK[3, :4] = -2  # ranks that a small corpus left empty
    known = [questions.gold[number] for number in range(len(questions))]
    ranks = ranked(system, rows_BK, questions.answers, known)
    assert ranks.answer.tolist() == answer_ranks(system, rows_BK, questions.answers)
    gold = [
        next((place for place, row in enumerate(rows, 1) if row in known[number].tolist()), 0)
        for number, rows in enumerate(rows_BK.tolist())
    ]
    assert ranks.gold.tolist() == gold
    assert 0 < np.count_nonzero(ranks.answer) < len(questions)
    assert 0 < np.count_nonzero(ranks.gold) < len(questions)
    assert ranks.gold.min() == 0


def test_regular_expressions_are_searched_in_the_text_itself(system: TinySystem) -> None:
    bodies = system.passages.text.column("body")
    generator = np.random.default_rng(1)
    rows_BK = np.stack([generator.permutation(len(bodies))[:40] for _ in range(6)])
    words = [body.split()[3] for body in bodies[:3]]
    answers = [[rf"\b{words[0]}\b"], [words[1].upper(), "zzz"], [f"^{words[2]}"], ["("], ["z{3}", "("], [words[0]]]
    kinds: list[AnswerKind] = ["regex", "regex", "regex", "regex", "regex", "text"]
    ids = list("abcdef")
    patterns = Patterns()
    gold = [np.array([rows_BK[number, number]]) for number in range(6)]
    ranks = rank_answers(rows_BK, system.passages, answers, gold, kinds, ids, patterns)
    expected = []
    for rows, references, kind in zip(rows_BK.tolist(), answers, kinds, strict=True):
        if kind == "text":
            held = [references[0] in bodies[row].split() for row in rows]
        else:
            usable = [reference for reference in references if reference != "("]
            held = [any(re.search(r, bodies[row], re.I | re.M) for r in usable) for row in rows]
        expected.append(held.index(True) + 1 if any(held) else 0)
    assert ranks.answer.tolist() == expected
    assert sum(rank > 0 for rank in expected) >= 3
    assert ranks.gold.tolist() == [1, 2, 3, 4, 5, 6]
    assert [(problem.question, problem.pattern) for problem in patterns.problems] == [("d", "("), ("e", "(")]


def test_recall_is_the_share_within_the_depth() -> None:
    ranks = Ranks(
        answer=np.array([1, 2, 5, 6, 20, 21, 0, 0]),
        gold=np.array([1, 0, 6, -1, -1, 3, 0, -1]),
        path=np.full(8, -1),
        evidence=np.array([-1, -1, 1, 7, 0, 5, -1, -1]),
    )
    assert recall_metrics(ranks) == {
        "recall_at_1": 1 / 8,
        "recall_at_5": 3 / 8,
        "recall_at_20": 5 / 8,
        "gold_recall_at_1": 1 / 5,  # of the questions whose gold passage is known
        "gold_recall_at_5": 2 / 5,
        "gold_recall_at_20": 3 / 5,
        "evidence_at_1": 1 / 4,  # of the questions with a known passage that supports the answer
        "evidence_at_5": 2 / 4,
        "evidence_at_20": 3 / 4,
    }
    unknown = ranks._replace(gold=np.full(8, -1), evidence=np.full(8, -1))
    assert recall_metrics(unknown, "_finetuned").keys() == {f"recall_at_{k}_finetuned" for k in DEPTHS}


def test_a_path_is_found_by_its_last_passage_wherever_it_is(system: TinySystem) -> None:
    rows_BK = np.array([[3, 9, 4, 7, 1, 8], [3, 9, 4, 7, 1, 8], [3, 9, 4, 7, 1, 8], [3, 9, 4, 7, 1, 8]])
    asked: Any = [[""]] * 4, [np.empty(0)] * 4, ["text"] * 4, list("abcd"), Patterns(), [(4, 3), (1, 8), (9, 5), ()]
    ranks = rank_answers(rows_BK, system.passages, *asked)
    assert ranks.path.tolist() == [3, 6, 0, -1]
    found = {name: value for name, value in recall_metrics(ranks, "_x").items() if name.startswith("path")}
    assert found == {"path_recall_at_5_x": 1 / 3, "path_recall_at_20_x": 2 / 3}


def test_a_passage_that_supports_the_answer_is_found_by_its_row(system: TinySystem) -> None:
    rows_BK = np.array([[3, 9, 4], [3, 9, 4], [3, 9, 4], [-2, -2, -2]])
    asked: Any = [[""]] * 4, [np.empty(0)] * 4, ["text"] * 4, list("abcd"), Patterns(), (), [(4, 9), (7,), (), (4,)]
    assert rank_answers(rows_BK, system.passages, *asked).evidence.tolist() == [2, 0, -1, 0]


def test_questions_find_what_the_retriever_ranks_first(
    system: TinySystem, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [system.corpus.questions("dev").tokens[number] for number in (40, 2, 17, 3, 90)]
    monkeypatch.setattr(recall, "QUESTIONS_AT_ONCE", 2)
    rows_BK, scores_BK = search_questions(system.built_retriever(), tokens, 20)
    documents = [reference.document(row) for row in range(len(system.passages))]
    for query, rows, found in zip(tokens, rows_BK.tolist(), scores_BK, strict=True):
        scores = [(reference.query(query) @ document).item() for document in documents]
        assert rows == sorted(range(len(scores)), key=lambda row: -scores[row])[:20]
        np.testing.assert_allclose(found, [scores[row] for row in rows], atol=1e-4)


def test_a_stale_index_is_searched_with_its_own_tower(system: TinySystem) -> None:
    tokens = [system.corpus.questions("dev").tokens[number] for number in range(6)]
    retriever = system.retriever(stale_queries=True)
    retriever.refresh(0)
    other_weights = new_embedder(system.params, system.corpus.manifest.vocabulary_size, 5, None)
    other = system.retriever(other_weights, stale_queries=True)
    other.adopt(retriever.index, retriever.snapshot)  # type: ignore[arg-type]
    expected, _ = search_questions(retriever, tokens, 5)
    np.testing.assert_array_equal(search_questions(other, tokens, 5)[0], expected)
