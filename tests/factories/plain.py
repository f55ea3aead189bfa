"""A check that values of records, parameters and pickles do not know the line where they were written."""

from dataclasses import is_dataclass
from typing import Any

from pydantic import BaseModel

from realm_lab.errors import Written


def plain(value: Any) -> bool:
    """True if neither a value nor anything in it knows its line."""
    if isinstance(value, BaseModel) or is_dataclass(value):
        return plain(vars(value))
    if isinstance(value, dict):
        return not isinstance(value, Written) and all(plain(key) and plain(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return not isinstance(value, Written) and all(map(plain, value))
    return not isinstance(value, Written)
