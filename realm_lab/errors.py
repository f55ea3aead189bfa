"""The one exception a user is meant to see, the name that was probably meant, and packages that may be missing."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONGEST_MESSAGE = 1000
KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
NAMES_SHOWN = 20
SIMILAR = 0.61  # of difflib's ratio, 0 to 1: below it a suggestion misleads (--cell is not --cancel)


class UserError(ValueError):
    """Bad input, told in one line that names the file, line or parameter and the remedy.

    The fields are what went wrong (`problem`), the dotted name of a `parameter`, the `path` of a file or the flag that
    it was given with, the `line` there and the `remedy`; "" or None where there is none. The command line prints the
    message alone and exits with code 2. Of a message that quotes a long input the middle is left out.
    """

    def __init__(
        self,
        problem: object = "",
        *,
        parameter: str = "",
        path: object = "",
        line: int | None = None,
        remedy: str = "",
    ):
        self.problem, self.parameter, self.path, self.line, self.remedy = str(problem), parameter, path, line, remedy
        where = f"{path}, line {line}: " if line else f"{path}: " if path else ""
        text = f"{where}{problem}{'; ' * bool(remedy)}{remedy}"
        half = LONGEST_MESSAGE // 2
        super().__init__(text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}")


def in_words(kind: type) -> str:
    """A type as people call it: `a string`."""
    return KINDS.get(kind, "nothing" if kind is type(None) else kind.__name__)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that `name` was probably meant to be, in upper or lower case; "" where none is near."""
    names = {other.casefold(): other for other in known}
    return names.get(next(iter(difflib.get_close_matches(name.casefold(), names, n=1, cutoff=SIMILAR)), ""), "")


def suggestion(name: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the one that was probably meant; where none is near, those that are known."""
    names = list(known)
    if near := nearest(name, names):
        return f"did you mean '{near}'?"
    listed = ", ".join(names[:NAMES_SHOWN]) + ", ..." * (len(names) > NAMES_SHOWN)
    return f"choose from: {listed}" if names else "none exists yet"


@contextmanager
def needs(what: str, package: str) -> Iterator[None]:
    """Import inside it a package without which all but `what` works. UserError: it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = f"{what} needs the package {package}, which is not installed here ({error})"
        raise UserError(f"{missing}; pip install {package}") from None
