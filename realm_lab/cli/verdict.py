"""The command `verdict`: our statistics on the runs of any program."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from realm_lab.cli.flags import Add, add_json
from realm_lab.errors import UserError


def add_verdict(add: Add) -> None:
    """Add `verdict` to the command line."""
    verb = add("verdict", _run_verdict, "judge runs of any tool: paired tests, intervals, power, equivalence")
    text = "CSV, JSON, W&B export, Trackio database, folder of TensorBoard, Hydra or MLflow, or an MLflow store's URI"
    verb.add_argument("source", help=text)
    text = "column of the numbers to compare; repeated, all are one family of tests"
    verb.add_argument("--metric", action="append", required=True, metavar="COLUMN", help=text)
    verb.add_argument("--baseline", required=True, metavar="NAME", help="the cell that the others are compared with")
    verb.add_argument("--cell", default="cell", metavar="COLUMN", help="column that names the cell (default: cell)")
    text = "column that pairs the runs, for example the seed or the fold (default: seed)"
    verb.add_argument("--pair", default="seed", metavar="COLUMN", help=text)
    text = "the largest difference of a metric that does not matter; without it nothing is called equivalent"
    verb.add_argument("--delta", action="append", default=[], metavar="COLUMN=SIZE", help=text)
    text = "columns in the name or folder of a run, for example '{variant}/seed_{seed}'"
    verb.add_argument("--name", default="", metavar="PATTERN", help=text)
    verb.add_argument("--experiment", default="", metavar="NAME", help="the experiment of an MLflow store")
    verb.add_argument("--out", type=Path, metavar="DIR", help="also write Markdown, LaTeX, JSON and a figure there")
    add_json(verb)


def _run_verdict(options: argparse.Namespace) -> None:
    from realm_lab.other_runs.answer import judge_rows
    from realm_lab.other_runs.sources import read_runs

    delta = dict(_bound(text) for text in options.delta)
    rows = read_runs(options.source, options.name, options.experiment)
    answer = judge_rows(rows, options.metric, options.baseline, options.cell, options.pair, delta)
    if options.out:
        from realm_lab.other_runs.written import write

        write(answer, options.out)
    print(json.dumps(answer.as_json(), indent=2, ensure_ascii=False) if options.json else answer.markdown(), end="")


def _bound(text: str) -> tuple[str, float]:
    name, _, size = text.rpartition("=")
    try:
        if name and float(size) > 0:
            return name, float(size)
    except ValueError:
        pass
    raise UserError(f"--delta {text}: not a column and a size above 0", remedy="for example --delta accuracy=0.01")
