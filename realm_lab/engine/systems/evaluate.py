"""The evaluate stage of any system: recall, answers, a corpus update, BM25, and the system's special measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from realm_lab import ENGINE_VERSION
from realm_lab.engine.corpus.records import UPDATED
from realm_lab.engine.evaluation.answers import Answer
from realm_lab.engine.evaluation.corpus_update import question_summary
from realm_lab.engine.evaluation.examples import question_examples
from realm_lab.engine.evaluation.open_qa import Scores, mean_scores
from realm_lab.engine.evaluation.overlap import Overlap, find_overlaps, split_by_overlap
from realm_lab.engine.evaluation.recall import DEPTHS, recall_metrics
from realm_lab.engine.systems.asked import AskedQuestions
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.registry import System, Unsupported, system_of
from realm_lab.errors import UserError
from realm_lab.records.files import write_json, write_json_lines
from realm_lab.records.metrics import Part
from realm_lab.records.run import StageRun

DEEPEST = max(DEPTHS)


def evaluate(context: Context, run: StageRun) -> None:
    """Measure one run on the test split. Anything that a system cannot do is left out, and
    `not_measured` in the results has the reason."""
    system = system_of(context.run.system)(context)
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
        judged = test.judged_recalls(untuned.retrieve)
        tuned = zero_shot if untuned is system else test.ranks(system.retrieve(test.texts, DEEPEST).rows_QK)
        tuned_judged = judged if untuned is system else test.judged_recalls(system.retrieve)
        results.update(judged | recall_metrics(tuned, "_finetuned"))
        results.update({f"{name}_finetuned": value for name, value in tuned_judged.items()})
        for number, row in enumerate(rows):
            row |= recall_metrics(zero_shot.part([number])) | {"answer_rank": max(int(tuned.answer[number]), 0) or None}

    def own_measurements() -> None:
        found, shown = system.measure()
        results.update(found)
        examples.extend(shown)

    def check_answers() -> None:
        if not all(test.answers):
            raise Unsupported(f"{test.answers.count([])} of {len(test)} test questions have no answers")

    def answering() -> None:
        check_answers()
        answers.extend(system.answer(test.texts))
        scores = test.scores(answers)
        results.update(mean_scores(scores) | test.exact_matches(scores) | _development(context, system))
        overlaps = find_overlaps(context.corpus.questions("train"), test.texts, test.answers)
        results.update(split_by_overlap(overlaps, [score.exact_match for score in scores]))
        for row, answer, score, overlap in zip(rows, answers, scores, overlaps, strict=True):
            row |= _answered(context, answer, score, overlap)
        examples.extend(question_examples(context.passages, test.texts, test.answers, test.gold, answers))

    def corpus_update() -> None:
        if context.corpus.has_second_version():
            check_answers()
        results["corpus_update"] = _corpus_update(context, system, test, answers)

    def bm25() -> None:
        found = test.recalls(context.bm25.search(test.texts, DEEPEST).rows_QK)[0]
        results["bm25"] = found | test.judged_recalls(context.bm25.search)

    parts: dict[Part, Callable[[], None]] = {
        "retrieval": retrieval,
        "own measurements": own_measurements,
        "answers": answering,
        "corpus update": corpus_update,
        "BM25": bm25,
    }
    run.start(len(parts))
    run.metrics.truncate_after(-1)
    run.metrics.log(0, {})
    for number, (name, measure) in enumerate(parts.items(), 1):
        try:
            measure()
        except Unsupported as reason:
            results.setdefault("not_measured", {})[name] = str(reason)
        run.heartbeat(number, force=True)
        run.metrics.log(number, {})  # the time of each part, for `sweep --try`
    if "regex" in test.kinds:
        results |= {f"patterns_{kind}": count for kind, count in test.patterns.counts().items()}
        write_json_lines(folder / "patterns.jsonl", (problem._asdict() for problem in test.patterns.problems))
    write_json_lines(folder / "predictions.jsonl", rows)
    write_json(folder / "explorer.json", examples)
    write_json(folder / "manifest.json", {"stage": run.stage, "key": run.key, "engine_version": ENGINE_VERSION})
    run.finish(results | _weights(system))


def _weights(system: System) -> dict[str, int]:
    """Count the weights that retrieve and answer, shared ones once; empty for a system that names no models."""
    weights = {weight for module in system.modules() for weight in module.parameters()}
    return {"parameters": sum(weight.numel() for weight in weights)} if weights else {}


def _development(context: Context, system: System) -> dict[str, Any]:
    """Measure exact match on development questions, the basis for choosing a learning rate."""
    asked = AskedQuestions.of_split(context, "dev")
    if not len(asked) or not all(asked.answers):
        return {}
    scores = asked.scores(system.answer(asked.texts))
    return {"exact_match_dev": float(np.mean([score.exact_match for score in scores])), "questions_dev": len(asked)}


def _corpus_update(
    context: Context, system: System, test: AskedQuestions, answers: Sequence[Answer]
) -> dict[str, Any] | None:
    """Measure answers after replacing the corpus by its second version, without training (the paper's Table 4)."""
    if not context.corpus.has_second_version():
        return None
    updated = system.on_corpus(context.corpus.passages(version=1), f"{context.corpus.manifest.digest}{UPDATED}")
    summary = question_summary(test.updates({"old": answers, "new": updated.answer(test.texts)}))
    shares = summary["new_corpus"] or dict.fromkeys(("follows", "stays", "wrong"))
    kept = ("changed_questions", "unchanged_exact_match_before", "unchanged_exact_match_after")
    return shares | {name: summary[name] for name in kept}


def _answered(context: Context, answer: Answer, scores: Scores, overlap: Overlap) -> dict[str, Any]:
    """Return the fields of an answer in predictions.jsonl."""
    found = {"prediction": answer.text} | {name: score for name, score in scores._asdict().items() if score is not None}
    found |= {"question_overlap": overlap.question, "answer_overlap": overlap.answer}
    if answer.source is None:
        return found
    passages = context.passages
    return found | {
        "passage_id": passages.id_of(answer.source.row),
        "passage_title": passages.text.row(answer.source.row)["title"],
        "candidate_log_prob": answer.source.log_prior,
        "reader_log_prob": answer.source.log_span,
        "retrieved": [passages.id_of(candidate.row) for candidate in answer.candidates],
    }
