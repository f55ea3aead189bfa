"""Read YAML files that people write, as values that keep their line; any fault is a message of one line.

Parameters and studies are short lists of names and values. The rest of YAML is refused: tags, merge keys, and aliases,
which let a few lines hold millions of values.
"""

from __future__ import annotations

import bisect
import datetime
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, ScalarEvent

from realm_lab.errors import UserError, Written, written
from realm_lab.records.validation import cut

# Errors of ruamel for an impossible date, thousands of digits or brackets, and more, are of many types.
UNREADABLE = Exception
LINE_BREAKS = re.compile("[\x85\u2028\u2029]")  # no editor shows them, but to ruamel a comment ends there


def read_yaml(path: Path) -> Any:
    """Read a YAML file of `key: value` lines. UserError: anything else, with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            "no such file", "run from the project's folder, give --params FILE, or `realm-lab init FOLDER`", path=path
        ) from None
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", "make it readable", path=path) from None
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 at byte {error.start}", "save the file as UTF-8", path=path) from None
    document = parse_yaml(text, path)
    if document is None:
        return written({}, path)
    if not isinstance(document, dict):
        raise UserError("expected 'key: value' lines, not a list or a single value", path=path)
    return document


def parse_yaml(text: str, source: object, name: str = "") -> Any:
    """Parse a YAML text. Each value has its line and the path `source`, a file or a flag. `name`: the value's name.
    UserError: not YAML, or YAML beyond names and values."""
    try:
        _check_plain(text, source)
        return _written(_loaded(text), source, name)
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
def _loaded(text: str) -> Any:
    return YAML(typ="rt").load(text)


def _is_unreadable(lines: Sequence[str]) -> bool:
    try:
        YAML(typ="rt").load("\n".join(lines))
    except YAMLError:  # the text is cut off inside a value
        pass
    except UNREADABLE:
        return True
    return False


def _check_plain(text: str, source: object) -> None:
    """Refuse aliases, merge keys, tags and invisible line breaks."""
    if found := LINE_BREAKS.search(text):
        number = text.count("\n", 0, found.start()) + 1
        raise UserError(f"an invisible line break, U+{ord(found[0]):04X}", "delete it", path=source, line=number)
    if not any(mark in text for mark in ("*", "!", "<<")):  # no alias, tag or merge key: no second parse
        return
    for event in YAML(typ="rt").parse(text):
        is_merge = isinstance(event, ScalarEvent) and event.value == "<<" and event.style is None
        if isinstance(event, AliasEvent) or getattr(event, "tag", None) or is_merge:
            kind = "merge keys (<<)" if is_merge else "aliases (*) and tags (!)"
            line = event.start_mark.line + 1 if "\n" in text else None
            raise UserError(f"{kind} are not read", "write the value out", path=source, line=line)


def _written(value: Any, source: object, name: object = "", line: int | None = None) -> Any:
    """Convert ruamel's values to Python's, with their lines. A date becomes the text that it was. UserError: a point in
    time, which does not keep its written form, or a name that is not text, such as a number without quotes; only steps
    of `changes` may be numbers."""
    if isinstance(value, datetime.datetime):
        raise UserError(f"{value} is read as a point in time", "put it in quotes", path=source, line=line)
    if isinstance(value, dict | list):
        marks = value.lc.data or {}  # type: ignore[union-attr]  # of ruamel's dictionaries and lists
        lines = {key: mark[0] + 1 for key, mark in marks.items()}
        keys = value if isinstance(value, dict) else range(len(value))
        inner = {key: _written(value[key], source, key, lines.get(key, line)) for key in keys}
        if isinstance(value, list):
            return written([*inner.values()], source, line)
        has_steps = str(name).rpartition(".")[2] == "changes"
        for key in inner:
            if not isinstance(key, str) and not (has_steps and isinstance(key, int) and not isinstance(key, bool)):
                kinds = {bool: "true or false", int: "a number", float: "a number", datetime.date: "a date"}
                read = next((words for kind, words in kinds.items() if isinstance(key, kind)), "no text")
                problem = f"the name '{cut(str(key))}' is read as {read}"
                raise UserError(problem, "put it in quotes", path=source, line=lines.get(key))
        named = {written(key, source, lines.get(key)): one for key, one in inner.items()}
        return written(named, source, line)
    return written(str(value) if isinstance(value, datetime.date) else value, source, line)


def reach(document: Any, *keys: str | int) -> Any:
    """Follow `keys` into a document as far as they exist; return the last value that has a line, or its name if only
    the name has one."""
    found = document
    for key in keys:
        if not has_key(document, key):
            break
        names = [name for name in document if name == key] if isinstance(document, dict) else []
        document = document[key]
        found = next(one for one in (document, *names, found) if isinstance(one, Written))
    return found


def has_key(document: Any, key: str | int) -> bool:
    """True if a section has this key, or a list this item."""
    if isinstance(document, list):
        return isinstance(key, int) and key < len(document)
    return isinstance(document, dict) and key in document
