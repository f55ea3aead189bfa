"""The command line: a command for each stage of the pipeline, for studies, and to inspect a project.

Everything heavy is imported inside a command, so that help and error messages come at once.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from realm_lab import __version__
from realm_lab.cli.ask import add_asking
from realm_lab.cli.evaluate import add_evaluation, evaluate_other
from realm_lab.cli.examples import add_examples
from realm_lab.cli.first_line import first_line
from realm_lab.cli.flags import (
    Add,
    add_dry_run,
    add_everywhere,
    add_json,
    add_other_code,
    add_parameters,
    in_place,
    overrides_of,
    params_of,
    policy_of,
)
from realm_lab.cli.judging import add_claims, add_ledger, add_verdict
from realm_lab.cli.project import add_init, add_runs
from realm_lab.cli.serve import add_serve
from realm_lab.cli.studies import add_studies, recorded
from realm_lab.cli.tools import add_index, add_mine, add_mirror, add_tools
from realm_lab.core.hub import is_dataset
from realm_lab.errors import ENGINE, UserError, install_line, nearest, suggestion
from realm_lab.records.files import print_json

PROGRAM = "realm-lab"
EXIT_UNEXPECTED = 1
EXIT_USER_ERROR = 2  # as argparse
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE
UNWRITABLE = "make it writable, or name another project with --root"
REMEDIES = dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), UNWRITABLE) | {errno.ENAMETOOLONG: "shorten it"}

MAY_BE_PATHS = ("study", "search", "profile", "runs", "count")  # arguments that are text: a name, or a path
ELSEWHERE = ("init", "verdict")  # commands that read no project
INSTEAD = {"rm": "gc", "ls": "runs", "list": "runs", "run": "sweep", "all": "sweep", "train": "pretrain"}

STAGES = {
    "prepare": "read or generate the corpus: passages, sentences with salient spans, questions",
    "warm-start": "train the reader (masked language model) and the embedder (inverse cloze task)",
    "pretrain": "pre-train retriever and reader on the marginal likelihood, refreshing the index",
    "finetune": "fine-tune on open-domain questions",
    "evaluate": "measure exact match, recall@k, retrieval utility and the effect of a corpus update",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Argparse itself leaves with code 2 on a wrong command line."""
    parser = build_parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        parser.print_help()
        return 0
    options, unknown = parser.parse_known_args(words)
    if unknown:
        verb = parser.verbs()[options.verb]
        verb.error(_unknown(unknown, options, verb))
    if arguments is None and not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars of libraries fill a log
    slow = f"{PROGRAM} {options.verb}: loading libraries and reading the project"
    try:
        with first_line(slow) if arguments is None else nullcontext(), _in_project(options):  # no line within Python
            code = options.run(options)
        sys.stdout.flush()  # a reader that went away is noticed here, not when the interpreter exits
    except UserError as error:
        return _fail(options, EXIT_USER_ERROR, f"error: {_one_line(in_place(error, options))}")
    except KeyboardInterrupt:
        return _fail(options, EXIT_INTERRUPTED, f"{options.verb} interrupted; run it again to go on")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in ENGINE:
            lacking = UserError(
                f"`{PROGRAM} {options.verb}` needs {error.name}, which is not installed", install_line("engine")
            )
            return _fail(options, EXIT_USER_ERROR, f"error: {lacking}")
        if isinstance(error, OSError) and error.errno in REMEDIES and error.filename:
            named = UserError(error.strerror, REMEDIES[error.errno], path=error.filename)
            return _fail(options, EXIT_USER_ERROR, f"error: {_one_line(named)}")
        message = f"unexpected {type(error).__name__}: {_one_line(error)}; run again with --debug for the traceback"
        return _fail(options, EXIT_UNEXPECTED, message)
    return code or 0


@contextmanager
def _in_project(options: argparse.Namespace) -> Iterator[None]:
    """Work in the project folder, where relative paths in parameters start; those on the command line start here."""
    if options.verb in ELSEWHERE or not options.root.is_dir() or options.root.resolve() == Path.cwd():
        yield
        return
    for name, value in vars(options).items():
        setattr(options, name, _from_here(name, value))
    with chdir(options.root):
        yield


def _from_here(name: str, value: Any) -> Any:
    """Return the value of an option with absolute paths."""
    if isinstance(value, list | tuple):
        return [_from_here(name, one) for one in value]
    if isinstance(value, str) and name in MAY_BE_PATHS:
        path = Path(value)
        is_path = path.is_file() or (path.is_dir() and ("/" in value or name == "count"))
    else:
        is_path = isinstance(value, Path)
    return type(value)(Path(value).absolute()) if is_path and not is_dataset(value) else value


class Parser(argparse.ArgumentParser):
    """Argparse with one-line errors, and the nearest command for a misspelt one."""

    def verbs(self) -> dict[str, argparse.ArgumentParser]:
        """The commands by name."""
        [found] = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(found)

    def error(self, message: str) -> NoReturn:
        """Leave with code 2 after one line."""
        if message.startswith("argument COMMAND: invalid choice"):
            verbs = self.verbs()
            given = message.partition("invalid choice: '")[2].partition("'")[0]
            remedy = f"did you mean '{INSTEAD[given]}'?" if given in INSTEAD else suggestion(given, verbs)
            message = f"no command '{given}'; {remedy}"
        self.exit(EXIT_USER_ERROR, f"{PROGRAM}: error: {message}; see `{self.prog} --help`\n")


def build_parser() -> Parser:
    """Return the whole command line. The README's commands are checked against it."""
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [--root DIR] [--debug] COMMAND ...",
        description="Train, ablate and compare REALM models.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--root", type=Path, default=Path("."), metavar="DIR", help="project folder (default: .)")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", prog=PROGRAM, required=True, help=argparse.SUPPRESS)
    listed: dict[str, list[str]] = {}

    def adder(group: str) -> Add:
        def add(name: str, run: Callable[[argparse.Namespace], int | None], summary: str) -> argparse.ArgumentParser:
            verb = verbs.add_parser(
                name, help=summary, description=summary[0].upper() + summary[1:], allow_abbrev=False
            )
            verb.set_defaults(run=run)
            listed.setdefault(group, []).append(f"  {name:<12}{summary}")
            return verb

        return add

    add_init(adder("start"))
    _add_stages(adder("pipeline"))
    add_studies(adder("studies"), adder("inspect"))
    add_asking(adder("inspect"))
    add_serve(adder("inspect"))
    add_runs(adder("inspect"), adder("tools"))
    add_mirror(adder("inspect"))
    add_verdict(adder("inspect"))
    add_claims(adder("inspect"))
    add_ledger(adder("inspect"))
    add_index(adder("tools"))
    add_mine(adder("tools"))
    add_tools(adder("tools"))
    for name, verb in parser.verbs().items():
        add_everywhere(verb)  # last, as they are the same everywhere
        add_examples(name, verb)
    groups = "\n\n".join("\n".join([f"{group}:", *lines]) for group, lines in listed.items())
    parser.epilog = f"{groups}\n\n`{PROGRAM} COMMAND --help` explains a command; start with `{PROGRAM} doctor`."
    return parser


def completion() -> Parser:
    """Return the command line for shtab, which writes the completions of a shell; it leaves out what has no help."""
    parser = build_parser()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = None
    return parser


def _add_stages(add: Add) -> None:
    for name, summary in STAGES.items():
        verb = add(name, _run_stage, summary)
        add_parameters(verb)
        add_dry_run(verb)
        add_other_code(verb)
        if name == "prepare":
            verb.set_defaults(run=_run_prepare)
            text = "only read these files or folders and print what is in them"
            verb.add_argument("--count", nargs="+", metavar="FILE", help=text)
            add_json(verb, "with --count: print JSON instead of a table")
        if name == "evaluate":
            verb.set_defaults(run=_run_evaluate)
            add_evaluation(verb)
        else:
            text = "keep it as a separate study, experiments/NAME.yaml"
            verb.add_argument("--name", metavar="NAME", help=text)
    report = add("report", _run_report, "write the reports of all runs here, and the overview reports/index.html")
    report.add_argument("study", nargs="?", help="only reports/STUDY, and the overview (default: every study)")
    report.add_argument("--html", action="store_true", help="also reports/STUDY/report.html, one self-contained page")
    text = "also LaTeX tables (reports/STUDY/tables/*.tex), and figures as PDF and SVG"
    report.add_argument("--paper", action="store_true", help=text)
    report.add_argument("--force", action="store_true", help="also replace a report that counts more complete runs")
    add_json(report, "print JSON instead of a path")


def _run_stage(options: argparse.Namespace) -> None:
    params = params_of(options)  # before the heavy import: a typing error is answered at once
    from realm_lab.records.study import DEFAULT, SCRATCH
    from realm_lab.runner import pipeline
    from realm_lab.runner.plan import plan_study
    from realm_lab.runner.written_study import in_use, write_named

    pipeline.check_corpus(params)
    work = pipeline.show if options.dry_run else pipeline.run
    if options.name:  # a separate study, which is kept: experiments/NAME.yaml
        path, is_new = write_named(options.root, options.name, options.params, overrides_of(options))
        with in_use(path, is_new, is_kept=not options.dry_run):
            plan = plan_study(path, options.root, params_path=options.params, overrides=policy_of(options))
            work(options.verb.replace("-", "_"), plan, options.root)
    else:
        is_other = options.params or options.preset or options.overrides
        plan = pipeline.planned(params, SCRATCH if is_other else DEFAULT)
        work(options.verb.replace("-", "_"), plan, options.root)


def _run_prepare(options: argparse.Namespace) -> int | None:
    if not options.count:
        if options.json:
            raise UserError("--json belongs to --count; give it")
        _run_stage(options)
        return None
    from realm_lab.corpus.readers import count_inputs

    counted, code = [], 0
    for found in count_inputs(options.count):
        if isinstance(found, UserError):
            code = _fail(options, EXIT_USER_ERROR, f"error: {_one_line(found)}")
            continue
        counted.append(found)
        code = code or int(found.is_empty)
        if not options.json:
            print(*found.lines(), sep="\n", flush=True)
    if options.json:
        print_json([found._asdict() for found in counted])
    return code


def _run_evaluate(options: argparse.Namespace) -> None:
    if not evaluate_other(options):
        _run_stage(options)


def _run_report(options: argparse.Namespace) -> None:
    from rich.console import Console

    from realm_lab.runner.default_study import studies_of

    if (options.root / "data" / "records").exists():
        from realm_lab.runner import pipeline

        pipeline.put_back(options.root)
    places = [options.root / "reports" / place for place in ("", "reference")]
    if options.study and not any((place / options.study).is_dir() for place in places):
        recorded(options.study, options.root)  # an error with the nearest name
    of = f"the report of {options.study}" if options.study else "all reports"
    with Console(stderr=True).status(f"writing {of}"):
        from realm_lab.evidence.report.report import report  # pandas and matplotlib take a second to import

        path = report(
            options.root,
            options.study,
            force=options.force,
            html=options.html,
            paper=options.paper,
            studies=studies_of(options.root),
        )
    if options.json:
        print_json({"report": path})
    else:
        print(path)


def _unknown(words: Sequence[str], options: argparse.Namespace, verb: argparse.ArgumentParser) -> str:
    """Suggest a replacement for unknown arguments."""
    shown, remedy = " ".join(words), ""
    change = re.fullmatch(r"-*([a-z_.]+)=(.*)|--([a-z_]+\.[a-z_.]+) (\S+)", shown)
    if change and "overrides" in options:
        key, value, dotted, other = change.groups()
        remedy = f"; a parameter is changed with --set {key or dotted}={value if key else other}"
    elif options.verb in ("ask", "fill") and not shown.startswith("-"):
        remedy = "; put the whole text in quotes"
    elif near := _near_option(words[0].partition("=")[0], verb):
        remedy = f"; did you mean {near}?"
    return f"unknown arguments: {shown}{remedy}"


def _near_option(given: str, verb: argparse.ArgumentParser) -> str:
    """Return the option that was probably meant; "" if none is close: --cell is not close to --cancel."""
    options = {option.lstrip("-"): option for option in verb._option_string_actions}
    name = given.lstrip("-")
    begun = next((option for option in options if len(name) > 2 and option.startswith(name)), "")
    return options.get(begun or nearest(name, options), "") if given.startswith("-") else ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _fail(options: argparse.Namespace, code: int, message: str) -> int:
    if options.debug:
        traceback.print_exc()
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    return code
