"""The verbs `ask` and `fill`: what a finished run answers."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from realm_lab.cli.flags import add_run, params_of, positive


def add_asking(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the verbs to the command line."""
    ask = add("ask", _run_ask, "answer a question, with the passages that the answer comes from")
    ask.add_argument("question", help='for example "Who wrote Hamlet?"')
    text = "who finds the passages (default: the run's own retriever)"
    ask.add_argument("--retriever", choices=["run", "bm25"], default="run", help=text)
    fill = add("fill", _run_fill, "fill in the [MASK] of a sentence, with the passages that helped")
    fill.add_argument("sentence", help='for example "Hamlet was written by [MASK]."')
    for verb in (ask, fill):
        add_run(verb)
        verb.add_argument("-k", type=positive, default=5, metavar="N", help="passages to show (default: 5)")
        verb.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _run_ask(options: argparse.Namespace) -> None:
    params = params_of(options)
    from realm_lab.systems import ask

    seed = params.seeds[0] if options.seed is None else options.seed
    asked = {"k": options.k, "as_json": options.json, "retriever_name": options.retriever}
    ask.ask(options.question, params, options.root, seed, options.system, **asked)


def _run_fill(options: argparse.Namespace) -> None:
    params = params_of(options)
    from realm_lab.systems import ask

    seed = params.seeds[0] if options.seed is None else options.seed
    ask.fill(options.sentence, params, options.root, seed, options.system, k=options.k, as_json=options.json)
