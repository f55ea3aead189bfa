"""Turn pydantic's errors into one line, and read JSON records with types."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from realm_lab.errors import UserError
from realm_lab.records.files import read_json

Record = TypeVar("Record")
Fault = tuple[str, tuple[str, ...], tuple[str | int, ...]]  # text, dotted names of parameters, keys of the value
SCALARS = int, float, datetime.date  # types of unquoted YAML values


# Type of pydantic's error -> what the value must be, with the bounds that pydantic names.
MUST_BE = {
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a section of names and values"),
    "finite_number": "a finite number",
    "string_type": "a string",
    "list_type": "a list",
    "literal_error": "{expected}",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "a text of at least {min_length} character",
    "multiple_of": "a multiple of {multiple_of}",
}


class Contradiction(ValueError):
    """Error: values of the `parameters` of a section contradict each other. `problem` starts with the name of one of
    them. `others`: further contradictions of the same section."""

    others: Sequence[Contradiction] = ()

    def __init__(self, problem: str, *parameters: str):
        super().__init__(problem)
        self.problem, self.parameters = problem, parameters


def problem_of(error: ValidationError, location: Sequence[str | int] | None = None) -> Fault:
    """Format the first fault, `FIELD must be ..., got VALUE` or a contradiction. `location` replaces pydantic's keys,
    for example without the names of a union's types; empty: no field is named."""
    problems = error.errors(include_url=False)
    found = problems[0]
    keys = tuple(found["loc"] if location is None else location)
    field, kind, given, context = ".".join(map(str, keys)), found["type"], found.get("input"), found.get("ctx", {})
    if isinstance(cause := context.get("error"), Contradiction):
        return _contradiction(cause, keys)
    names = (".".join(itertools.takewhile(lambda part: not part.isdecimal(), map(str, keys))),)
    shown = cut(repr(given), 120)
    if kind in MUST_BE:
        # for a union, pydantic has an error per type that the value could have had
        same = [one for one in problems if keys and one["loc"][:-1] == found["loc"][:-1] and keys != found["loc"]]
        kinds = dict.fromkeys(
            MUST_BE[one["type"]].format(**one.get("ctx", {})) for one in same or [found] if one["type"] in MUST_BE
        )
        remedy = "; put it in quotes" if kind == "string_type" and isinstance(given, SCALARS) else ""
        text = f"{cut(field) or 'it'} must be {' or '.join(kinds)}, got {shown}{remedy}"
        return text, names, keys
    message = found["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    is_shown = field and kind != "missing" and not isinstance(given, dict | BaseModel)
    text = (f"{cut(field)}: " if field else "") + message + (f" (given: {shown})" if is_shown else "")
    return text, names, keys


def faults_of(error: ValidationError) -> list[Fault]:
    """Return the first fault that pydantic found, and every other contradiction. Contradictions between sections are
    found only if each section is valid."""
    faults = [problem_of(error)]
    for found in error.errors(include_url=False):
        if isinstance(cause := found.get("ctx", {}).get("error"), Contradiction):
            faults += [_contradiction(one, found["loc"]) for one in (cause, *cause.others)]
    return list(dict.fromkeys(faults))


def _contradiction(cause: Contradiction, keys: tuple[str | int, ...]) -> Fault:
    section = "".join(f"{name}." for name in keys)
    return f"{section}{cause.problem}", tuple(f"{section}{name}" for name in cause.parameters), keys


def validation_line(error: ValidationError, location: Sequence[str | int] | None = None) -> str:
    """Return the text of the first problem."""
    return problem_of(error, location)[0]


def cut(text: str, length: int = 80) -> str:
    """Shorten `text` to `length`, with an ellipsis at its end."""
    return text if len(text) <= length else text[: length - 1] + "…"


def validated(
    adapter: TypeAdapter[Record], value: Any, path: Path, remedy: str = "repair or delete the file"
) -> Record:
    """Convert `value`, read from `path`, into a record. UserError: its fault, with file and field."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise UserError(validation_line(error), remedy, path=path) from None


def read_record(path: Path, adapter: TypeAdapter[Record], remedy: str = "repair or delete the file") -> Record:
    """Read a JSON file as a record. UserError: no such file, not JSON, or not such a record."""
    return validated(adapter, read_json(path), path, remedy)
