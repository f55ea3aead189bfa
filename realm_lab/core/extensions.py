"""What a parameter may name: a registered name, or a user's own code as `package.module:name`, with its source."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from realm_lab.core.code import reach_working_folder
from realm_lab.errors import UserError, suggestion

PLUGINS = "realm_lab.plugins"
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
        """The entry that `parameter` names. UserError: there is none; it suggests another."""
        if name not in self:
            raise UserError(
                f"parameter '{parameter}': no {self._what} '{name}'; {suggestion(name, sorted(self))} "
                f"(or package.module:{self._form})",
                parameter=parameter,
            )
        return self[name]


@functools.cache
def import_plugins() -> None:
    """Import the modules that installed packages name as entry points of the group `realm_lab.plugins`, which register
    parts. UserError: one of them fails."""
    for entry in importlib.metadata.entry_points(group=PLUGINS):
        with calling(f"entry point '{entry.name}' of {PLUGINS}", entry.value):
            entry.load()


def own_object(parameter: str, name: str) -> Any:
    """What `parameter` names as `package.module:name`; None where the module has no such name. UserError: the module
    cannot be imported."""
    module, _, attribute = name.partition(":")
    reach_working_folder()
    if not all(part.isidentifier() for part in module.split(".")):
        raise _unimportable(parameter, name, "that is no name of a module")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise _unimportable(parameter, name, error) from error
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise _failed(parameter, name, error) from error
    return getattr(imported, attribute, None)


def own_code(parameter: str, name: str, takes: str = "") -> Callable[..., Any]:
    """The function or class that `parameter` names. `takes`: the arguments that it is called with, "settings" or
    "request, generator". UserError: no such module, no such function or class in it, or one of other arguments."""
    code = own_object(parameter, name)
    if not callable(code):
        module, _, attribute = name.partition(":")
        file = getattr(sys.modules[module], "__file__", module)
        problem = f"parameter '{parameter}': '{name}': no function or class '{attribute}' in {file}"
        raise UserError(problem, parameter=parameter)
    if takes:
        check_takes(parameter, name, code, takes)
    found: Callable[..., Any] = code
    return found


def check_takes(parameter: str, name: str, code: Callable[..., Any], takes: str) -> None:
    """Refuse a function that cannot be called with these arguments."""
    try:
        signature = inspect.signature(code)
    except ValueError:  # some that are written in C have none
        return
    try:
        signature.bind(*takes.split(", "))
    except TypeError:
        what = f"parameter '{parameter}': '{name}' takes {signature}"
        raise UserError(f"{what}, but it is called with ({takes}); let it accept these", parameter=parameter) from None


@contextmanager
def calling(parameter: str, name: str) -> Iterator[None]:
    """Turn what the user's own code raises inside into a UserError with the line that raised it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # it may raise anything
        raise _failed(parameter, name, error) from error


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


def _failed(parameter: str, name: str, error: Exception) -> UserError:
    """Where the user's own module failed: the last line of it on the way to the error."""
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)  # None: while it was imported
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if file in (frame.filename, None)]
    frames = [] if isinstance(error, SyntaxError) else frames  # which names file and line
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    why = f"{type(error).__name__}{where} ({' '.join(str(error).split())})"
    return UserError(f"parameter '{parameter}': '{name}' failed with {why}; correct it", parameter=parameter)


def _unimportable(parameter: str, name: str, reason: object) -> UserError:
    why, module = " ".join(str(reason).split()), name.partition(":")[0]
    remedy = "install it, or put it into this folder or on PYTHONPATH"
    return UserError(
        f"parameter '{parameter}': '{name}': module '{module}' cannot be imported ({why}); {remedy}",
        parameter=parameter,
    )
