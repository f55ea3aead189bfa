"""What pydantic finds wrong, in one line; and JSON records with types, which are read with such lines."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from realm_lab.core.files import read_json
from realm_lab.errors import UserError

Record = TypeVar("Record")
SCALARS = int, float, datetime.date  # what YAML reads where there are no quotes


def validation_line(error: ValidationError, location: Sequence[str | int] | None = None) -> str:
    """The first thing that pydantic found wrong: `FIELD: what is wrong (given: VALUE)`.

    `location` replaces pydantic's own, for example without the names of a union's types; empty: no field is named.
    """
    problem = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in (problem["loc"] if location is None else location))
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = problem.get("input")
    is_shown = field and problem["type"] != "missing" and not isinstance(given, dict | BaseModel)
    shown = f" (given: {cut(repr(given), 120)})" if is_shown else ""
    remedy = "; put it in quotes" if problem["type"] == "string_type" and isinstance(given, SCALARS) else ""
    return (f"{cut(field)}: " if field else "") + message + shown + remedy


def cut(text: str, length: int = 80) -> str:
    """`text`, with an ellipsis at its end where it is longer than `length`."""
    return text if len(text) <= length else text[: length - 1] + "…"


def validated(
    adapter: TypeAdapter[Record], value: Any, path: Path, remedy: str = "repair or delete the file"
) -> Record:
    """`value`, read from `path`, as a record. UserError: what is wrong with it, with file and field."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise UserError(f"{path}: {validation_line(error)}; {remedy}") from None


def read_record(path: Path, adapter: TypeAdapter[Record], remedy: str = "repair or delete the file") -> Record:
    """A JSON file as a record. UserError: no such file, not JSON, or not such a record."""
    return validated(adapter, read_json(path), path, remedy)
