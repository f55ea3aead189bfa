"""The commands `ask`, `fill` and `gradients`: answers and gradients of a finished run, as tables or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.cli.flags import Add, add_json, add_named, add_run, opened, positive
from realm_lab.errors import UserError

if TYPE_CHECKING:
    from realm_lab.systems.ask import ReadPassage, Reply
    from realm_lab.systems.context import Context
    from realm_lab.systems.gradients import Gradients

ANSWER_WIDTH = 20  # columns of an answer in a table: a longer one is wrapped, so that numbers and passages have room
NEAR_UNIFORM = 1.5  # times 1/k: below it, the best of k passages is hardly preferred


def add_asking(add: Add) -> None:
    """Add the commands to the command line."""
    ask = add("ask", _run_ask, "answer a question, with the passages that the answer comes from")
    ask.add_argument("question", help='for example "Who wrote Hamlet?"')
    text = "which retriever finds the passages (default: that of the run)"
    ask.add_argument("--retriever", choices=["run", "bm25"], default="run", help=text)
    fill = add("fill", _run_fill, "fill in the [MASK] of a sentence, with the passages that helped")
    fill.add_argument("sentence", help='for example "Hamlet was written by [MASK]."')
    for verb in (ask, fill):
        add_run(verb)
        add_named(verb)
        verb.add_argument(
            "-k",
            type=positive,
            default=5,
            metavar="N",
            help="passages to read and show; p(z|x) is a share among them (default: 5)",
        )
        add_json(verb)
    gradients = add("gradients", _run_gradients, "compare estimates of the retriever's gradient with the exact one")
    add_run(gradients)
    add_named(gradients)
    text = "weights after this stage (default: pretrain)"
    gradients.add_argument("--stage", choices=["warm_start", "pretrain"], default="pretrain", help=text)
    text = "sentences of the pre-training corpus (default: 64)"
    gradients.add_argument("--sentences", type=positive, default=64, metavar="N", help=text)
    text = "draws of each random estimate (default: 8)"
    gradients.add_argument("--draws", type=positive, default=8, metavar="N", help=text)
    text = "numbers of candidates, the null document included (default: 2 4 8 12 20 40 100)"
    gradients.add_argument(
        "--candidates", type=positive, nargs="+", default=[2, 4, 8, 12, 20, 40, 100], metavar="K", help=text
    )
    gradients.add_argument("--figure", type=Path, metavar="FILE", help="PNG of the cosines over the operations")
    add_json(gradients)


def _run_gradients(options: argparse.Namespace) -> None:
    from rich.console import Console

    context = opened(options, options.system)
    from realm_lab.systems.gradients import compare_gradients

    if options.figure and options.figure.suffix != ".png":
        raise UserError(f"--figure {options.figure}: no name of a picture", remedy="write a name that ends in .png")
    with Console(stderr=True).status("reading every passage") as status:
        asked = options.stage, options.sentences, options.draws, options.candidates
        found = compare_gradients(context, *asked, status.update)
    if options.figure:
        _draw(found, options.figure)
    if options.json:
        print(json.dumps({**found._asdict(), "estimates": [one._asdict() for one in found.estimates]}))
        return
    _show_gradients(context, found)


def _draw(found: Gradients, path: Path) -> None:
    """Draw the cosine of each estimate in the weights over its operations."""
    import pandas as pd

    from realm_lab.evidence.report.figures import Sketch, draw, plane_figure
    from realm_lab.records.files import atomic_write

    cells = [(one.name, one.name) for one in found.estimates]
    points = [(one.name, one.gflop, one.weights_cosine) for one in found.estimates]
    spots = pd.DataFrame(points, columns=["cell", "x", "y"])
    axes = "operations of a step, GFLOP", "cosine with the exact gradient in the retriever's weights"
    drawn = draw(Sketch("gradients", "", "", lambda: plane_figure(spots, cells, axes, is_log=True)))
    if drawn is None:
        raise UserError("--figure: a single estimate makes no figure; leave it out")
    with atomic_write(path, "wb") as file:
        file.write(drawn.files["png"])


def _show_gradients(context: Context, found: Gradients) -> None:
    """Print a line for each estimate."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"{found.sentences} sentences, {found.passages} passages, weights after {found.stage} of {context.run.name}; "
        f"the exact gradient takes {found.exact_gflop:.4g} GFLOP"
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("estimate", no_wrap=True)
    for name in ("cosine", "bias²", "variance", "weights: cosine", "bias²", "GFLOP"):
        table.add_column(name, justify="right", overflow="fold")
    for one in found.estimates:
        numbers = one.cosine, one.bias, one.variance, one.weights_cosine, one.weights_bias
        table.add_row(one.name, *(f"{number:.3f}" for number in numbers), f"{one.gflop:.3g}")
    console.print(table)
    console.print("bias² and variance: shares of the square of the exact gradient in the query vectors", style="dim")
    for name, why in found.left_out.items():
        console.print(f"left out: {name} ({why})")


def _run_ask(options: argparse.Namespace) -> None:
    """Print one system's answer, or those of several in turn; one without an answer does not stop the others."""
    systems = (options.system or "").split(",")
    if options.finished or len(systems) == 1:
        return _ask(options, options.system)
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


def _ask(options: argparse.Namespace, system: str | None) -> None:
    answer(opened(options, system), options.question, options.k, options.retriever, as_json=options.json)


def answer(context: Context, question: str, k: int = 5, retriever: str = "run", as_json: bool = False) -> None:
    """Print the answer of an open run to a question, with the `k` passages that were read."""
    from realm_lab.systems.ask import ask

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


def _run_fill(options: argparse.Namespace) -> None:
    context = opened(options, options.system)
    from realm_lab.systems.ask import MASK, fill, warning

    found = fill(context, options.sentence, options.k)
    if unknown := warning(context, options.sentence.replace(MASK, " ")):
        print(f"realm-lab: {unknown}", file=sys.stderr)
    if options.json:
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
    """Print the answers and their run, then the candidates; the answer's span is highlighted in its passage.
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
