"""Flags of several commands, each defined once, and numbers with a bound."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.errors import UserError

if TYPE_CHECKING:
    from realm_lab.engine.params.parameters import Params
    from realm_lab.engine.systems.context import Context

Add = Callable[..., argparse.ArgumentParser]  # add(GROUP, NAME, function, summary); GROUP "": a command not in --help


def add_everywhere(verb: argparse.ArgumentParser) -> None:
    """Add --debug and --root. They may also be given before the command: SUPPRESS keeps a value given there."""
    verb.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback")
    verb.add_argument("--root", type=Path, default=argparse.SUPPRESS, metavar="DIR", help="project folder")


def add_params(verb: argparse.ArgumentParser) -> None:
    """Add --params."""
    verb.add_argument("--params", type=Path, metavar="FILE", help="parameters (default: ROOT/params.yaml)")


def add_parameters(verb: argparse.ArgumentParser) -> None:
    """Add --params, --preset and --set."""
    add_params(verb)
    verb.add_argument("--preset", metavar="NAME", help="use this preset instead of the one in the file")
    text = "change one parameter, for example pretrain.steps=100; may be repeated"
    verb.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help=text)


def overrides_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of --set and --preset, dotted name -> value; none for a command without these flags."""
    from realm_lab.engine.params.load import parse_override

    given = vars(options)
    preset = {"preset": given["preset"]} if given.get("preset") is not None else {}
    return dict(parse_override(text) for text in given.get("overrides", ())) | preset


def params_of(options: argparse.Namespace) -> Params:
    """Return the parameters that these options ask for."""
    from realm_lab.engine.params.load import load

    return load(options.params or options.root / "params.yaml", overrides_of(options) | policy_of(options))


def policy_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return --fresh or --accept as a parameter: dotted name -> value."""
    policy = vars(options).get("other_code")
    return {"launch.other_code": policy} if policy else {}


def located(error: UserError, options: argparse.Namespace) -> UserError:
    """Return the error with the flag or line that set its parameter; unchanged if it has a source already, if it is
    about a run that --run names, or if none set the parameter."""
    given = vars(options)
    if error.path or not error.parameter or "params" not in given or given.get("finished"):
        return error
    from realm_lab.engine.params.load import read_values, setting

    with suppress(UserError):  # a plug-in fails here again, or there is no file
        values = read_values(options.params or options.root / "params.yaml", overrides_of(options))
        if key := setting(values, error.parameter):
            return UserError(error.problem, error.remedy, parameter=error.parameter, value=key)
    return error


def add_json(verb: argparse._ActionsContainer, text: str = "print JSON instead of tables") -> None:
    """Add --json."""
    verb.add_argument("--json", action="store_true", help=text)


def add_dry_run(verb: argparse._ActionsContainer) -> None:
    """Add --dry-run."""
    verb.add_argument("--dry-run", action="store_true", help="print the plan without running")


def add_other_code(verb: argparse.ArgumentParser) -> None:
    """Add --fresh and --accept."""
    either = verb.add_mutually_exclusive_group()
    for policy, text in {
        "fresh": "compute again what other code computed",
        "accept": "keep what other code computed, and record that the change of the code is harmless",
    }.items():
        either.add_argument(f"--{policy}", action="store_const", const=policy, dest="other_code", help=text)


def add_run(options: argparse._ActionsContainer) -> None:
    """Add --run and --system, which choose a finished run."""
    text = "a finished run: its name or the start of it, or STUDY/VARIANT-sSEED (default: the first seed of --params)"
    options.add_argument("--run", dest="finished", metavar="RUN", help=text)  # `run` is the function of the command
    options.add_argument("--system", metavar="NAME", help="system of the run of --params (default: realm)")


def opened(options: argparse.Namespace, system: str | None = None) -> Context:
    """Open the finished run that --run names, or else the run of the parameters. UserError: both are given, or there is
    no such run."""
    if options.finished:
        flags = {"params": "--params", "preset": "--preset", "overrides": "--set", "system": "--system"}
        if given := [flag for name, flag in flags.items() if vars(options).get(name)]:
            raise UserError(f"--run names a run with its parameters; leave out {' and '.join(given)}")
        from realm_lab.api import load_run

        return load_run(options.finished, options.root).context
    params = params_of(options)
    from realm_lab.engine.systems.context import open_run

    return open_run(params, options.root, None, system or options.system)


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got '{text}'") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
