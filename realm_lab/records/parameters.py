"""Names and values of parameters as records have them: dotted names, one value each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPTIONS = "system_options"  # SYSTEM -> OPTION -> value
CHANGES = "pretrain.changes"  # step -> the parameters of pre-training that change at it
WHOLE = (CHANGES, "streams.order")  # parameters whose value is a mapping
# Settings of `launch` that change results by rounding only; recorded with each stage, and a confound if runs differ.
ROUNDING = ("device", "ranks", "threads", "token_budget", "micro_batch", "compile")


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return recorded parameters by dotted name; each option of a system or of a plug-in has a separate name."""
    found: dict[str, Any] = {}
    is_inside_system = prefix.startswith(f"{OPTIONS}.") and prefix != f"{OPTIONS}."
    for key, value in params.items():
        name = f"{prefix}{key}"
        if not isinstance(value, Mapping) or name in WHOLE or is_inside_system:
            found[name] = value
        elif "name" in value:  # a plug-in with options
            found |= {name if option == "name" else f"{name}.{option}": one for option, one in value.items()}
        else:
            found |= flat(value, f"{name}.")
    return found


def is_system_option(key: str) -> bool:
    """True for the dotted name `system_options.SYSTEM.OPTION`, which the system checks."""
    return key.startswith(f"{OPTIONS}.") and key.count(".") > 1


def measuring(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat parameters that only set measurements during pre-training; the stage's key leaves them out."""
    names = (f"evaluate.{name}" for name in ("interval_steps", "cloze_sentences", "questions"))
    found = {name: parameters[name] for name in names if name in parameters}
    return found | {name: value for name, value in parameters.items() if name.startswith("pretrain.watch.")}


def show(value: Any) -> str:
    """Format a value for people."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {show(item)}" for name, item in value.items()) + "}"
    return "none" if value is None else str(value) or '""'
