"""YAML files that people write: read within bounds, with the line of every key; anything wrong is one line.

Parameters and studies are short lists of names and values. What YAML has beyond that is refused: tags, and aliases of
aliases, with which a few lines hold millions of values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

from realm_lab.core.records import cut
from realm_lab.errors import UserError

MAX_BYTES = 1_000_000
MAX_DEPTH = 30
MAX_ALIASES = 100


def read_yaml(path: Path) -> Any:
    """A YAML file of `key: value` lines, with their places; anything else is a UserError that names file and line."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: {path.stat().st_size:,} bytes, more than the {MAX_BYTES:,} of a parameter file")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; run from the project's folder, give --params FILE, or `realm-lab init FOLDER`"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give another with --params FILE") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    document = parse_yaml(text, str(path))
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected 'key: value' lines, found a {type(document).__name__}")
    if strange := [key for key in document if not isinstance(key, str)]:
        raise UserError(f"{path}: unknown parameter '{cut(str(strange[0]))}'; names are words")
    return document


def parse_yaml(text: str, source: str, kind: str = "rt") -> Any:
    """The value of a YAML text. `kind`: "rt" keeps the lines of keys, "safe" gives plain values.

    UserError: not YAML, or YAML beyond names and values; it names `source` and the line.
    """
    try:
        _check_bounds(text, source)
        return YAML(typ=kind).load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark and "\n" in text else ""
        problem = str(getattr(error, "problem", None) or str(error).splitlines()[0])
        if isinstance(error, DuplicateKeyError):
            problem = re.sub(" with value.*", "; keep one of the two, or rename it", problem, flags=re.DOTALL)
        raise UserError(f"{source}{line}: not valid YAML ({cut(problem, 200)})") from None
    except UserError:
        raise
    except (ValueError, OverflowError) as error:  # an impossible date, a number of thousands of digits
        raise UserError(f"{source}: a value cannot be read ({cut(str(error), 200)}); put text in quotes") from None


def _check_bounds(text: str, source: str) -> None:
    """Depth, tags, and aliases: one inside of what has an anchor itself could multiply without end."""
    anchored: list[bool] = []  # of the collections that are open, the outermost first
    aliases = 0
    for event in YAML(typ="rt").parse(text):
        line = f"{source}, line {event.start_mark.line + 1}" if "\n" in text else source
        if isinstance(event, CollectionEndEvent):
            anchored.pop()
        elif isinstance(event, CollectionStartEvent):
            anchored.append(event.anchor is not None)
        elif isinstance(event, AliasEvent):
            aliases += 1
            if any(anchored) or aliases > MAX_ALIASES:
                raise UserError(f"{line}: aliases (*) in what has an anchor (&), or too many; write the values out")
        if getattr(event, "tag", None):
            raise UserError(f"{line}: tags (!) are not read; write the plain value")
        if len(anchored) > MAX_DEPTH:
            raise UserError(f"{line}: nested more than {MAX_DEPTH} deep; write it flatter")


def line_of(document: Any, location: Sequence[str]) -> int | None:
    """The 1-based line of a key in the YAML document, or of its nearest section."""
    line = None
    for part in location:
        if not isinstance(document, dict) or part not in document:
            break
        marks = getattr(document, "lc", None)
        if marks is not None and part in marks.data:
            line = marks.data[part][0] + 1
        document = document[part]
    return line
