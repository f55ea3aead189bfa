"""The command `mine`: write questions with hard negatives."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from realm_lab.cli.flags import Add, add_json, add_params, add_run, opened, positive
from realm_lab.records.files import check_output, print_json

if TYPE_CHECKING:
    from realm_lab.engine.systems.context import Context


def add_mine(add: Add) -> None:
    """Add `mine` to the command line."""
    mine = add("", "mine", _run_mine, "write questions with hard negatives, as a training file of DPR")
    mine.add_argument("out", type=Path, metavar="FILE", help="JSON file to write; it is a format of corpus.files too")
    text = "passages of BM25, or of the finished run (default: bm25)"
    mine.add_argument("--retriever", choices=["bm25", "run"], default="bm25", help=text)
    text = "questions to write (default: train)"
    mine.add_argument("--split", choices=["train", "dev", "test"], default="train", help=text)
    text = "hard negatives of a question, at most (default: 30)"
    mine.add_argument("--negatives", type=positive, default=30, metavar="N", help=text)
    add_run(mine)
    add_params(mine)
    add_json(mine, "print the counts as JSON")


def _run_mine(options: argparse.Namespace) -> None:
    run = opened(options)
    from realm_lab.contrib.mining.mine import mine

    check_no_input(options.out, run, options)
    written, left_out = mine(run, options.out, options.split, options.retriever, options.negatives)
    if options.json:
        print_json({"file": options.out, "questions": written, "without_positive": left_out})
    else:
        print(f"{options.out}: {written:,} questions; {left_out:,} without a passage that answers them were left out")


def check_no_input(out: Path, run: Context, options: argparse.Namespace) -> None:
    """Refuse an output file that is an input of the run."""
    from realm_lab.engine.corpus.files_corpus import FILE_ROLES

    inputs = [Path(name) for role in FILE_ROLES for name in getattr(run.params.corpus.files, role)]
    check_output(out, [options.params or options.root / "params.yaml", *inputs])
