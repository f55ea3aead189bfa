"""The command `gradients`: estimates of the retriever's gradient in a finished run, as a table or JSON."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from realm_lab.cli.flags import Add, add_json, add_params, add_run, opened, positive

if TYPE_CHECKING:
    from realm_lab.contrib.gradients.compare import Gradients
    from realm_lab.engine.systems.context import Context


def add_gradients(add: Add) -> None:
    """Add `gradients` to the command line."""
    summary = "compare estimates of the retriever's gradient with the exact one"
    gradients = add("inspect", "gradients", _run_gradients, summary)
    add_run(gradients)
    add_params(gradients)
    text = "weights after this stage (default: pretrain)"
    gradients.add_argument("--stage", choices=["warm_start", "pretrain"], default="pretrain", help=text)
    text = "sentences of the pre-training corpus (default: 64)"
    gradients.add_argument("--sentences", type=positive, default=64, metavar="N", help=text)
    text = "draws of each random estimate (default: 8)"
    gradients.add_argument("--draws", type=positive, default=8, metavar="N", help=text)
    text = "numbers of candidates, the null document included (default: 2 4 8 12 20 40 100)"
    numbers = [2, 4, 8, 12, 20, 40, 100]
    gradients.add_argument("--candidates", type=positive, nargs="+", default=numbers, metavar="K", help=text)
    add_json(gradients)


def _run_gradients(options: argparse.Namespace) -> None:
    from rich.console import Console

    context = opened(options)
    from realm_lab.contrib.gradients.compare import compare_gradients

    with Console(stderr=True).status("reading every passage") as status:
        asked = options.stage, options.sentences, options.draws, options.candidates
        found = compare_gradients(context, *asked, status.update)
    if options.json:
        print(json.dumps({**found._asdict(), "estimates": [one._asdict() for one in found.estimates]}))
        return
    _show_gradients(context, found)


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
    console.print("bias², variance: as shares of the exact gradient's squared norm, in vectors or weights", style="dim")
    for name, why in found.left_out.items():
        console.print(f"left out: {name} ({why})")
