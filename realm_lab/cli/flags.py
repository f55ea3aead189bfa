"""Flags of several commands, each defined once, and numbers with a bound."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.errors import UserError

if TYPE_CHECKING:
    from realm_lab.params.parameters import Params
    from realm_lab.systems.context import Context

Add = Callable[..., argparse.ArgumentParser]  # add(NAME, function, summary): a command


def add_everywhere(verb: argparse.ArgumentParser) -> None:
    """Add --debug and --root, which may be given before the command as well: SUPPRESS keeps the value from there."""
    verb.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback")
    verb.add_argument("--root", type=Path, default=argparse.SUPPRESS, metavar="DIR", help="project folder")


def add_parameters(verb: argparse.ArgumentParser) -> None:
    """Add --params, --preset and --set."""
    verb.add_argument("--params", type=Path, metavar="FILE", help="parameters (default: ROOT/params.yaml)")
    verb.add_argument("--preset", metavar="NAME", help="use this preset instead of the one in the file")
    text = "change one parameter, for example pretrain.steps=100; may be repeated"
    verb.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help=text)


def overrides_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of --set and --preset, dotted name -> value."""
    from realm_lab.params.load import parse_override

    preset = {} if options.preset is None else {"preset": options.preset}
    return dict(parse_override(text) for text in options.overrides) | preset


def params_of(options: argparse.Namespace) -> Params:
    """Return the parameters that these options ask for."""
    from realm_lab.params.load import load

    return load(options.params or options.root / "params.yaml", overrides_of(options) | policy_of(options))


def policy_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return --fresh or --accept as a parameter: dotted name -> value."""
    policy = vars(options).get("other_code")
    return {"launch.other_code": policy} if policy else {}


def in_place(error: UserError, options: argparse.Namespace) -> UserError:
    """Return an error about a parameter with the flag or the line that set it, if one did and the error has no source
    yet."""
    if error.path or not error.parameter or "overrides" not in options:
        return error
    from realm_lab.params.load import read_values, setting

    values = read_values(options.params or options.root / "params.yaml", overrides_of(options))
    key = setting(values, error.parameter)
    return UserError(error.problem, error.remedy, parameter=error.parameter, value=key) if key else error


def add_json(verb: argparse._ActionsContainer, text: str = "print JSON instead of tables") -> None:
    """--json."""
    verb.add_argument("--json", action="store_true", help=text)


def add_dry_run(verb: argparse._ActionsContainer) -> None:
    """--dry-run."""
    verb.add_argument("--dry-run", action="store_true", help="print the plan without running")


def add_other_code(verb: argparse.ArgumentParser) -> None:
    """--fresh and --accept."""
    either = verb.add_mutually_exclusive_group()
    for policy, text in {
        "fresh": "compute again what other code computed",
        "accept": "keep what other code computed, and record that the change of the code is harmless",
    }.items():
        either.add_argument(f"--{policy}", action="store_const", const=policy, dest="other_code", help=text)


def add_run(verb: argparse.ArgumentParser) -> None:
    """Add --params and its like, --seed and --system: the finished run to use."""
    add_parameters(verb)
    add_which(verb)


def add_which(options: argparse._ActionsContainer) -> None:
    """--seed and --system."""
    text = "seed of the run to ask (default: the first of the parameters)"
    options.add_argument("--seed", type=int, metavar="N", help=text)
    options.add_argument("--system", metavar="NAME", help="system of the run to ask (default: realm)")


def add_named(options: argparse._ActionsContainer) -> None:
    """--run."""
    text = "a finished run: its name or the start of it, or STUDY/CELL-sSEED (default: of --params)"
    options.add_argument("--run", dest="finished", metavar="RUN", help=text)  # `run` is the function of the command


def opened(options: argparse.Namespace, system: str | None) -> Context:
    """Open the finished run that --run names, or that of the parameters. UserError: both are given, or there is
    none."""
    if options.finished:
        if options.params or options.preset or options.overrides or options.system or options.seed is not None:
            names = "--params, --preset, --set, --seed and --system"
            raise UserError(f"--run names a run with its parameters; leave out {names}")
        from realm_lab.api import load_run

        return load_run(options.finished, options.root).context
    params = params_of(options)
    from realm_lab.systems.context import open_run

    return open_run(params, options.root, options.seed, system)


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got '{text}'") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def share(text: str) -> float:
    """Parse a number above 0, at most 1."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got '{text}'") from None
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, got {text}")
    return value
