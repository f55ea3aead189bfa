"""The command `evaluate`: run the stage, score files made elsewhere, ask with another corpus, or write the retrieved
passages of a run for other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from realm_lab.cli.flags import Add, add_dry_run, add_json, add_other_code, add_parameters, add_run, opened, params_of
from realm_lab.cli.pipeline import run_stage
from realm_lab.errors import UserError
from realm_lab.records.files import print_json

if TYPE_CHECKING:
    from realm_lab.engine.corpus.records import Question

NAMED = 10  # ids that a message names; --json has them all
INSTEAD = ("predictions", "corpus", "run_file")  # options that replace the stage
ONLY_WITH = {  # option -> the options of INSTEAD that it belongs to
    "questions": ("predictions", "corpus"),
    "json": ("predictions", "corpus"),
    "corpus_old": ("corpus",),
    "cloze": ("corpus",),
    "name": ("corpus",),
    "finished": ("corpus", "run_file"),
    "system": ("corpus", "run_file"),
}


def add_evaluate(add: Add) -> None:
    """Add `evaluate` to the command line."""
    summary = "score predictions of any system, or a finished run with another corpus; without options, as `run`"
    evaluate = add("pipeline", "evaluate", _run_evaluate, summary)
    add_parameters(evaluate)
    add_dry_run(evaluate)
    add_other_code(evaluate)
    evaluate.set_defaults(until="evaluate")
    files = evaluate.add_argument_group("predictions of other systems", "score them, not the runs; no model is read")
    text = "answers, or retrieved passages (DPR's ctxs)"
    files.add_argument("--predictions", type=Path, metavar="FILE", help=text)

    update = evaluate.add_argument_group("another corpus", "ask a finished run with it; nothing is trained")
    text = "text files of the new corpus"
    update.add_argument("--corpus", type=Path, nargs="+", metavar="PATH", help=text)
    text = "the old corpus (default: the run's own corpus)"
    update.add_argument("--corpus-old", type=Path, nargs="+", default=(), metavar="PATH", help=text)
    text = "sentences with a [MASK], their answers and the document each is from; may be repeated"
    update.add_argument("--cloze", type=_named, action="append", default=[], metavar="NAME=FILE", help=text)
    text = "output folder runs/RUN/corpus_updates/NAME (default: the first file's name)"
    update.add_argument("--name", metavar="NAME", help=text)

    runs = evaluate.add_argument_group("export for other programs", "what a run retrieves; nothing is trained")
    text = "write the best 100 passages of each test question here, as a TREC run file"
    runs.add_argument("--run-file", type=Path, metavar="FILE", help=text)

    add_run(evaluate.add_argument_group("choice of the run", "with --corpus or --run-file"))

    text = "with --predictions or --corpus: questions with answers (default: the prepared test questions)"
    evaluate.add_argument("--questions", type=Path, metavar="FILE", help=text)
    add_json(evaluate, "with --predictions or --corpus: print JSON instead of a table")


def _run_evaluate(options: argparse.Namespace) -> None:
    """Run the options' action, or the stage if they ask for none."""
    given = [name for name in INSTEAD if getattr(options, name)]
    if given and options.dry_run:
        raise UserError("--dry-run is for the stage alone; leave it out")
    if len(given) > 1:
        raise UserError(f"{' and '.join(map(_flag, given))} are different things; give one")
    for name, owners in ONLY_WITH.items():
        if getattr(options, name) and not {*owners}.intersection(given):
            remedy = "leave it out" if given else "give one of them" if len(owners) > 1 else "give it"
            raise UserError(f"{_flag(name)} belongs to {' or '.join(map(_flag, owners))}; {remedy}")
    if options.predictions:
        _score_file(options)
    elif given:
        _ask_run(options)
    else:
        run_stage(options)


def _flag(name: str) -> str:
    return f"--{'run' if name == 'finished' else name.replace('_', '-')}"


def _ask_run(options: argparse.Namespace) -> None:
    """Ask a finished run with another corpus, or write its retrieved passages."""
    from realm_lab.contrib.evaluating.corpus_update import CorpusUpdate, evaluate_update
    from realm_lab.contrib.evaluating.run_file import write_run_file
    from realm_lab.contrib.mining.command import check_no_input

    run = opened(options)
    if options.run_file:
        check_no_input(options.run_file, run, options)
        print(f"{options.run_file}: {write_run_file(run, options.run_file)} questions")
        return
    clozes = dict(options.cloze)
    if len(clozes) < len(options.cloze):
        raise UserError("--cloze: two files have the same NAME; give each another")
    update = CorpusUpdate(options.corpus, options.corpus_old, options.questions, clozes, options.name)
    found = evaluate_update(run, update)
    if options.json:
        print_json(found)
    else:
        print(f"{found['folder']}/report.md")


def _score_file(options: argparse.Namespace) -> None:
    """Print the scores of a file of predictions. Unscored or problematic items go to stderr; with --json all
    is one object on stdout."""
    from realm_lab.contrib.evaluating.predictions import read_references, score_predictions

    questions = read_references(options.questions) if options.questions else _prepared_questions(options)
    result = score_predictions(options.predictions, questions)
    if options.json:
        print_json(result)
        return
    for name, value in result.items():
        if not isinstance(value, list):
            print(f"{name:16} {100 * value:6.2f} %" if isinstance(value, float) else f"{name:16} {value}")
        elif value:
            shown = ", ".join(str(one)[:200] for one in value[:NAMED]) + (", ... (see --json)" * (len(value) > NAMED))
            print(f"{len(value)} {name.replace('_', ' ')}: {shown}", file=sys.stderr)


def _prepared_questions(options: argparse.Namespace) -> list[Question]:
    """Return the test questions of the first seed's prepared corpus."""
    params = params_of(options)
    from realm_lab.engine.corpus.store import PreparedCorpus
    from realm_lab.engine.systems.asked import stored_questions
    from realm_lab.engine.systems.identity import DEFAULT_SYSTEMS, corpus_folder, plan_run

    folder = corpus_folder(options.root, plan_run(params, DEFAULT_SYSTEMS[-1], params.seeds[0]))
    if not (folder / "manifest.json").exists():
        raise UserError("no prepared corpus; name the questions with --questions, or run `realm-lab prepare`")
    stored = stored_questions(PreparedCorpus(folder).questions("test"))
    if not stored:
        raise UserError("no test questions in the prepared corpus; name some with --questions")
    return stored


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (equals and name and path):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=FILE")
    return name, Path(path)
