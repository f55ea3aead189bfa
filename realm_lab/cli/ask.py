"""The command `ask`: answers of a finished run, as tables or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from realm_lab.cli.flags import Add, add_json, add_params, add_run, opened, positive
from realm_lab.errors import UserError

if TYPE_CHECKING:
    from realm_lab.engine.systems.ask import ReadPassage, Reply
    from realm_lab.engine.systems.context import Context

ANSWER_WIDTH = 20  # columns of an answer in a table: a longer one is wrapped, so that numbers and passages have room
NEAR_UNIFORM = 1.5  # times 1/k: below it, the best of k passages is hardly preferred


def add_ask(add: Add) -> None:
    """Add `ask` to the command line."""
    summary = "answer a question, or fill in the [MASK] of a sentence, with the passages that helped"
    ask = add("inspect", "ask", _run_ask, summary)
    ask.add_argument("question", help='for example "Who wrote Hamlet?" or "Hamlet was written by [MASK]."')
    add_run(ask)
    add_params(ask)
    text = "which retriever finds the passages of a question (default: that of the run)"
    ask.add_argument("--retriever", choices=["run", "bm25"], default="run", help=text)
    text = "passages to read and show; p(z|x) is a share among them (default: 5)"
    ask.add_argument("-k", type=positive, default=5, metavar="N", help=text)
    add_json(ask)


def _run_ask(options: argparse.Namespace) -> None:
    """Print the answer of one or several systems in turn; an error of one system does not stop the next."""
    systems = (options.system or "").split(",")
    if options.finished or len(systems) == 1:
        return _ask(options)
    failed = []
    for system in systems:
        if not options.json:
            print(f"{system}:")
        try:
            _ask(options, system)
        except UserError as error:
            failed.append(f"{system}: {error}")
    if failed:
        raise UserError("; ".join(failed))


def _ask(options: argparse.Namespace, system: str | None = None) -> None:
    context = opened(options, system)
    from realm_lab.engine.systems.ask import MASK

    if MASK not in options.question:
        if options.alias == "fill":
            raise UserError(f"fill: the sentence has no {MASK}; write one, or `realm-lab ask` a question")
        answer(context, options.question, options.k, options.retriever, as_json=options.json)
    elif options.retriever != "run":
        raise UserError(f"--retriever {options.retriever} finds passages of questions; leave it out with a {MASK}")
    else:
        _fill(context, options.question, options.k, as_json=options.json)


def answer(context: Context, question: str, k: int = 5, retriever: str = "run", as_json: bool = False) -> None:
    """Print the answer of an open run to a question, with the `k` passages that were read."""
    from realm_lab.engine.systems.ask import ask

    reply = ask(context, question, k, retriever)
    if reply.warning:
        print(f"realm-lab: {reply.warning}", file=sys.stderr)
    if is_near_uniform(reply.candidates):
        print("realm-lab: the retriever prefers no passage: do not trust the answer", file=sys.stderr)
    if as_json:
        print(json.dumps(reply_fields(context, reply), ensure_ascii=False))
        return
    _show(context, [("answer  ", reply.answer, "")], reply.candidates, ("p(span|z,x)", "answer"), reply.best)


def is_near_uniform(candidates: Sequence[ReadPassage]) -> bool:
    """True if the retriever prefers none of several passages: the p(z|x) of the best is close to an equal share."""
    return len(candidates) > 1 and max(one.probability for one in candidates) < NEAR_UNIFORM / len(candidates)


def reply_fields(context: Context, reply: Reply) -> dict[str, Any]:
    """Return an answer as `ask --json` and `serve` write it."""
    fields: dict[str, Any] = {"system": context.run.system, "question": reply.question, "answer": reply.answer}
    fields["near_uniform"] = is_near_uniform(reply.candidates)
    return {**fields, "candidates": [vars(candidate) for candidate in reply.candidates]}


def _fill(context: Context, sentence: str, k: int, as_json: bool) -> None:
    """Print the words for the blank of a sentence, with the `k` passages that were read."""
    from realm_lab.engine.systems.ask import MASK, fill, warning

    found = fill(context, sentence, k)
    if unknown := warning(context, sentence.replace(MASK, " ")):
        print(f"realm-lab: {unknown}", file=sys.stderr)
    if as_json:
        candidates = [vars(candidate) for candidate in found.candidates]
        print(json.dumps({**vars(found), "candidates": candidates}, ensure_ascii=False))
        return
    words = [("marginal      ", found.answer, f"  p = {found.marginal:.3g}")]
    words.append(("no retrieval  ", found.answer, f"  p = {found.without:.3g}"))
    from realm_lab.records.validation import cut

    columns = f"p({cut(found.answer, ANSWER_WIDTH)}|z,x)", "best by z alone"
    _show(context, words, found.candidates, columns, None)


def _show(
    context: Context,
    words: Sequence[tuple[str, str, str]],
    candidates: Sequence[ReadPassage],
    columns: tuple[str, str],
    best: int | None,
) -> None:
    """Print the answers and their run, then the candidates; the answer of each passage is highlighted in it.
    `columns`: titles of the reader's probability, and of the passage's answer."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for name, answer, more in words:
        console.print(Text.assemble((name, "dim"), (answer, "bold"), more))
    run = context.run
    console.print(Text(f"by {run.system}, seed {run.seed} ({run.name})", "dim"))
    if not candidates:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("p(z|x)", columns[0], "utility"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    table.add_column(columns[1], max_width=ANSWER_WIDTH, overflow="fold")
    table.add_column("passage")
    for number, candidate in enumerate(candidates):
        passage = candidate.passage
        text = Text("(null document)", style="dim")
        if passage is not None:
            text = Text.assemble((passage["title"], "bold"), "  ", passage["body"])
            if candidate.span:
                offset = len(passage["title"]) + 2
                text.stylize("reverse", offset + candidate.span[0], offset + candidate.span[1])
        table.add_row(
            f"{candidate.probability:.3f}",
            f"{candidate.reader_probability:.3g}",
            "-" if candidate.utility is None else f"{candidate.utility:+.2f}",
            Text(candidate.answer, "bold" if number == best else ""),
            text,
        )
    console.print(table)
