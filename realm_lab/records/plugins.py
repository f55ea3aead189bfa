"""Plug-ins: the parts that a parameter or a study names, built in or custom.

A plug-in is a kind ("masking scheme"), a name, typed options and code. It is always written as `NAME`,
or with options as `{name: NAME, OPTION: VALUE}`. NAME is a registered name, or `package.module:object` for custom
code. The options are a pydantic model, which is the type of the code's argument `options`:

    class Share(Section):
        share: float = 0.2

    def last_words(request, generator, options: Share): ...

Code without such an argument has no options.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import json
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Generic, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, InstanceOf, PlainSerializer, ValidationError, WithJsonSchema

from realm_lab.errors import UserError, lacks_engine, placed, suggestion
from realm_lab.records.code import MISSING, OURS, outside_digest, reach_working_folder
from realm_lab.records.opened import watch
from realm_lab.records.validation import problem_of

GROUP = "realm_lab.plugins"  # group of entry points
Code = TypeVar("Code", bound=Callable[..., Any])


@dataclass(frozen=True)
class Choice:
    """A plug-in as it is written: its name and the given options, whose names keep their line. `resolved`: parameter ->
    plug-in that `Kind.choose` found for it, so that each is searched for only once."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    resolved: dict[str, Plugin[Any]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def read(cls, value: Any) -> Choice:
        """Read `NAME` or `{name: NAME, OPTION: VALUE}`. ValueError: it is neither."""
        if isinstance(value, Choice):
            return value
        given = {"name": value} if isinstance(value, str) else value
        if not isinstance(given, Mapping) or not isinstance(given.get("name"), str) or not given["name"]:
            raise ValueError("write NAME, or {name: NAME, OPTION: VALUE}")
        return cls(given["name"], plain_options({key: inner for key, inner in given.items() if key != "name"}))

    def plain(self) -> str | dict[str, Any]:
        """The written form; only the name if no option is given."""
        options = {str(name): value for name, value in self.options.items()}
        return {"name": str(self.name), **options} if options else str(self.name)


ChoiceAsWritten = Choice | str | Mapping[str, Any]
"""The forms that `Choice.read` accepts."""


def option_suffix(choice: Choice) -> str:
    """The options as the end of a name, such as `_k_5`; "" if there are none."""
    text = "".join(f"_{option}_{value}" for option, value in choice.options.items())
    return re.sub(r"[^\w.-]+", "_", text).rstrip("_")


ChoiceField = Annotated[
    InstanceOf[Choice],
    BeforeValidator(Choice.read),
    PlainSerializer(Choice.plain),
    WithJsonSchema({"type": "string", "choice": True}),
]
"""The type of a parameter that names a plug-in."""


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of options, which may have subtypes from the YAML reader, to plain Python types. ValueError: a
    value that JSON does not have, such as a date or an infinity."""
    plain: dict[str, Any] = {}
    for name, value in options.items():
        try:
            plain[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            raise ValueError(f"{name} should be text, a finite number, true or false, or a list of these") from None
    return plain


@dataclass(frozen=True)
class Plugin(Generic[Code]):
    """A plug-in as it is declared, or as a parameter names it, with its options. `target` is `package.module:object`,
    imported when it is used. An error in custom code becomes a UserError with the line of the code."""

    name: str
    target: str
    model: type[BaseModel] | str | None = None  # type of its options; text: `package.module:Class`, imported if chosen
    code: Code | None = None  # None: not imported yet
    parameter: str = ""  # the parameter that names it
    options: BaseModel | None = None

    @property
    def is_own(self) -> bool:
        """True for custom code."""
        return not self.target.startswith(f"{OURS}.") or ":" in self.name

    @property
    def source(self) -> str | dict[str, str] | None:
        """The digest of the module of custom code, or module -> digest if that imports modules of its package. None for
        a part of realm_lab."""
        if not self.is_own:
            return None
        found = outside_digest(self.module)
        if found == MISSING:
            raise _unimportable(self.parameter, self.target, "no Python file of that name")
        return found

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def named(self) -> str | dict[str, Any]:
        """The name as it enters keys; for custom code, the name with the code's digest."""
        source = self.source
        return self.name if source is None else {"name": self.name, "source": source}

    def __call__(self, *given: Any) -> Any:
        """Call the code with the arguments of its kind, and its options."""
        options = {} if self.options is None else {"options": self.options}
        with self.running():
            return self.load()(*given, **options)

    def running(self) -> AbstractContextManager[None]:
        """Return a context that turns errors of custom code into UserErrors."""
        return calling(self.parameter, self.name, self.target) if self.is_own else nullcontext()

    def load(self) -> Code:
        """Return the code, imported if needed. ImportError: a part of realm_lab needs a missing package."""
        if self.code is not None:
            return self.code
        module, _, name = self.target.partition(":")
        code: Code = getattr(importlib.import_module(module), name)
        return code

    def options_model(self) -> type[BaseModel] | None:
        """The type of the options; None: the plug-in has no options."""
        if not isinstance(self.model, str):
            return self.model
        found: type[BaseModel] = load_object(self.name, self.model)
        return found


class Kind(dict[str, Plugin[Code]]):
    """The registered plug-ins of one kind, by name. `what` and `form` are the words for one ("masking scheme") and
    its code ("function"); `takes` are the arguments that the code is called with, before its options."""

    def __init__(self, what: str, form: str, takes: str = ""):
        super().__init__()
        self.what, self.form, self.takes = what, form, takes

    def declare(self, name: str, target: str, options: type[BaseModel] | str | None = None) -> None:
        """Add a plug-in by `package.module:object`, which is imported when it is used. UserError: the name is taken."""
        self._add(Plugin(name, target, options))

    def register(self, name: str) -> Callable[[Code], Code]:
        """Return a decorator that adds a plug-in. UserError: the name is taken, or the code cannot be called."""

        def add(code: Code) -> Code:
            options = self.examine(f"register {self.what}", name, code)
            self._add(Plugin(name, f"{code.__module__}:{code.__qualname__}", options, code))
            return code

        return add

    def _add(self, plugin: Plugin[Code]) -> None:
        is_taken = plugin.name in self and self[plugin.name].target != plugin.target  # a module may be imported again
        if ":" in plugin.name or is_taken:
            reason = f"is registered twice, by {self[plugin.name].target} and" if is_taken else "has a colon, in"
            raise UserError(f"{self.what} '{plugin.name}' {reason} {plugin.target}; choose another name")
        self[plugin.name] = plugin

    def find(self, parameter: str, name: str) -> Plugin[Code]:
        """Find the plug-in of that name and import custom code. UserError: there is none, or it cannot be imported or
        called."""
        if name not in self and ":" not in name:
            import_plugins()
        if name in self:
            plugin = replace(self[name], parameter=parameter)
            if plugin.code is not None or plugin.target.startswith(f"{OURS}."):
                return plugin
        elif ":" in name:
            plugin = Plugin(name, name, parameter=parameter)
        else:
            raise UserError(
                f"parameter '{parameter}': no {self.what} '{name}'; {suggestion(name, sorted(self))} "
                f"(or package.module:{self.form})",
                parameter=parameter,
            )
        code = cast(Code, own_code(parameter, plugin.target))
        return replace(plugin, code=code, model=self.examine(parameter, name, code))

    def examine(self, parameter: str, name: str, code: Code) -> type[BaseModel] | None:
        """Return the type of the options that `code` takes, if any. UserError: it cannot be called with the arguments
        of this kind."""
        options = options_type(parameter, name, code)
        check_takes(parameter, name, code, self.takes, has_options=options is not None)
        return options

    def choose(self, parameter: str, choice: Choice) -> Plugin[Code]:
        """Find the plug-in that `parameter` names and check its options, once. Custom code is imported now, a part of
        realm_lab when it is used. UserError: no such plug-in, it cannot be imported or called, or a wrong option."""
        if parameter not in choice.resolved:
            with placed(choice.name):
                plugin = self.find(parameter, choice.name)
                options = checked_options(parameter, choice, plugin.options_model())
            choice.resolved[parameter] = replace(plugin, options=options)
        return choice.resolved[parameter]


def import_modules(parameter: str, modules: Iterable[str]) -> None:
    """Import the modules that `parameter` lists, which register plug-ins. UserError: one of them cannot be imported."""
    for name in modules:
        _import(parameter, name)


@functools.cache
def import_plugins() -> None:
    """Import the modules that installed packages name as entry points of the group `realm_lab.plugins`, which register
    plug-ins. UserError: one of them fails."""
    for module, name in _entry_points().items():
        _import(f"entry point {name} of {GROUP}", module)


@functools.cache
def _entry_points() -> dict[str, str]:
    """Return module -> name of each entry point."""
    return {
        entry.module: entry.name
        for package in importlib.metadata.distributions()  # `entry_points()` skips a second package of the same name
        for entry in package.entry_points
        if entry.group == GROUP
    }


def plugin_modules(named: Iterable[str]) -> tuple[str, ...]:
    """Return the custom modules that register plug-ins: those named in a project, and those of entry points."""
    import_plugins()
    return (*named, *(module for module in _entry_points() if not module.startswith(f"{OURS}.")))


def files_of_plugins(name: str) -> list[Path]:
    """Return the files called `name` next to the modules that entry points name. UserError: a module fails."""
    import_plugins()
    paths = (Path(str(sys.modules[module].__file__)).parent / name for module in _entry_points())
    return [path for path in paths if path.is_file()]


def checked_options(parameter: str, choice: Choice, kind: type[BaseModel] | None) -> BaseModel | None:
    """Return a plug-in's options as an object of type `kind` or None. UserError: an unknown option or a wrong value."""
    known = kind.model_fields if kind else {}
    for option in choice.options:
        if option not in known:
            remedy = suggestion(option, known) if known else "it has none"
            problem = f"parameter '{parameter}': no option '{option}' of '{choice.name}'; {remedy}"
            raise UserError(problem, parameter=f"{parameter}.{option}", value=option)
    try:
        return kind(**choice.options) if kind else None
    except ValidationError as error:
        text, names, _ = problem_of(error)
        part = "" if parameter.endswith(f".{choice.name}") else f"'{choice.name}': "
        problem = f"parameter '{parameter}': {part}{text}"
        raise UserError(problem, parameter=f"{parameter}.{names[0]}") from None


def options_type(parameter: str, name: str, code: Callable[..., Any]) -> type[BaseModel] | None:
    """The type of the argument `options`; None if there is no such argument. UserError: the type is not a model."""
    try:
        argument = inspect.signature(code).parameters.get("options")
    except ValueError:  # some functions in C have no signature
        return None
    if argument is None or argument.kind is argument.VAR_KEYWORD:
        return None

    def probe() -> None: ...

    probe.__annotations__ = {"options": argument.annotation}
    function = code.__init__ if isinstance(code, type) else code  # type: ignore[misc]  # mypy takes it for an instance
    try:
        found = typing.get_type_hints(probe, getattr(function, "__globals__", {}))["options"]
    except (NameError, AttributeError):
        found = None
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        remedy = "write options: NAME, a subclass of realm_lab.Section at the top of the module"
        problem = f"parameter '{parameter}': '{name}': the argument 'options' has no type that declares options"
        raise UserError(problem, parameter=parameter, remedy=remedy)
    return found


def load_object(parameter: str, target: str) -> Any:
    """Import `package.module:object`; None if the module has no such name. UserError: the module cannot be
    imported."""
    return getattr(_import(parameter, target), target.partition(":")[2], None)


def _import(parameter: str, target: str) -> ModuleType:
    """Import the module of `package.module` or `package.module:object`."""
    module = target.partition(":")[0]
    reach_working_folder()
    with placed(target):
        if not all(name.isidentifier() for name in module.split(".")):
            raise _unimportable(parameter, target, "that is no name of a module")
        watch()
        try:
            return importlib.import_module(module)
        except ImportError as error:
            if lacks_engine(error):
                raise
            raise _unimportable(parameter, target, error) from error
        except UserError as error:
            raise UserError(f"parameter '{parameter}': '{target}': {error}", parameter=parameter) from None
        except Exception as error:  # importing runs the user's code, which may raise anything
            raise _failed(parameter, target, target, error) from error


def own_code(parameter: str, name: str) -> Callable[..., Any]:
    """Import the function or class that `parameter` names as `package.module:object`. UserError: there is none."""
    code = load_object(parameter, name)
    if not callable(code):
        module, _, attribute = name.partition(":")
        file = getattr(sys.modules[module], "__file__", module)
        problem = f"parameter '{parameter}': '{name}': no function or class '{attribute}' in {file}"
        raise UserError(problem, parameter=parameter)
    found: Callable[..., Any] = code
    return found


def check_takes(parameter: str, name: str, code: Callable[..., Any], takes: str, *, has_options: bool = False) -> None:
    """Refuse a function that cannot be called with these arguments."""
    given, options = takes.split(", ") if takes else [], {"options": None} if has_options else {}
    try:
        signature = inspect.signature(code)
    except ValueError:  # some functions in C have no signature
        return
    try:
        signature.bind(*given, **options)
    except TypeError:
        what, called = f"parameter '{parameter}': '{name}'", ", ".join([*given, *options])
        problem = f"{what} takes {signature}, but it is called with ({called}); let it accept these"
        raise UserError(problem, parameter=parameter) from None


@contextmanager
def calling(parameter: str, name: str, target: str) -> Iterator[None]:
    """Turn an error that custom code raises inside into a UserError with the line that raised it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # it may raise anything
        raise _failed(parameter, name, target, error) from error


def _failed(parameter: str, name: str, target: str, error: Exception) -> UserError:
    """Make the UserError for an error of custom code, with the last line of the traceback in the module of `target`."""
    file = getattr(sys.modules.get(target.partition(":")[0]), "__file__", None)  # None: the import failed
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if file in (frame.filename, None)]
    frames = [] if isinstance(error, SyntaxError) else frames  # its message names file and line
    where = f" in {frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno}" if frames else ""
    why = f"{type(error).__name__}{where} ({' '.join(str(error).split())})"
    return UserError(f"parameter '{parameter}': '{name}' failed with {why}; correct it", parameter=parameter)


def _unimportable(parameter: str, name: str, reason: object) -> UserError:
    why, module = " ".join(str(reason).split()), name.partition(":")[0]
    remedy = "install it, or put it into this folder or on PYTHONPATH"
    problem = f"parameter '{parameter}': '{name}': module '{module}' cannot be imported ({why}); {remedy}"
    return UserError(problem, parameter=parameter)
