"""The evaluate stage of one run: answers, recall, utility, the edition swap, per-example scores, worked examples."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from realm_lab import ENGINE_VERSION
from realm_lab.core.files import atomic_write, write_json
from realm_lab.corpus.regex_answers import Patterns
from realm_lab.corpus.store import Passages, Questions
from realm_lab.corpus.vocabulary import encode_batch_plain
from realm_lab.errors import UserError
from realm_lab.evaluation.answering import Answer, answer_questions
from realm_lab.evaluation.examples import cloze_examples, question_examples
from realm_lab.evaluation.open_qa import exact_match, f1
from realm_lab.evaluation.overlap import Overlap, TrainingText, split_by_overlap
from realm_lab.evaluation.recall import DEPTHS, NormalisedBodies, Ranks, rank_answers, recall_metrics, zero_shot_rows
from realm_lab.evaluation.utility import ClozeResult, cloze_metrics, evenly_spaced, run_cloze
from realm_lab.models.embedder import Embedder
from realm_lab.models.reader import Reader
from realm_lab.retrieval.retriever import Retriever
from realm_lab.systems.bm25 import Bm25
from realm_lab.systems.context import Context
from realm_lab.systems.initial import initial_state
from realm_lab.tracking.run_dir import StageRun

STEPS = ("zero-shot recall", "utility at the start", "utility at the end", "answers", "edition swap", "BM25")


class Scores(NamedTuple):
    """Of one answer: official exact match, the released code's span-level exact match (equal wordpieces), and F1."""

    exact_match: float
    exact_match_span: float | None  # None, as F1: the references are regular expressions
    f1: float | None


def evaluate(context: Context, run: StageRun) -> None:
    """Everything that is measured of one run, on the test split.

    Zero-shot recall and utility at the end are of what fine-tuning began with, utility at the start of what REALM
    pre-training began with; the baseline has no pre-training, so its start is its end.
    """
    params = context.params
    run.start(len(STEPS))
    questions = context.corpus.questions("test")
    if not len(questions):
        raise UserError("no test questions in the prepared corpus; name them in corpus.files.questions_test")
    chosen = evenly_spaced(len(questions), params.evaluate.questions or len(questions))
    bodies = NormalisedBodies(context.passages)
    patterns = Patterns()
    folder = run.path / "eval"
    results: dict[str, Any] = {"questions": len(chosen)}

    reader, embedder, null_offset = initial_state(context, "finetune")
    retriever = context.retriever(embedder, null_offset=null_offset)
    retriever.refresh(0)
    ranks = _rank(zero_shot_rows(retriever, questions, chosen, max(DEPTHS)), bodies, questions, chosen, patterns)
    results |= recall_metrics(ranks)
    _write_lines(folder / "recall.jsonl", _recall_rows(questions, chosen, ranks))
    run.heartbeat(1, force=True)

    examples: list[dict[str, Any]] = []
    start = initial_state(context, "pretrain" if "pretrain" in context.plan.stages else "finetune")
    results |= _utility(context, *start, "start", examples, None)
    run.heartbeat(2, force=True)
    results |= _utility(context, reader, embedder, null_offset, "end", examples, folder / "utility.jsonl")
    run.heartbeat(3, force=True)

    tuned_reader, tuned_embedder, _ = context.load_models("finetune")
    tuned = context.retriever(tuned_embedder)
    tuned.refresh(0)
    queries = [questions.tokens[int(number)] for number in chosen]
    answers = answer_questions(params, tuned, tuned_reader, context.tokenizer, context.special, queries)
    tuned_ranks = _rank(zero_shot_rows(tuned, questions, chosen, max(DEPTHS)), bodies, questions, chosen, patterns)
    results |= recall_metrics(tuned_ranks, "_finetuned")
    scores = [_score(context, questions, int(n), answer, patterns) for n, answer in zip(chosen, answers, strict=True)]
    for name in ("exact_match", "exact_match_span", "f1"):
        values = [getattr(score, name) for score in scores if getattr(score, name) is not None]
        results[name] = float(np.mean(values)) if values else None  # None: regular expressions have no words
    results |= _on_dev(context, tuned, tuned_reader, patterns)
    trained = context.corpus.questions("train")
    known = TrainingText(trained.texts, trained.answers)
    overlaps = [known.overlap(questions.texts[int(number)], questions.answers[int(number)]) for number in chosen]
    results |= split_by_overlap(overlaps, [score.exact_match for score in scores])
    rows = _prediction_rows(questions, chosen, answers, scores, overlaps, tuned_ranks, context.passages)
    _write_lines(folder / "predictions.jsonl", rows)
    examples += question_examples(
        context.passages, questions, chosen, answers, params.evaluate.explorer_examples, context.tokenizer
    )
    run.heartbeat(4, force=True)

    results["edition_swap"] = _edition_swap(context, tuned_reader, tuned_embedder, questions, chosen, queries, scores)
    run.heartbeat(5, force=True)
    found = Bm25(context.passages).search([questions.texts[int(number)] for number in chosen], max(DEPTHS))
    results["bm25"] = recall_metrics(_rank(found, bodies, questions, chosen, patterns))
    if "regex" in questions.answer_kinds:
        results |= {f"patterns_{kind}": count for kind, count in patterns.counts().items()}
        _write_lines(folder / "patterns.jsonl", (problem._asdict() for problem in patterns.problems))
    write_json(folder / "explorer.json", examples)
    write_json(folder / "manifest.json", {"stage": run.stage, "key": run.key, "engine_version": ENGINE_VERSION})
    run.heartbeat(6, force=True)
    run.finish(results)


def _rank(
    rows_BK: np.ndarray, bodies: NormalisedBodies, questions: Questions, chosen: np.ndarray, patterns: Patterns
) -> Ranks:
    numbers = [int(number) for number in chosen]
    answers = [questions.answers[number] for number in numbers]
    gold = [questions.gold[number] for number in numbers]
    kinds = [questions.answer_kinds[number] for number in numbers]
    return rank_answers(rows_BK, bodies, answers, gold, kinds, [questions.ids[number] for number in numbers], patterns)


def _on_dev(context: Context, retriever: Retriever, reader: Reader, patterns: Patterns) -> dict[str, Any]:
    """Exact match of the fine-tuned model on the development questions, by which a rate may be chosen; {} without."""
    questions = context.corpus.questions("dev")
    if not len(questions):
        return {}
    chosen = evenly_spaced(len(questions), context.params.evaluate.questions or len(questions))
    queries = [questions.tokens[int(number)] for number in chosen]
    answers = answer_questions(context.params, retriever, reader, context.tokenizer, context.special, queries)
    scores = [_score(context, questions, int(n), answer, patterns) for n, answer in zip(chosen, answers, strict=True)]
    return {"exact_match_dev": float(np.mean([score.exact_match for score in scores])), "questions_dev": len(chosen)}


def _utility(
    context: Context,
    reader: Reader,
    embedder: Embedder,
    null_offset: float,
    when: str,
    examples: list[dict[str, Any]],
    path: Path | None,
) -> dict[str, Any]:
    """Utility on held-out sentences, with worked examples and, where a path is given, every sentence's numbers."""
    sentences = context.corpus.sentences("cloze_test")
    if not len(sentences):
        return {"cloze_sentences": 0}
    retriever: Retriever = context.retriever(embedder, null_offset=null_offset)
    retriever.refresh(0)
    count = context.params.evaluate.cloze_sentences
    result = run_cloze(context.params, retriever, reader, sentences, context.special, count)
    shown = context.params.evaluate.explorer_examples
    examples += cloze_examples(context.passages, context.tokenizer, context.special, result, when, shown)
    if path is not None:
        _write_lines(path, _utility_rows(context, result))
    values = cloze_metrics(result)
    return {"cloze_sentences": len(result.masked)} | {f"{name}_{when}": value for name, value in values.items()}


def _utility_rows(context: Context, result: ClozeResult) -> Iterable[dict[str, Any]]:
    for number, masked in enumerate(result.masked):
        yield {
            "sentence": context.tokenizer.decode(masked.tokens.tolist(), skip_special_tokens=False),
            "answer": context.tokenizer.decode(masked.targets.tolist()),
            "utility": result.utility_BK[number].tolist(),
            "candidate_log_probs": result.log_prior_BK[number].tolist(),
            "passages": [context.passages.text.row(row)["id"] if row >= 0 else None for row in result.rows_BK[number]],
            "gold": context.passages.text.row(gold)["id"] if (gold := result.gold_B[number]) >= 0 else None,
        }


def _score(context: Context, questions: Questions, number: int, answer: Answer, patterns: Patterns) -> Scores:
    """The scores of an answer; of a question with regular expressions, whether one of them matches it from its start
    (released code)."""
    references = questions.answers[number]
    if questions.answer_kinds[number] == "regex":
        matched = patterns.matches(answer.text, references, questions.ids[number])
        return Scores(float(matched), None, None)
    wordpieces = answer.candidates[answer.best].wordpieces
    encoded = [tuple(e.ids) for e in encode_batch_plain(context.tokenizer, references)]
    return Scores(
        float(exact_match(answer.text, references)), float(wordpieces in encoded), f1(answer.text, references)
    )


def _edition_swap(
    context: Context,
    reader: Reader,
    embedder: Embedder,
    questions: Questions,
    chosen: np.ndarray,
    queries: list[np.ndarray],
    scores: list[Scores],
) -> dict[str, Any] | None:
    """The paper's Table 4: another edition of the corpus is put in, and nothing is trained."""
    if not context.corpus.has_second_edition():
        return None
    retriever = context.retriever(embedder, passages=context.corpus.passages(edition=1))
    retriever.refresh(0)
    answers = answer_questions(context.params, retriever, reader, context.tokenizer, context.special, queries)
    follows, stays, before, after = [], [], [], []
    for number, answer, score in zip(chosen, answers, scores, strict=True):
        old, new = questions.answers[int(number)], questions.answers_updated[int(number)]
        if old == new:
            before.append(score.exact_match)
            after.append(exact_match(answer.text, new))
        else:
            follows.append(exact_match(answer.text, new))
            stays.append(exact_match(answer.text, old))
    return {
        "follows": float(np.mean(follows)) if follows else None,
        "stays": float(np.mean(stays)) if follows else None,
        "wrong": float(1 - np.mean(follows) - np.mean(stays)) if follows else None,
        "changed_questions": len(follows),
        "unchanged_exact_match_before": float(np.mean(before)) if before else None,
        "unchanged_exact_match_after": float(np.mean(after)) if after else None,
    }


def _recall_rows(questions: Questions, chosen: np.ndarray, ranks: Ranks) -> Iterable[dict[str, Any]]:
    for place, number in enumerate(chosen):
        yield {
            "id": questions.ids[int(number)],
            "question": questions.texts[int(number)],
            "rank_answer": int(ranks.answer[place]) or None,
            "rank_gold": int(ranks.gold[place]) or None,
        }


def _prediction_rows(
    questions: Questions,
    chosen: np.ndarray,
    answers: list[Answer],
    scores: list[Scores],
    overlaps: list[Overlap],
    ranks: Ranks,
    passages: Passages,
) -> Iterable[dict[str, Any]]:
    for place, (number, answer, score, overlap) in enumerate(zip(chosen, answers, scores, overlaps, strict=True)):
        best = answer.candidates[answer.best]
        text = passages.text.row(best.row)
        yield {
            "id": questions.ids[int(number)],
            "question": questions.texts[int(number)],
            "answers": questions.answers[int(number)],
            "prediction": answer.text,
            **{name: value for name, value in score._asdict().items() if value is not None},
            "question_overlap": overlap.question,
            "answer_overlap": overlap.answer,
            "passage_id": text["id"],
            "passage_title": text["title"],
            "candidate_log_prob": best.log_prior,
            "reader_log_prob": best.log_span,
            "retrieved": [passages.text.row(candidate.row)["id"] for candidate in answer.candidates],
            "answer_rank": int(ranks.answer[place]) or None,
        }


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with atomic_write(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
