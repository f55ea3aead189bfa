"""What a parameter may name: a registered name, or a user's own code as `package.module:name`, with its source."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from realm_lab.core.code import reach_working_folder
from realm_lab.errors import UserError, nearest

Entry = TypeVar("Entry", bound=Callable[..., Any])


class Registry(dict[str, Entry]):
    """Name -> entry. `what` and `form` are what people call an entry: "scheme", "function"."""

    def __init__(self, what: str, form: str):
        super().__init__()
        self._what, self._form = what, form

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """A decorator that adds an entry. UserError: the name is taken."""

        def add(entry: Entry) -> Entry:
            if name in self:
                raise UserError(f"{self._what} '{name}' is registered twice")
            self[name] = entry
            return entry

        return add

    def named(self, parameter: str, name: str) -> Entry:
        """The entry that `parameter` names. UserError: there is none; it says the nearest."""
        if name not in self:
            raise UserError(
                f"parameter '{parameter}': no {self._what} '{name}'; the nearest one is '{nearest(name, self)}'; "
                f"choose {', '.join(sorted(self))} or package.module:{self._form}"
            )
        return self[name]


def own_code(parameter: str, name: str) -> Callable[..., Any]:
    """The function or class that `parameter` names. UserError: no such module, or no such function or class in it."""
    module, _, attribute = name.partition(":")
    reach_working_folder()
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise _unimportable(parameter, name, error) from error
    found = getattr(imported, attribute, None)
    if not callable(found):
        raise UserError(f"parameter '{parameter}': '{name}': no function or class '{attribute}' in {imported.__file__}")
    code: Callable[..., Any] = found
    return code


def own_source(parameter: str, name: str) -> Path | None:
    """The source file of a user's own code, which is part of a run's identity; None for a registered name."""
    if ":" not in name:
        return None
    reach_working_folder()
    try:
        found = importlib.util.find_spec(name.partition(":")[0])
    except Exception as error:  # whatever the packages above it raise
        raise _unimportable(parameter, name, error) from error
    if found is None or not found.has_location or found.origin is None:
        raise _unimportable(parameter, name, "no Python file of that name")
    return Path(found.origin)


def _unimportable(parameter: str, name: str, reason: object) -> UserError:
    why, module = " ".join(str(reason).split()), name.partition(":")[0]
    remedy = "install it, or put it into this folder or on PYTHONPATH"
    return UserError(f"parameter '{parameter}': '{name}': module '{module}' cannot be imported ({why}); {remedy}")
