"""Changes during pre-training: the parameters that can change between steps, and their values from each step on."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from realm_lab.engine.params.sections import Section
from realm_lab.records.validation import Contradiction, validation_line

Settings = TypeVar("Settings", bound=Section)  # the settings of pre-training
# Parameters of pre-training that have one value for all steps.
ALL_STEPS = (
    "steps",
    "batch_size",
    "initial_reader",
    "initial_retriever",
    "train_query_tower",
    "train_document_tower",
    "search_query",
    "causal_checkpoint",
    "reward",
    "recurring_spans",
    "watch",
    "changes",
)


def checked_changes(section: type[Section], changes: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Sort changes by their steps, and write nested names out with dots. ValueError: a parameter cannot change; the
    error names those that can."""
    found = {step: dict(_dotted(section, changes[step])) for step in sorted(changes)}
    known = [name for name in sorted(_names(section)) if name.partition(".")[0] not in ALL_STEPS]
    for step, change in found.items():
        for name in change:
            if name not in known:
                raise ValueError(f"'{name}' at step {step}: it cannot change; these can: {', '.join(known)}")
    return found


def phases(settings: Settings) -> dict[int, Settings]:
    """Return step -> the settings from that step on, for step 0 and each step with a change. Changes from step
    `steps` on are left out. Contradiction: the settings of a step do not fit each other."""
    given: Any = settings
    found = {0: settings.model_copy(update={"changes": {}})}
    values = found[0].model_dump(mode="json")
    for step, change in given.changes.items():
        before = json.dumps(values)
        for name, value in change.items():
            *sections, last = name.split(".")
            functools.reduce(dict.__getitem__, sections, values)[last] = value
        try:
            changed = type(settings)(**values)
        except ValidationError as error:
            raise Contradiction(f"changes: at step {step} {validation_line(error)}", "changes") from None
        values = changed.model_dump(mode="json")
        if step < given.steps and json.dumps(values) != before:
            found[step] = changed
    return found


def _section(section: Any, name: str) -> Any:
    """Return the type of the section `name` inside `section`; None if `name` is a parameter."""
    kind = section.model_fields[name].annotation if name in section.model_fields else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _names(section: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all parameters in a section."""
    for name in section.model_fields:
        inner = _section(section, name)
        yield from _names(inner, f"{prefix}{name}.") if inner else (f"{prefix}{name}",)


def _dotted(section: Any, given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of each parameter in `given`, which may nest values in sections."""
    for name, value in given.items():
        inner = _section(section, name)
        if inner and isinstance(value, dict):
            yield from _dotted(inner, value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
