"""Regular expressions with classes of Unicode, for `regex`; where a text is plain ASCII `re` finds the same, faster."""

from __future__ import annotations

import re
from typing import Any

import regex

_ASCII = {r"\p{Lu}": "A-Z", r"\p{Ll}": "a-z", r"\p{L}": "A-Za-z", r"\p{M}": "", r"\p{N}": "0-9"}


class Expression:
    """One expression, compiled for any text and for plain ASCII. Its classes of Unicode stand within brackets, and what
    it looks back at has one width, as `re` wants it."""

    def __init__(self, pattern: str):
        self._any, plain = regex.compile(pattern), pattern
        for unicode, ascii_only in _ASCII.items():
            plain = plain.replace(unicode, ascii_only)
        self._plain = re.compile(plain, re.ASCII)

    def of(self, text: str) -> Any:
        """The compiled expression for a text."""
        return self._plain if text.isascii() else self._any
