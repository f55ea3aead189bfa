"""`realm-lab evaluate --corpus`: ask a finished run with another corpus, without training (Table 4)."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from realm_lab.contrib.evaluating.predictions import read_references, scorable
from realm_lab.contrib.formats.swapped import LATER
from realm_lab.engine.corpus.prepare import corpus_inputs, prepare
from realm_lab.engine.corpus.readers import input_files, read_documents
from realm_lab.engine.corpus.records import Document, Question
from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.evaluation.cloze_items import ClozeReading, cloze_items
from realm_lab.engine.evaluation.corpus_update import question_summary
from realm_lab.engine.params.corpus import Corpus, Files
from realm_lab.engine.retrieval.index import Embedded
from realm_lab.engine.systems.asked import AskedQuestions, stored_questions
from realm_lab.engine.systems.context import Context, Knowledge
from realm_lab.engine.systems.identity import record_run
from realm_lab.engine.systems.registry import System, system_of
from realm_lab.errors import UserError
from realm_lab.evidence.statistics.intervals import per_example_interval
from realm_lab.records.digests import write_last
from realm_lab.records.files import check_name, digest, write_json_lines, write_text
from realm_lab.records.launched import cores
from realm_lab.records.plugins import Choice

T = TypeVar("T")


@dataclass(frozen=True)
class CorpusUpdate:
    """The corpora, and the questions and sentences to ask."""

    new: Sequence[Path]
    old: Sequence[Path] = ()  # none: the run's own corpus
    questions: Path | None = None  # None: the run's test questions, or no question if there are `clozes`
    clozes: dict[str, Path] = field(default_factory=dict)
    name: str | None = None


class Sides:
    """A system on the old corpus and on the new one; `corpora` counts the passages embedded for each."""

    def __init__(self, system: System, knowledge: dict[str, Knowledge], corpora: dict[str, dict[str, Any]]):
        self.knowledge, self._corpora = knowledge, corpora
        own = knowledge["old"] is system.context.knowledge
        old = system if own else system.on_corpus(knowledge["old"].passages, knowledge["old"].digest)
        self._systems = {"old": old, "new": old.on_corpus(knowledge["new"].passages, knowledge["new"].digest)}

    def each(self, ask: Callable[[System], T]) -> dict[str, T]:
        """Return the result of `ask` for the system on each side."""
        found = {}
        for side, system in self._systems.items():
            before = Embedded.passages
            found[side] = ask(system)
            self._corpora[side]["embedded"] += Embedded.passages - before
        return found


def evaluate_update(context: Context, update: CorpusUpdate) -> dict[str, Any]:
    """Ask the run with both corpora; writes runs/RUN/corpus_updates/NAME/ with its report.md. Returns the results,
    with the `folder`.

    The fine-tuned system answers questions, and the system before fine-tuning fills blanks. UserError: a stage of the
    run has not finished, a file is of no known format, or nothing is asked.
    """
    started = time.monotonic()
    params, run = context.params, context.run
    name = update.name or re.sub(r"\W+", "-", update.new[0].name.partition(".")[0]).strip("-") or "corpus"
    check_name(name, "--name")
    for group in update.clozes:
        check_name(group, "--cloze")
    _ = context.corpus  # refuses a run without a prepared corpus before the run is recorded
    folder = context.runs / record_run(context.runs, run).name / "corpus_updates" / name
    corpora = {side: _knowledge(context, update, side, folder) for side in ("old", "new")}
    results: dict[str, Any] = {
        "name": name,
        "run": {"system": system_of(run.system).name, "seed": run.seed, "run_key": run.run_key},
        "settings": {"candidates": params.pretrain.candidates, "passages_read": params.finetune.candidates},
        "corpora": {
            side: {"source": source, "passages": len(knowledge.passages), "digest": knowledge.digest, "embedded": 0}
            for side, (knowledge, source) in corpora.items()
        },
    }
    system = context.system
    knowledge = {side: found for side, (found, _) in corpora.items()}
    questions, unscorable = scorable(_questions(context, update))
    if questions:
        print(f"{name}: {len(questions)} questions", file=sys.stderr)
        asked = _ask(context, Sides(system, knowledge, results["corpora"]), questions, folder)
        results["questions"] = asked | {"unscorable": unscorable}
    elif unscorable:
        raise UserError(
            f"{update.questions or 'test questions'}: no answer, or each normalises to nothing; name other questions"
        )
    if update.clozes:
        sides = Sides(system.before_finetuning(), knowledge, results["corpora"])
        results["clozes"] = {group: _fill(context, sides, group, path, folder) for group, path in update.clozes.items()}
    results["seconds"] = time.monotonic() - started
    write_text(folder / "report.md", _report(results))
    write_last(folder / "result.json", results)
    return results | {"folder": str(folder)}


def documents_of(paths: Sequence[Path], later: bool) -> Iterator[Document]:
    """Read the documents of files. If a file has two versions of a document, one after the other, the second one is
    used if `later`, else the first."""
    none = True
    documents = read_documents(input_files(*paths))
    for document, following in itertools.pairwise(itertools.chain(documents, [None])):
        assert document is not None
        is_earlier = following is not None and following.id == document.id + LATER
        if not (is_earlier if later else document.id.endswith(LATER)):
            none = False
            yield document._replace(id=document.id.removesuffix(LATER))
    if none:
        raise UserError(f"{', '.join(map(str, paths))}: no documents")


def prepare_update(context: Context, documents: Iterable[Document], folder: Path) -> PreparedCorpus:
    """Cut documents into passages like the run's corpus, and write them to `folder`; an existing result is reused."""
    text, prepared = folder / "documents.jsonl", folder / "prepared"
    write_json_lines(text, ({"id": d.id, "title": d.title, "text": d.text} for d in documents))
    own = context.params
    corpus = Corpus(
        source=Choice("files"),
        passage_length=own.corpus.passage_length,
        sentence_length=own.corpus.sentence_length,
        files=Files(knowledge=[str(text)]),
    ).model_copy(update={"tagger": Choice("exact")})  # no sentence is trained on
    tokenizer = own.tokenizer.model_copy(update={"checkpoint": str(context.corpus.tokenizer_folder)})
    params = own.model_copy(update={"corpus": corpus, "tokenizer": tokenizer})
    is_there = (prepared / "manifest.json").exists()
    if not is_there or PreparedCorpus(prepared).manifest.key != digest(corpus_inputs(params, 0)):
        prepare(params, prepared, 0, workers=own.launch.threads or cores())
    return PreparedCorpus(prepared)


def _knowledge(context: Context, update: CorpusUpdate, side: str, folder: Path) -> tuple[Knowledge, str]:
    """Return the old or the new corpus, and its source in words."""
    paths = update.new if side == "new" else update.old
    if not paths:
        return context.knowledge, "the run's own corpus"
    corpus = prepare_update(context, documents_of(paths, later=side == "new"), folder / side)
    return Knowledge(corpus.passages(), corpus.manifest.digest), ", ".join(path.name for path in paths)


def _questions(context: Context, update: CorpusUpdate) -> list[Question]:
    if update.questions is not None:
        return read_references(update.questions)
    if update.clozes:
        return []
    stored = stored_questions(context.corpus.questions("test"))
    if not stored:
        raise UserError("no test questions in the prepared corpus; name some with --questions, or --cloze")
    return stored


def _ask(context: Context, sides: Sides, questions: Sequence[Question], folder: Path) -> dict[str, Any]:
    """Answer the questions with both corpora, write a line per question to questions.jsonl, and return a summary."""
    asked = AskedQuestions(context, questions)
    answers = sides.each(lambda system: system.answer(asked.texts))
    rows = asked.updates(answers)
    for number, row in enumerate(rows):
        row |= {"id": asked.ids[number], "question": asked.texts[number]}
        row |= {"answers": asked.answers[number], "answers_updated": asked.answers_updated[number]}
        for side, given in answers.items():
            source, passages = given[number].source, sides.knowledge[side].passages
            row[side]["prediction"] = given[number].text
            row[side]["passage"] = passages.id_of(source.row) if source else None
    write_json_lines(folder / "questions.jsonl", rows)
    problems = {"patterns": asked.patterns.counts()} if asked.patterns.problems else {}
    return question_summary(rows) | problems


def _fill(context: Context, sides: Sides, group: str, path: Path, folder: Path) -> dict[str, Any]:
    """Fill one group of blanks with both corpora, write a line per item to cloze-GROUP.jsonl, and return a summary."""
    longest = context.params.corpus.sentence_length - 2
    items, skipped = cloze_items(read_references(path), context.tokenizer, context.special, longest)
    if not items:
        raise UserError(f"no item can be read ({skipped[0] if skipped else 'it is empty'})", path=path)
    readings = sides.each(lambda system: system.read_blanks(items))
    rows = []
    for number, item in enumerate(items):
        row = {"id": item.id, "answers": list(item.answers), "source": item.source}
        rows.append(row | {side: each[number]._asdict() for side, each in readings.items()})
    write_json_lines(folder / f"cloze-{group}.jsonl", rows)
    summary = cloze_summary(readings["old"], readings["new"])
    for measure in summary["difference"].values():
        deltas = enumerate(measure.pop("deltas"))
        interval = per_example_interval([{number: np.array([delta]) for number, delta in deltas}])
        measure["low"], measure["high"] = (float(end) if np.isfinite(end) else None for end in interval)
    return summary | {"shortened": sum(item.shortened for item in items), "skipped": skipped}


def cloze_summary(old: Sequence[ClozeReading], new: Sequence[ClozeReading]) -> dict[str, Any]:
    """Return the means with each corpus, and the mean of new minus old with its paired `deltas`. Likelihoods are nats
    per answer. If all items name their evidence, the share with evidence among the candidates is one more measure."""
    values = {"old": _values(old), "new": _values(new)}
    pieces = sum(reading.wordpieces for reading in old)
    deltas = {name: values["new"][name] - values["old"][name] for name in values["old"]}
    difference = {name: {"mean": float(each.mean()), "deltas": each.tolist()} for name, each in deltas.items()}
    summary: dict[str, Any] = {"items": len(old), "wordpieces": pieces, "difference": difference}
    for corpus, own in values.items():
        summary[corpus] = {measure: float(each.mean()) for measure, each in own.items()}
    return summary


def _values(readings: Sequence[ClozeReading]) -> dict[str, np.ndarray]:
    """Return the measures of each item; utility is the gain by retrieval: log p(y|x) - log p(y|null, x)."""
    found = {
        "exact_match": np.array([reading.exact_match for reading in readings], float),
        "log_likelihood": np.array([reading.log_likelihood for reading in readings]),
        "utility": np.array([reading.log_likelihood - reading.null_log_likelihood for reading in readings]),
        "answer_retrieved": np.array([reading.answer_retrieved for reading in readings], float),
    }
    evidence = [reading.evidence_retrieved for reading in readings]
    return found if None in evidence else found | {"evidence_retrieved": np.array(evidence, float)}


def _report(results: dict[str, Any]) -> str:
    """Write the measurements with the old corpus and with the new one as a Markdown table."""
    rows: list[tuple[str, float, float, str]] = []
    if (asked := results.get("questions")) and asked["changed_questions"]:
        about = f"{asked['changed_questions']} questions whose answer changed"
        old, new = asked["old_corpus"], asked["new_corpus"]
        rows += [(f"{about}: {part}", old[part], new[part], "") for part in new]
    if asked and asked["unchanged_questions"]:
        about = f"{asked['unchanged_questions']} questions whose answer did not: exact match"
        rows.append((about, asked["unchanged_exact_match_before"], asked["unchanged_exact_match_after"], ""))
    for group, blanks in results.get("clozes", {}).items():
        for name, change in blanks["difference"].items():
            ends = (change["low"], change["high"])
            interval = "" if None in ends else "{:+.3f} to {:+.3f}".format(*ends)
            measure = f"{blanks['items']} blanks, {group}: {name.replace('_', ' ')}"
            rows.append((measure, blanks["old"][name], blanks["new"][name], interval))
    table = [f"| {measure} | {old:.3f} | {new:.3f} | {interval} |\n" for measure, old, new, interval in rows]
    head = "| measure | old corpus | new corpus | new − old, 95 % |\n| --- | ---: | ---: | ---: |\n"
    return f"# Corpus update: {results['name']}\n\n{head}{''.join(table)}"
