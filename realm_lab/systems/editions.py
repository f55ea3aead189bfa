"""`realm-lab evaluate --corpus`: a finished run is asked with another corpus, and nothing is trained (Table 4)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from realm_lab import ENGINE_VERSION
from realm_lab.core.files import atomic_write, write_json
from realm_lab.core.process import limit_threads
from realm_lab.corpus.records import Question
from realm_lab.corpus.regex_answers import Patterns
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import encode_batch_plain
from realm_lab.errors import UserError
from realm_lab.evaluation.answering import Answer, answer_questions
from realm_lab.evaluation.cloze_items import ClozeItem, ClozeReading, cloze_items, read_cloze_items
from realm_lab.evaluation.edition_swap import cloze_summary, question_summary
from realm_lab.evaluation.open_qa import exact_match
from realm_lab.evaluation.prediction_files import read_references, stored_questions
from realm_lab.models.embedder import Embedder
from realm_lab.models.reader import Reader
from realm_lab.params.parameters import Params
from realm_lab.reporting.knowledge_update import write_knowledge_update
from realm_lab.reporting.statistics import per_example_interval
from realm_lab.retrieval.retriever import Retriever
from realm_lab.systems.ask import open_run
from realm_lab.systems.context import Context
from realm_lab.systems.edition_corpora import (
    Edition,
    documents_of,
    embed_changed,
    open_prepared,
    prepare_edition,
    rest_of,
)
from realm_lab.systems.identity import plan_run, record_run
from realm_lab.systems.initial import initial_state


class Request(NamedTuple):
    """What is put in, and what is asked."""

    new: list[Path]
    old: list[Path]  # empty: the run's own corpus
    rest: int
    questions: Path | None  # None: the run's test questions, if no cloze items are asked either
    clozes: dict[str, Path]
    name: str | None


def evaluate_editions(
    params: Params, root: Path, seed: int, system: str, request: Request, as_json: bool = False
) -> Path:
    """Ask the run with both editions; writes runs/RUN/editions/NAME/ and prints what came out. Returns the folder.

    The index of the fine-tuned model answers questions, that of the model before fine-tuning fills blanks.

    Raises:
        UserError: a stage of the run has not finished, a file is of no known format, or nothing is asked.
    """
    started = time.monotonic()
    limit_threads(params.launch.threads)
    context = open_run(params, root, seed, system)
    plan = plan_run(params, system, seed)
    record = record_run(root / "runs", plan, params)
    name = request.name or request.new[0].name.partition(".")[0]
    folder = root / "runs" / record.name / "editions" / name
    editions = open_editions(context, request, folder)
    results: dict[str, Any] = {
        "name": name,
        "run": {"system": system, "seed": seed, "run_key": record.run_key, "engine_version": ENGINE_VERSION},
        "settings": {
            "candidates": params.pretrain.candidates,
            "passages_read": params.finetune.candidates,
            "sentence_length": params.corpus.sentence_length,
            "passage_length": params.corpus.passage_length,
        },
        "editions": {
            edition.name: {"source": edition.source, "passages": len(edition.passages), "digest": edition.digest}
            for edition in editions
        },
    }
    questions = _questions(context, request)
    if questions:
        print(f"{name}: {len(questions)} questions", file=sys.stderr)
        reader, embedder, _ = context.load_models("finetune")
        results["questions"] = _ask(context, reader, embedder, editions, questions, folder, results["editions"])
    if request.clozes:
        initial = initial_state(context, "finetune")
        retrievers = _retrievers(context, initial.embedder, editions, initial.null_offset, results["editions"])
        groups = {}
        for group, path in request.clozes.items():
            print(f"{name}: blanks of {path}", file=sys.stderr)
            groups[group] = _fill(context, initial.reader, retrievers, group, path, folder)
        results["clozes"] = groups
    results["seconds"] = time.monotonic() - started
    write_json(folder / "result.json", results)
    write_knowledge_update([results], folder)
    print(json.dumps(results, indent=2, ensure_ascii=False) if as_json else f"{folder / 'report.md'}")
    return folder


def open_editions(context: Context, request: Request, folder: Path) -> tuple[Edition, Edition]:
    """The old edition and the new one."""
    new = _edition("new", context, request.new, request, folder)
    if request.old:
        return _edition("old", context, request.old, request, folder), new
    own = Edition("old", context.passages, context.corpus.manifest.digest, "the run's own corpus")
    return own, new


def _edition(name: str, context: Context, paths: Sequence[Path], request: Request, folder: Path) -> Edition:
    source = ", ".join(path.name for path in paths)
    if len(paths) == 1 and (paths[0] / "manifest.json").exists():
        corpus = open_prepared(context, paths[0])
        return Edition(name, corpus.passages(), corpus.manifest.digest, source)
    documents = documents_of(paths, later=name == "new")
    rest: list[Any] = []
    if request.rest:
        named = set(documents_of(request.new, later=True))
        named |= set(documents_of(request.old, later=False)) if request.old else set()
        rest = rest_of(context.params, named, request.rest)
        source += f" and {len(rest):,} documents of the run's own files"
    corpus = prepare_edition(context, [*documents.values(), *rest], folder / name)
    return Edition(name, corpus.passages(), corpus.manifest.digest, source)


def _questions(context: Context, request: Request) -> list[Question]:
    if request.questions is not None:
        return read_references(request.questions).questions
    if request.clozes:
        return []
    stored = stored_questions(context.corpus.questions("test"))
    if not stored:
        raise UserError("no test questions in the prepared corpus; name some with --questions, or --cloze")
    return stored


def _retrievers(
    context: Context,
    embedder: Embedder,
    editions: Sequence[Edition],
    null_offset: float,
    told: dict[str, dict[str, Any]],
) -> dict[str, Retriever]:
    """One for each edition; `told` learns how many passages were embedded."""
    made: dict[str, Retriever] = {}
    before: Passages | None = None
    vectors = None
    for edition in editions:
        retriever = context.retriever(embedder, null_offset=null_offset, passages=edition.passages)
        vectors, count = embed_changed(retriever, before, vectors)
        retriever.adopt(retriever.generation(vectors, 0), None)
        told[edition.name]["embedded"] = count
        made[edition.name], before = retriever, edition.passages
        print(f"{edition.name} edition: {len(edition.passages):,} passages, {count:,} embedded", file=sys.stderr)
    return made


def _ask(
    context: Context,
    reader: Reader,
    embedder: Embedder,
    editions: Sequence[Edition],
    questions: list[Question],
    folder: Path,
    told: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Answers with both editions; one line a question in questions.jsonl."""
    queries = _tokens(context.tokenizer, questions, context.params.corpus.sentence_length - 2)
    answers: dict[str, list[Answer]] = {}
    for name, retriever in _retrievers(context, embedder, editions, 0.0, told).items():
        answers[name] = answer_questions(context.params, retriever, reader, context.tokenizer, context.special, queries)
    patterns = Patterns()
    rows = []
    for number, question in enumerate(questions):
        updated = question.answers_updated or question.answers
        row: dict[str, Any] = {
            "id": question.id,
            "question": question.question,
            "answers": list(question.answers),
            "answers_updated": list(updated),
            "changed": tuple(updated) != tuple(question.answers),
        }
        for edition in editions:
            answer = answers[edition.name][number]
            row[edition.name] = {
                "prediction": answer.text,
                "matches_old": _matches(answer.text, question, question.answers, patterns),
                "matches_new": _matches(answer.text, question, updated, patterns),
                "passage": edition.passages.text.row(answer.candidates[answer.best].row)["id"],
            }
        rows.append(row)
    _write_lines(folder / "questions.jsonl", rows)
    summary = question_summary(rows)
    if patterns.problems:
        summary["patterns"] = patterns.counts()
    return summary


def _matches(prediction: str, question: Question, answers: Sequence[str], patterns: Patterns) -> bool:
    if question.answer_kind == "regex":
        return patterns.matches(prediction, answers, question.id)
    return exact_match(prediction, answers)


def _tokens(tokenizer: Tokenizer, questions: Sequence[Question], longest: int) -> list[np.ndarray]:
    encoded = encode_batch_plain(tokenizer, [question.question for question in questions])
    return [np.array(encoding.ids[:longest], np.int64) for encoding in encoded]


def _fill(
    context: Context, reader: Reader, retrievers: dict[str, Retriever], group: str, path: Path, folder: Path
) -> dict[str, Any]:
    """One group of cloze items with both editions; one line an item in cloze-GROUP.jsonl."""
    longest = context.params.corpus.sentence_length - 2
    items, skipped = cloze_items(read_references(path).questions, context.tokenizer, context.special, longest)
    if not items:
        raise UserError(f"{path}: no item can be read ({skipped[0] if skipped else 'it is empty'})")
    readings: dict[str, list[ClozeReading]] = {
        name: read_cloze_items(context.params, retriever, reader, context.tokenizer, context.special, items)
        for name, retriever in retrievers.items()
    }
    _write_lines(folder / f"cloze-{group}.jsonl", _cloze_rows(items, readings))
    summary = cloze_summary(readings["old"], readings["new"])
    for measure in summary["difference"].values():
        interval = per_example_interval([np.array(measure.pop("deltas"))])
        measure["low"], measure["high"] = (float(end) if np.isfinite(end) else None for end in interval)
    return summary | {"shortened": sum(item.shortened for item in items), "skipped": skipped}


def _cloze_rows(items: Sequence[ClozeItem], readings: dict[str, list[ClozeReading]]) -> list[dict[str, Any]]:
    return [
        {
            "id": item.id,
            "answers": list(item.answers),
            "source": item.source,
            **{name: each[number]._asdict() for name, each in readings.items()},
        }
        for number, item in enumerate(items)
    ]


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with atomic_write(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
