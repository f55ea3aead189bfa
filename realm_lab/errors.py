"""UserError, the one exception that a user is meant to see; values with their line in a file; suggestions for a wrong
name; packages that may be missing."""

import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

# Modules that the extra `engine` brings
ENGINE = (
    "torch transformers tokenizers safetensors huggingface_hub mmh3 pyarrow backports sentencex regex bm25s Stemmer"
).split()
LONGEST_MESSAGE = 1000
KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
NAMES_SHOWN = 20
SIMILAR = 0.61  # of difflib's ratio, 0 to 1: below it a suggestion misleads (--cell is not --cancel)


class Written:
    """Mixin for the type of a value that a person wrote: `path` is the file or flag, `line` the line in it.

    Booleans and None cannot have such a type; in a dictionary their names have the line. Copies and pickles are plain.
    """

    path: object = ""
    line: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        kind: Any = type(self).__bases__[1]
        return kind, (kind(self),)


KINDS_WRITTEN = {kind: type(kind.__name__, (Written, kind), {}) for kind in (str, int, float, list, dict)}


def written(value: Any, path: object, line: int | None = None) -> Any:
    """Return a value with the path and the line where a person wrote it; booleans and other types as they are."""
    kind = next((kind for kind in KINDS_WRITTEN if isinstance(value, kind)), None)
    if kind is None or isinstance(value, bool):
        return value
    found: Any = KINDS_WRITTEN[kind](value)
    found.path, found.line = path, line
    return found


def like(value: Any, other: object) -> Any:
    """Return a value with the path and line of another one, if that has them."""
    return written(value, other.path, other.line) if isinstance(other, Written) else value


def as_written(made: Any, given: Any) -> Any:
    """Return a checked value `made`, and the names and values in it, with the lines of the `given` value."""
    if isinstance(given, list) and isinstance(made, list):
        made = [as_written(*pair) for pair in zip(made, given, strict=True)]
    elif isinstance(given, dict) and isinstance(made, dict):
        made = {name: as_written(one, given[name]) for name, one in zip(given, made.values(), strict=True)}
    return like(made, given)


class UserError(ValueError):
    """Invalid user input. The message is one line that names the file, line or parameter, and the remedy.

    Fields: the fault (`problem`), the `remedy`, the dotted name of a `parameter`, the `path` of a file or the flag that
    named it, the `line` in it and the `part` of this line or file (a record, a column); "" or None if unknown. The
    command line prints only the message and exits with code 2. Long messages are shortened in the middle. `value`: a
    written value, which gives path and line. `known`: the names that it might have been, for the remedy.
    `others`: further faults of the same input that were found with it, which `realm-lab doctor` lists.
    """

    others: Sequence["UserError"] = ()

    def __init__(
        self,
        problem: object = "",
        remedy: str = "",
        *,
        parameter: str = "",
        path: object = "",
        line: int | None = None,
        part: str = "",
        value: object = None,
        known: Collection[str] | None = None,
    ):
        if isinstance(value, Written):
            path, line = value.path, value.line
        if known is not None and (known or not remedy):
            remedy = suggestion(str(value), known)
        self.is_placed = isinstance(value, Written)
        self.problem, self.remedy, self.parameter = str(problem), remedy, parameter
        self.path, self.line, self.part = path, line, part
        text = f"{self.fault}{'; ' * bool(remedy)}{remedy}"
        half = LONGEST_MESSAGE // 2
        super().__init__(text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}")

    @property
    def fault(self) -> str:
        """The message without the remedy: `FILE, line 3, column 5: PROBLEM`, or the parts of it that are known."""
        where = ", ".join(filter(None, (str(self.path), f"line {self.line}" if self.line else "", self.part)))
        return f"{where}: {self.problem}" if where else self.problem


@contextmanager
def placed(value: object, prefix: str = "") -> Iterator[None]:
    """Attach the path and line of a written value, and a prefix, to a UserError raised inside without a path."""
    try:
        yield
    except UserError as error:
        if error.path or not isinstance(value, Written):
            raise
        raise UserError(f"{prefix}{error.problem}", error.remedy, parameter=error.parameter, value=value) from None


def in_words(kind: type) -> str:
    """A type as people call it: `a string`."""
    return KINDS.get(kind, "nothing" if kind is type(None) else kind.__name__)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name closest to `name`, ignoring case; "" if none is close."""
    names = {other.casefold(): other for other in known}
    return names.get(next(iter(difflib.get_close_matches(name.casefold(), names, n=1, cutoff=SIMILAR)), ""), "")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the closest known name, or else a list of the first known ones."""
    names = list(known)
    if near := nearest(name, names):
        return f"did you mean '{near}'?"
    listed = ", ".join(names[:NAMES_SHOWN]) + ", ..." * (len(names) > NAMES_SHOWN)
    return f"choose from: {listed}" if names else "none exists yet"


def lacks_engine(error: BaseException) -> TypeGuard[ModuleNotFoundError]:
    """True if the error is that a module of the extra `engine` is not installed."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in ENGINE


def install_line(extra: str) -> str:
    """The command that installs an extra of pyproject.toml; pip adds it to the realm_lab that is installed."""
    return f"pip install 'realm_lab[{extra}]'"


@contextmanager
def needs(what: str, package: str, extra: str = "") -> Iterator[None]:
    """Enclose the import of a package that only `what` needs. UserError: the package is not installed. `extra`: the
    extra of realm_lab that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        remedy = install_line(extra) if extra else f"pip install {package}"
        raise UserError(f"{what} needs {package}, which is not installed ({error})", remedy=remedy) from None
