"""Questions of a prepared corpus that a system is asked, and the scores of its answers and passages."""

# Shapes: Q questions, K passages

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from realm_lab.engine.corpus.answers import normalise_answer
from realm_lab.engine.corpus.records import Question
from realm_lab.engine.corpus.regex_answers import Patterns
from realm_lab.engine.corpus.store import Questions
from realm_lab.engine.evaluation.answers import Answer
from realm_lab.engine.evaluation.forms import question_forms
from realm_lab.engine.evaluation.judged import (
    MEASURES,
    Judged,
    document_grades,
    find_documents,
    graded_scores,
    own_document,
)
from realm_lab.engine.evaluation.open_qa import Scores, f1, matches
from realm_lab.engine.evaluation.recall import Ranks, rank_answers, recall_metrics
from realm_lab.engine.evaluation.utility import evenly_spaced
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.registry import Retrieved


class AskedQuestions:
    """The questions to measure on, and their scores."""

    def __init__(
        self,
        context: Context,
        questions: Sequence[Question],
        gold: Sequence[np.ndarray] = (),
        judged: Sequence[Judged] = (),
    ):
        self.ids = [question.id for question in questions]
        self.texts = [question.question for question in questions]
        self.answers = [list(question.answers) for question in questions]
        self.answers_updated = [list(question.answers_updated or question.answers) for question in questions]
        self.kinds = [question.answer_kind for question in questions]
        self.paths = [question.path for question in questions]
        self.supporting = [question.supporting for question in questions]
        self.groups: dict[str, list[int]] = {}  # group -> indices of its questions
        for index, question in enumerate(questions):
            for group in question.groups:
                self.groups.setdefault(group, []).append(index)
        self.gold, self.judged = gold, judged
        self.patterns = Patterns()
        self._context = context

    @classmethod
    def of_split(cls, context: Context, split: str) -> AskedQuestions:
        """Return the questions of a split that the parameters ask for, evenly spaced."""
        stored = context.corpus.questions(split)
        numbers = evenly_spaced(len(stored), context.params.evaluate.questions or len(stored)).tolist()
        questions = stored_questions(stored)
        judged = [Judged(stored.judged[number], stored.relevance[number]) for number in numbers]
        return cls(context, [questions[n] for n in numbers], [stored.gold[n] for n in numbers], judged)

    def __len__(self) -> int:
        return len(self.texts)

    def ranks(self, rows_QK: np.ndarray) -> Ranks:
        """Return the ranks, in retrieved rows, of passages with the answers, gold passages and supporting passages."""
        asked = self.answers, self.gold, self.kinds, self.ids, self.patterns, self.paths, self.supporting
        return rank_answers(rows_QK, self._context.passages, *asked)

    def recalls(self, rows_QK: np.ndarray) -> tuple[dict[str, float], Ranks]:
        """Return retrieval scores over all questions, by group and by form of passages; and the ranks."""
        ranks = self.ranks(rows_QK)
        values = recall_metrics(ranks) | question_forms(rows_QK, self.gold, self._context.passages)
        for group, indices in self.groups.items():
            values |= recall_metrics(ranks.part(indices), f"_{group}")
        return values, ranks

    def judged_recalls(self, retrieve: Callable[[Sequence[str], int], Retrieved]) -> dict[str, float]:
        """Return mean retrieval scores by judged documents, over the questions that have some; empty if none has."""
        indices = [index for index, judged in enumerate(self.judged) if len(judged.rows_J)]
        if not indices:
            return {}
        texts, passages = [self.texts[index] for index in indices], self._context.passages
        grades = [document_grades(self.judged[index], passages) for index in indices]
        left_out = [own_document(self.ids[index], own) for index, own in zip(indices, grades, strict=True)]
        found = find_documents(lambda k: retrieve(texts, k).rows_QK, passages, left_out)
        scores = [graded_scores(names, own) for names, own in zip(found, grades, strict=True)]
        return {measure: float(np.mean([score[measure] for score in scores])) for measure in MEASURES}

    def rows(self) -> list[dict[str, Any]]:
        """Return the fields of each question in predictions.jsonl that are known before measuring. Questions of one
        `cluster` have gold passages in the same article or, without gold passages, the same answer."""
        article = self._context.passages.text.row
        clusters = [
            article(gold[0])["article"] if len(gold) else f"answer {normalise_answer(own[0])}" if own else identity
            for gold, own, identity in zip(self.gold, self.answers, self.ids, strict=True)
        ]
        columns = zip(self.ids, clusters, self.texts, self.answers, strict=True)
        return [dict(zip(("id", "cluster", "question", "answers"), values, strict=True)) for values in columns]

    def exact_matches(self, scores: Sequence[Scores]) -> dict[str, Any]:
        """Return the exact match of each group of questions, and its number of questions."""
        values: dict[str, Any] = {}
        for group, indices in self.groups.items():
            values[f"exact_match_{group}"] = float(np.mean([scores[index].exact_match for index in indices]))
            values[f"questions_{group}"] = len(indices)
        return values

    def matches(self, answers: Sequence[Answer], references: Sequence[Sequence[str]]) -> list[bool]:
        """True for each answer that is one of its question's references."""
        asked = zip(answers, references, self.kinds, self.ids, strict=True)
        return [matches(answer.text, own, kind, self.patterns, identity) for answer, own, kind, identity in asked]

    def updates(self, answers: Mapping[str, Sequence[Answer]]) -> list[dict[str, Any]]:
        """Return the rows for `question_summary`, one per question: `changed`, true if its references have changed, and
        for each corpus `matches_old` and `matches_new`, true if the answer is one of the old or new references."""
        changed = [was != now for was, now in zip(self.answers, self.answers_updated, strict=True)]
        rows: list[dict[str, Any]] = [{"changed": each} for each in changed]
        for side, given in answers.items():
            old, new = self.matches(given, self.answers), self.matches(given, self.answers_updated)
            for row, matches_old, matches_new in zip(rows, old, new, strict=True):
                row[side] = {"matches_old": matches_old, "matches_new": matches_new}
        return rows

    def scores(self, answers: Sequence[Answer]) -> list[Scores]:
        """Return the scores of one answer to each question."""
        found = []
        right = self.matches(answers, self.answers)
        for answer, references, kind, exact in zip(answers, self.answers, self.kinds, right, strict=True):
            if kind == "regex":
                found.append(Scores(float(exact), None, None))
                continue
            span = None
            if answer.source:  # all unknown words have the same wordpiece: then the text decides
                pieces, unknown = answer.source.wordpieces, self._context.special.unk
                span = float(pieces in self._context.wordpieces(references) and (exact or unknown not in pieces))
            found.append(Scores(float(exact), span, f1(answer.text, references)))
        return found


def stored_questions(stored: Questions) -> list[Question]:
    """Return the questions of a prepared corpus as records."""
    paths = [tuple(stored.paths[number].tolist()) for number in range(len(stored))]
    texts = stored.answers, stored.answer_kinds, stored.answers_updated, stored.groups, paths
    supporting = [tuple(stored.supporting[number].tolist()) for number in range(len(stored))]
    columns = zip(stored.ids, stored.texts, *texts, supporting, strict=True)
    return [
        Question(n, q, tuple(own), None, kind, tuple(new), tuple(of), path, supporting=rows)
        for n, q, own, kind, new, of, path, rows in columns
    ]
