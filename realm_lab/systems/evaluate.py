"""The evaluate stage of any system: recall, answers, a corpus update, BM25 beside it, and what only it can measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from realm_lab import ENGINE_VERSION
from realm_lab.core.files import write_json, write_json_lines
from realm_lab.corpus.records import Question
from realm_lab.corpus.regex_answers import Patterns
from realm_lab.errors import UserError
from realm_lab.evaluation.answers import Answer
from realm_lab.evaluation.corpus_update import question_summary
from realm_lab.evaluation.examples import question_examples
from realm_lab.evaluation.forms import question_forms
from realm_lab.evaluation.open_qa import Scores, f1, matches, mean_scores
from realm_lab.evaluation.overlap import Overlap, find_overlaps, split_by_overlap
from realm_lab.evaluation.predictions import stored_questions
from realm_lab.evaluation.recall import DEPTHS, Ranks, rank_answers, recall_metrics
from realm_lab.evaluation.utility import evenly_spaced
from realm_lab.systems.context import Context
from realm_lab.systems.registry import System, Unsupported, system_of
from realm_lab.tracking.run_dir import StageRun

DEEPEST = max(DEPTHS)


class AskedQuestions:
    """Questions that are measured on, and their scores."""

    def __init__(self, context: Context, questions: Sequence[Question], gold: Sequence[np.ndarray] = ()):
        self.ids = [question.id for question in questions]
        self.texts = [question.question for question in questions]
        self.answers = [list(question.answers) for question in questions]
        self.answers_updated = [list(question.answers_updated or question.answers) for question in questions]
        self.kinds = [question.answer_kind for question in questions]
        self.paths = [question.path for question in questions]
        self.groups: dict[str, list[int]] = {}  # group -> places of its questions
        for place, question in enumerate(questions):
            for group in question.groups:
                self.groups.setdefault(group, []).append(place)
        self.gold = gold
        self.patterns = Patterns()
        self._context = context

    @classmethod
    def of_split(cls, context: Context, split: str) -> AskedQuestions:
        """The questions of a split that the parameters ask for, evenly spaced."""
        stored = context.corpus.questions(split)
        numbers = evenly_spaced(len(stored), context.params.evaluate.questions or len(stored)).tolist()
        questions = stored_questions(stored)
        return cls(context, [questions[number] for number in numbers], [stored.gold[number] for number in numbers])

    def __len__(self) -> int:
        return len(self.texts)

    def ranks(self, rows_QK: np.ndarray) -> Ranks:
        """Ranks of answers and gold passages in what was retrieved."""
        asked = self.answers, self.gold, self.kinds, self.ids, self.patterns, self.paths
        return rank_answers(rows_QK, self._context.passages, *asked)

    def recalls(self, rows_QK: np.ndarray) -> tuple[dict[str, float], Ranks]:
        """Of what was retrieved for all and for each group, and by the form of passages; and the ranks."""
        ranks = self.ranks(rows_QK)
        values = recall_metrics(ranks) | question_forms(rows_QK, self.gold, self._context.passages)
        for group, places in self.groups.items():
            values |= recall_metrics(ranks.part(places), f"_{group}")
        return values, ranks

    def rows(self) -> list[dict[str, Any]]:
        """Of each question what predictions.jsonl says of it before anything is measured. Questions of one `cluster`,
        the article of their gold passage, are alike; one without a gold passage is its own."""
        article = self._context.passages.text.row
        clusters = [
            article(gold[0])["article"] if len(gold) else identity
            for gold, identity in zip(self.gold, self.ids, strict=True)
        ]
        columns = zip(self.ids, clusters, self.texts, self.answers, strict=True)
        return [dict(zip(("id", "cluster", "question", "answers"), values, strict=True)) for values in columns]

    def exact_matches(self, scores: Sequence[Scores]) -> dict[str, Any]:
        """Of each group, and how many questions it has."""
        values: dict[str, Any] = {}
        for group, places in self.groups.items():
            values[f"exact_match_{group}"] = float(np.mean([scores[place].exact_match for place in places]))
            values[f"questions_{group}"] = len(places)
        return values

    def matches(self, answers: Sequence[Answer], references: Sequence[Sequence[str]]) -> list[bool]:
        """Whether each answer is one of its question's references."""
        asked = zip(answers, references, self.kinds, self.ids, strict=True)
        return [matches(answer.text, own, kind, self.patterns, identity) for answer, own, kind, identity in asked]

    def updates(self, answers: Mapping[str, Sequence[Answer]]) -> list[dict[str, Any]]:
        """What question_summary needs of each question: with each corpus, which of its references the answer is."""
        changed = [was != now for was, now in zip(self.answers, self.answers_updated, strict=True)]
        rows: list[dict[str, Any]] = [{"changed": each} for each in changed]
        for side, given in answers.items():
            old, new = self.matches(given, self.answers), self.matches(given, self.answers_updated)
            for row, matches_old, matches_new in zip(rows, old, new, strict=True):
                row[side] = {"matches_old": matches_old, "matches_new": matches_new}
        return rows

    def scores(self, answers: Sequence[Answer]) -> list[Scores]:
        """Of one answer to each question."""
        found = []
        right = self.matches(answers, self.answers)
        for answer, references, kind, exact in zip(answers, self.answers, self.kinds, right, strict=True):
            if kind == "regex":
                found.append(Scores(float(exact), None, None))
                continue
            pieces = answer.source.wordpieces if answer.source else None
            span = None if pieces is None else float(pieces in self._context.wordpieces(references))
            found.append(Scores(float(exact), span, f1(answer.text, references)))
        return found


def evaluate(context: Context, run: StageRun) -> None:
    """Everything that is measured of one run, on the test split. What a system cannot do is left out, and
    `not_measured` in the results says why."""
    system = system_of(context.plan.system)(context)
    test = AskedQuestions.of_split(context, "test")
    if not len(test):
        raise UserError("no test questions in the prepared corpus; name them in corpus.files.questions_test")
    folder = run.path / "eval"
    results: dict[str, Any] = {"questions": len(test)}
    examples: list[dict[str, Any]] = []
    answers: list[Answer] = []
    rows = test.rows()  # of predictions.jsonl

    def retrieval() -> None:
        untuned = system.before_finetuning()
        found, zero_shot = test.recalls(untuned.retrieve(test.texts, DEEPEST).rows_QK)
        results.update(found)
        tuned = zero_shot if untuned is system else test.ranks(system.retrieve(test.texts, DEEPEST).rows_QK)
        results.update(recall_metrics(tuned, "_finetuned"))
        for number, row in enumerate(rows):
            row |= recall_metrics(zero_shot.part([number])) | {"answer_rank": int(tuned.answer[number]) or None}

    def own_measurements() -> None:
        found, shown = system.measure()
        results.update(found)
        examples.extend(shown)

    def answering() -> None:
        answers.extend(system.answer(test.texts))
        scores = test.scores(answers)
        results.update(mean_scores(scores) | test.exact_matches(scores) | _development(context, system))
        overlaps = find_overlaps(context.corpus.questions("train"), test.texts, test.answers)
        results.update(split_by_overlap(overlaps, [score.exact_match for score in scores]))
        for row, answer, score, overlap in zip(rows, answers, scores, overlaps, strict=True):
            row |= _answered(context, answer, score, overlap)
        shown, count = (test.texts, test.answers, test.gold), context.params.evaluate.explorer_examples
        examples.extend(question_examples(context.passages, *shown, answers, count))

    def corpus_update() -> None:
        results["corpus_update"] = _corpus_update(context, system, test, answers)

    def bm25() -> None:
        results["bm25"] = test.recalls(context.bm25.search(test.texts, DEEPEST).rows_QK)[0]

    names = ("retrieval", "own measurements", "answers", "corpus update", "BM25")
    parts: tuple[Callable[[], None], ...] = (retrieval, own_measurements, answering, corpus_update, bm25)
    run.start(len(parts))
    for number, (name, part) in enumerate(zip(names, parts, strict=True), 1):
        try:
            part()
        except Unsupported as reason:
            results.setdefault("not_measured", {})[name] = str(reason)
        run.heartbeat(number, force=True)
    if "regex" in test.kinds:
        results |= {f"patterns_{kind}": count for kind, count in test.patterns.counts().items()}
        write_json_lines(folder / "patterns.jsonl", (problem._asdict() for problem in test.patterns.problems))
    write_json_lines(folder / "predictions.jsonl", rows)
    write_json(folder / "explorer.json", examples)
    write_json(folder / "manifest.json", {"stage": run.stage, "key": run.key, "engine_version": ENGINE_VERSION})
    run.finish(results | _weights(system))


def _weights(system: System) -> dict[str, int]:
    """How many weights retrieve and answer, shared ones once; nothing of a system that names no models."""
    weights = {weight for module in system.modules() for weight in module.parameters()}
    return {"parameters": sum(weight.numel() for weight in weights)} if weights else {}


def _development(context: Context, system: System) -> dict[str, Any]:
    """Exact match on development questions, by which a learning rate may be chosen."""
    asked = AskedQuestions.of_split(context, "dev")
    if not len(asked):
        return {}
    scores = asked.scores(system.answer(asked.texts))
    return {"exact_match_dev": float(np.mean([score.exact_match for score in scores])), "questions_dev": len(asked)}


def _corpus_update(
    context: Context, system: System, test: AskedQuestions, answers: Sequence[Answer]
) -> dict[str, Any] | None:
    """The paper's Table 4: another version of the corpus is put in, and nothing is trained."""
    if not context.corpus.has_second_version():
        return None
    updated = system.on_corpus(context.corpus.passages(version=1), f"{context.corpus.manifest.digest} updated")
    summary = question_summary(test.updates({"old": answers, "new": updated.answer(test.texts)}))
    shares = summary["new_corpus"] or dict.fromkeys(("follows", "stays", "wrong"))
    kept = ("changed_questions", "unchanged_exact_match_before", "unchanged_exact_match_after")
    return shares | {name: summary[name] for name in kept}


def _answered(context: Context, answer: Answer, scores: Scores, overlap: Overlap) -> dict[str, Any]:
    """What predictions.jsonl says of an answer."""
    found = {"prediction": answer.text} | {name: score for name, score in scores._asdict().items() if score is not None}
    found |= {"question_overlap": overlap.question, "answer_overlap": overlap.answer}
    if answer.source is None:
        return found
    text = context.passages.text
    return found | {
        "passage_id": text.row(answer.source.row)["id"],
        "passage_title": text.row(answer.source.row)["title"],
        "candidate_log_prob": answer.source.log_prior,
        "reader_log_prob": answer.source.log_span,
        "retrieved": [text.row(candidate.row)["id"] for candidate in answer.candidates],
    }
