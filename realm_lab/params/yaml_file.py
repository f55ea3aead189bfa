"""Read YAML files that people write, with the line of every key; any fault is one line.

Parameters and studies are short lists of names and values. The rest of YAML is refused: tags, merge keys, and aliases,
which let a few lines hold millions of values.
"""

from __future__ import annotations

import bisect
import datetime
import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, ScalarEvent

from realm_lab.core.records import cut
from realm_lab.errors import UserError, in_words

# An impossible date, thousands of digits or brackets; and other inputs that ruamel fails on.
UNREADABLE = Exception
LINE_BREAKS = re.compile("[\x85\u2028\u2029]")  # which no editor shows; to ruamel, a comment ends there


def read_yaml(path: Path) -> Any:
    """A YAML file of `key: value` lines with their line numbers; anything else is a UserError with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            "no such file", "run from the project's folder, give --params FILE, or `realm-lab init FOLDER`", path=path
        ) from None
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", "give another with --params FILE", path=path) from None
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 at byte {error.start}", "save the file as UTF-8", path=path) from None
    document = parse_yaml(text, path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UserError(f"expected 'key: value' lines, got {in_words(type(document))}", path=path)
    return document


def parse_yaml(text: str, source: object, kind: str = "rt", name: str = "") -> Any:
    """Parse a YAML text. `kind`: "rt" keeps the lines of keys, "safe" gives plain values. `name`: that of the value.

    UserError: not YAML, or YAML beyond names and values; it names `source` and the line.
    """
    try:
        _check_plain(text, source)
        document = _loaded(text, kind)
        _check_names(document, source, name)
        return document
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark and "\n" in text else None
        problem = str(getattr(error, "problem", None) or str(error).splitlines()[0])
        if isinstance(error, DuplicateKeyError):
            problem = re.sub(" with value.*", "; keep one of the two, or rename it", problem, flags=re.DOTALL)
        raise UserError(f"not valid YAML ({cut(problem, 200)})", path=source, line=line) from None
    except UserError:
        raise
    except UNREADABLE as error:
        lines = text.splitlines()
        # Such an error has no line number: use the first line up to which the text cannot be read.
        number = bisect.bisect_left(range(len(lines)), True, key=lambda last: _is_unreadable(lines[: last + 1])) + 1
        line = number if "\n" in text else None
        problem = f"a value cannot be read ({cut(str(error), 200)})"
        raise UserError(problem, "put text in quotes", path=source, line=line) from None


@functools.lru_cache(maxsize=32)  # a study reads params.yaml for each cell and trial; nobody changes a document
def _loaded(text: str, kind: str) -> Any:
    return YAML(typ=kind, pure=True).load(text)


def _is_unreadable(lines: Sequence[str]) -> bool:
    try:
        YAML(typ="rt").load("\n".join(lines))
    except YAMLError:  # cut off within a value that goes on
        pass
    except UNREADABLE:
        return True
    return False


def _check_plain(text: str, source: object) -> None:
    """Refuse aliases, tags and invisible line breaks."""
    if found := LINE_BREAKS.search(text):
        number = text.count("\n", 0, found.start()) + 1
        raise UserError(f"an invisible line break, U+{ord(found[0]):04X}", "delete it", path=source, line=number)
    if not any(mark in text for mark in ("*", "!", "<<")):  # the text is not parsed twice
        return
    for event in YAML(typ="rt").parse(text):
        is_merge = isinstance(event, ScalarEvent) and event.value == "<<" and event.style is None
        if isinstance(event, AliasEvent) or getattr(event, "tag", None) or is_merge:
            kind = "merge keys (<<)" if is_merge else "aliases (*) and tags (!)"
            line = event.start_mark.line + 1 if "\n" in text else None
            raise UserError(f"{kind} are not read", "write the value out", path=source, line=line)


def _check_names(value: Any, source: object, above: str = "") -> None:
    """Refuse names that are not text, such as a date or a number without quotes, except steps of `changes`, and points
    in time, which do not keep their written form."""
    is_section = isinstance(value, dict)
    for key, inner in value.items() if is_section else enumerate(value) if isinstance(value, list) else ():
        line = line_of(value, [key])
        is_step = above.rpartition(".")[2] == "changes" and type(key) is int
        if is_section and not isinstance(key, str) and not is_step:
            kinds = {bool: "true or false", int: "a number", float: "a number", datetime.date: "a date"}
            read = next((words for kind, words in kinds.items() if isinstance(key, kind)), "no text")
            raise UserError(f"the name '{cut(str(key))}' is read as {read}", "put it in quotes", path=source, line=line)
        if isinstance(inner, datetime.datetime):
            raise UserError(f"{inner} is read as a point in time", "put it in quotes", path=source, line=line)
        _check_names(inner, source, str(key))


def line_of(document: Any, keys: Iterable[str | int]) -> int | None:
    """Return the 1-based line of a key or item of a YAML document, or of the nearest one above it."""
    line = None
    for key in keys:
        if not has_key(document, key):
            break
        marks = getattr(document, "lc", None)
        if marks is not None and key in (marks.data or {}):
            line = marks.data[key][0] + 1
        document = document[key]
    return line


def has_key(document: Any, key: str | int) -> bool:
    """True if a section has this key, or a list this item."""
    if isinstance(document, list):
        return isinstance(key, int) and key < len(document)
    return isinstance(document, dict) and key in document
