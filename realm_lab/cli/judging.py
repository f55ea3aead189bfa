"""The commands `verdict`, which judges runs of any program, and `claims`, which checks texts against results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from realm_lab.cli.flags import Add, add_json
from realm_lab.errors import UserError
from realm_lab.records.files import print_json
from realm_lab.records.metrics import Better


def add_claims(add: Add) -> None:
    """Add `claims` to the command line."""
    summary = "check the numbers and verdicts in texts against results; exit code 1 if one does not hold"
    verb = add("inspect", "claims", _run_claims, summary)
    text = "a text of claims.yaml, or LaTeX with \\claim{QUERY}{TEXT} (default: all of ROOT/claims.yaml)"
    verb.add_argument("files", nargs="*", metavar="FILE", help=text)
    text = "another claims.yaml, for example of your paper; its names are relative to its folder"
    verb.add_argument("--claims", type=Path, metavar="FILE", help=text)
    form = verb.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown, for a comment on a pull request")
    add_json(form)


def _run_claims(options: argparse.Namespace) -> int:
    from realm_lab.evidence.claims import check, markdown

    checked = check(options.root, options.files, source=options.claims)
    if options.json:
        print_json(checked._asdict() | {"problems": [one._asdict() for one in checked.problems]})
    elif options.markdown:
        print(markdown(checked), end="")
    else:
        for one in checked.problems:
            print(f"{one.path}:{one.line}: '{one.says}': {one.found}; {one.remedy}")
        outcome = f"{len(checked.problems)} problems" if checked.problems else "all hold"
        print(f"{checked.bound} numbers and verdicts in {', '.join(checked.files)}: {outcome}")
    return int(bool(checked.problems))


def add_verdict(add: Add) -> None:
    """Add `verdict` to the command line."""
    summary = "judge runs of any tool: paired tests, intervals, power, equivalence"
    verb = add("inspect", "verdict", _run_verdict, summary)
    text = "CSV, JSON, W&B export, Trackio database, folder of TensorBoard, Hydra or MLflow, or an MLflow store's URI"
    verb.add_argument("source", nargs="?", help=text)
    text = "column of the numbers to compare; repeated, all are one family of tests (for --gate: COLUMN=up or =down)"
    verb.add_argument("--metric", action="append", default=[], metavar="COLUMN", help=text)
    verb.add_argument("--baseline", metavar="NAME", help="the variant that the others are compared with")
    verb.add_argument("--cell", default="cell", metavar="COLUMN", help="column that names the variant (default: cell)")
    text = "column that pairs the runs, for example the seed or the fold (default: seed)"
    verb.add_argument("--pair", default="seed", metavar="COLUMN", help=text)
    text = "column of groups of pairs that are not independent, such as the document of a question"
    verb.add_argument("--cluster", default="", metavar="COLUMN", help=text)
    text = "a second arm of the baseline's code: if it differs from the baseline, no other variant is called different"
    verb.add_argument("--control", default="", metavar="NAME", help=text)
    text = "column of the states of runs: those that did not finish have no value"
    verb.add_argument("--state", default="", metavar="COLUMN", help=text)
    text = "the largest difference of a metric that does not matter; without it nothing is called equivalent"
    verb.add_argument("--delta", action="append", default=[], metavar="[COLUMN=]SIZE", help=text)
    text = "columns in the name or folder of a run, for example '{variant}/seed_{seed}'"
    verb.add_argument("--name", default="", metavar="PATTERN", help=text)
    text = "file or folder of each run that has its metrics, if several do"
    verb.add_argument("--part", default="", metavar="NAME", help=text)
    verb.add_argument("--experiment", default="", metavar="NAME", help="the experiment of an MLflow store")
    verb.add_argument("--out", type=Path, metavar="DIR", help="also write Markdown, LaTeX, JSON and a figure there")
    text = "exit code 0 if all variants are shown to be no worse, 1 if one is worse, 3 if undecided"
    verb.add_argument("--gate", action="store_true", help=text)
    text = "simulate the false alarms of a study, SOURCE, for differences as skewed as its own"
    verb.add_argument("--calibrate", action="store_true", help=text)
    text = "only write this page, which judges a CSV in a browser"
    verb.add_argument("--page", type=Path, metavar="FILE.html", help=text)
    add_json(verb)


def _run_verdict(options: argparse.Namespace) -> int:
    others = "source metric baseline cluster control state delta name part experiment out gate json page calibrate"
    given = {name for name in others.split() if getattr(options, name)}
    given |= {name for name, value in {"cell": "cell", "pair": "seed"}.items() if getattr(options, name) != value}
    if options.calibrate:
        from realm_lab.evidence.calibrated import show_calibration

        if "source" not in given or given - {"calibrate", "source", "json"}:
            raise UserError("--calibrate: name only a study", remedy="for example verdict --calibrate table2")
        show_calibration(options.root, options.source, as_json=options.json)
        return 0
    if options.page:
        from realm_lab.evidence.verdict.page import write_page

        if given - {"page"}:
            raise UserError("--page: the page has no runs in it", remedy="leave out the other arguments")
        if options.page.suffix != ".html":
            raise UserError(f"--page {options.page}: no name of a page", remedy="write a name that ends in .html")
        write_page(options.page)
        print(f"{options.page}: open it in a browser, and drop a CSV there")
        return 0
    from realm_lab.evidence.verdict.answer import Decision, verdict
    from realm_lab.evidence.verdict.sources import read_runs

    if not (options.source and options.metric and options.baseline is not None):
        raise UserError("verdict needs SOURCE, --metric and --baseline", remedy="give them, or only --page FILE.html")
    metrics = dict(map(_directed, options.metric))
    delta = {name: size for text in options.delta for name, size in _bounds(text, metrics).items()}
    rows = read_runs(options.source, options.name, options.experiment, options.part)
    names = {name: getattr(options, name) for name in ("baseline", "cell", "pair", "cluster", "control", "state")}
    answer = verdict(rows, metric=metrics, delta=delta, **names)
    if options.out:
        from realm_lab.evidence.verdict.written import write

        write(answer, options.out)
    if options.json:
        print_json(answer.as_json())
    elif sys.stdout.isatty() and not options.gate:
        from rich.console import Console
        from rich.markdown import Markdown

        Console(highlight=False).print(Markdown(answer.markdown(is_brief=True), hyperlinks=False))
        print("all columns: --json, --out DIR, or through a pipe")
    else:
        print(answer.comment() if options.gate else answer.markdown(), end="")
    codes = {Decision.NOT_WORSE: 0, Decision.WORSE: 1, Decision.UNDECIDED: 3}
    return codes[answer.decision] if options.gate else 0


def _directed(text: str) -> tuple[str, Better]:
    """Return the column and the better direction in a text such as `accuracy=up`; "" if no direction is given."""
    name, _, way = text.rpartition("=")
    return (name, "up" if way == "up" else "down") if name and way in ("up", "down") else (text, "")


def _bounds(text: str, metrics: Iterable[str]) -> dict[str, float]:
    """Return column -> size for a text such as `accuracy=0.02`; `0.02` is the size for all `metrics`."""
    name, _, size = text.rpartition("=")
    try:
        if float(size) > 0:
            return dict.fromkeys([name] if name else metrics, float(size))
    except ValueError:
        pass
    raise UserError(f"--delta {text}: no size above 0", remedy="for example --delta 0.01 or --delta accuracy=0.01")
