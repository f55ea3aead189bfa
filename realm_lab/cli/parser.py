"""The command line: commands for the pipeline, for studies, and to inspect a project.

Everything heavy is imported inside a command, so that help and error messages come at once.
"""

from __future__ import annotations

import argparse
import errno
import gc
import os
import re
import sys
import traceback
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

from realm_lab import __version__
from realm_lab.cli.ask import add_ask
from realm_lab.cli.examples import PROGRAM, add_examples
from realm_lab.cli.first_line import first_line
from realm_lab.cli.flags import add_everywhere, located
from realm_lab.cli.judging import add_claims, add_verdict
from realm_lab.cli.pipeline import add_pipeline
from realm_lab.cli.project import add_gc, add_start
from realm_lab.cli.studies import add_compare, add_studies
from realm_lab.cli.tools import add_doctor, add_mirror
from realm_lab.engine.core.hub import is_dataset
from realm_lab.errors import UserError, install_line, lacks_engine, nearest, suggestion

PLUGINS = "realm_lab.verbs"  # group of entry points: functions that add commands, as those of this package do
EXIT_UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h; differs from the codes of `verdict --gate`
EXIT_USER_ERROR = 2  # as argparse
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE
UNWRITABLE = "make it writable, or name another project with --root"
REMEDIES = dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), UNWRITABLE) | {errno.ENAMETOOLONG: "shorten it"}

MAY_BE_PATHS = ("study", "profile", "runs", "count")  # arguments of type str that may be paths or names
ELSEWHERE = ("init", "verdict")  # commands that read no project
ALIASES = {  # other name of a command, for scripts -> the command line that it stands for; longer names first
    "warm-start": "run --until warm-start",
    "pretrain": "run --until pretrain",
    "finetune": "run --until finetune",
    "evaluate": "run",  # if no plug-in adds this command
    "search": "sweep",
    "runs": "status --runs",
    "logs": "status",
    "ledger verify": "status --ledger",
    "ledger": "status --ledger",
    "calibrate": "verdict --calibrate",
    "fill": "ask",
    "bench": "plan --measure",
}
INSTEAD = {"rm": "gc", "ls": "status", "list": "status", "all": "sweep", "train": "run"} | ALIASES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Argparse itself leaves with code 2 on a wrong command line."""
    parser = build_parser()
    words, alias = _renamed(sys.argv[1:] if arguments is None else arguments, parser.verbs())
    if not words:
        parser.print_help()
        return 0
    options, unknown = parser.parse_known_args(words, argparse.Namespace(alias=alias))
    if unknown:
        verb = parser.verbs()[options.verb]
        verb.error(_unknown(unknown, options, verb))
    if arguments is None and not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars fill a log
    if arguments is None:
        gc.set_threshold(10_000)  # at 700, the search for cycles takes a sixth of `ask`
    slow = f"{PROGRAM} {options.verb}: loading libraries and reading the project"
    try:
        with first_line(slow) if arguments is None else nullcontext(), _in_project(options):  # none from Python
            code = options.run(options)
        sys.stdout.flush()  # a reader that went away is noticed here, not when the interpreter exits
    except UserError as error:
        return _fail(options, EXIT_USER_ERROR, f"error: {_one_line(located(error, options))}")
    except KeyboardInterrupt:
        return _fail(options, EXIT_INTERRUPTED, f"{options.verb} interrupted; run it again to go on")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if lacks_engine(error):
            verb = options.alias or options.verb
            lacking = UserError(f"`{PROGRAM} {verb}` needs the engine, which is not installed", install_line("engine"))
            return _fail(options, EXIT_USER_ERROR, f"error: {lacking}")
        if isinstance(error, OSError) and error.errno in REMEDIES and error.filename:
            named = UserError(error.strerror, REMEDIES[error.errno], path=error.filename)
            return _fail(options, EXIT_USER_ERROR, f"error: {_one_line(named)}")
        message = f"unexpected {type(error).__name__}: {_one_line(error)}; run again with --debug for the traceback"
        return _fail(options, EXIT_UNEXPECTED, message)
    return code or 0


def _renamed(words: Sequence[str], verbs: Container[str]) -> tuple[list[str], str]:
    """Return the command line with an alias replaced by its meaning, and the alias ("" for none). A name of a real
    command, such as one that a plug-in adds, is no alias."""
    names = (n for n, word in enumerate(words) if not word.startswith("-") and words[n - 1 : n] != ["--root"])
    start = next(names, len(words))
    for name, today in ALIASES.items():
        end = start + len(name.split())
        if list(words[start:end]) == name.split() and name.split()[0] not in verbs:
            return [*words[:start], *today.split(), *words[end:]], name
    return list(words), ""


@contextmanager
def _in_project(options: argparse.Namespace) -> Iterator[None]:
    """Work in the project folder, since paths in parameters are relative to it. Paths on the command line are made
    absolute first."""
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
        """Print one line and exit with code 2."""
        if message.startswith("argument COMMAND: invalid choice"):
            verbs = self.verbs()
            given = message.partition("invalid choice: '")[2].partition("'")[0]
            others = INSTEAD if self.prog == PROGRAM else {}
            near = given if given in others else nearest(given, [*verbs, *others])
            remedy = f"did you mean '{others.get(near, near)}'?" if near else suggestion(given, verbs)
            message = f"no command '{given}'; {remedy}"
        self.exit(EXIT_USER_ERROR, f"{PROGRAM}: error: {message}; see `{self.prog} --help`\n")


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
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

    def add(
        group: str, name: str, run: Callable[[argparse.Namespace], int | None], summary: str
    ) -> argparse.ArgumentParser:
        description = summary[0].upper() + summary[1:]
        verb = verbs.add_parser(name, help=summary, description=description, allow_abbrev=False)
        verb.set_defaults(run=run)
        if group:
            listed.setdefault(group, []).append(f"  {name:<12}{summary}")
        return verb

    for part in (add_start, add_pipeline, add_studies, add_compare, add_ask, add_mirror, add_verdict, add_claims):
        part(add)
    add_doctor(add)
    add_gc(add)
    for entry in entry_points(group=PLUGINS):
        try:
            entry.load()(add)
        except Exception as error:  # it may raise anything; all other commands still work
            why = f"{type(error).__name__}: {_one_line(error)}"
            print(f"{PROGRAM}: the command {entry.name} of a plug-in is left out ({why})", file=sys.stderr)
    for name, verb in parser.verbs().items():
        add_everywhere(verb)  # last in the help, since all commands have these flags
        add_examples(name, verb)
    groups = "\n\n".join("\n".join([f"{group}:", *lines]) for group, lines in listed.items())
    parser.epilog = f"{groups}\n\n`{PROGRAM} COMMAND --help` explains a command; start with `{PROGRAM} doctor`."
    return parser


def completion() -> Parser:
    """Return the parser for shtab, which writes completions for shells. No command is hidden, since shtab would leave
    it out."""
    from realm_lab.lab.launchers import LAUNCHERS
    from realm_lab.records.plugins import import_plugins

    parser = build_parser()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = None
    import_plugins()
    parser.verbs()["sweep"]._option_string_actions["--launcher"].choices = [*LAUNCHERS]
    return parser


def _unknown(words: Sequence[str], options: argparse.Namespace, verb: argparse.ArgumentParser) -> str:
    """Suggest a replacement for unknown arguments."""
    shown, remedy = " ".join(words), ""
    change = re.fullmatch(r"-*([a-z_.]+)=(.*)|--([a-z_]+\.[a-z_.]+) (\S+)", shown)
    if change and "overrides" in options:
        key, value, dotted, other = change.groups()
        remedy = f"; a parameter is changed with --set {key or dotted}={value if key else other}"
    elif options.verb == "ask" and not shown.startswith("-"):
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
