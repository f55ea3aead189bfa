"""Regular expressions as answers (CuratedTREC): no pattern can hang the program, and none fails silently.

The released code compiles patterns with Python's `re`: case-insensitive, Unicode, `^` and `$` at every line. Here `re`
only checks that a pattern is valid. The package `regex` matches it, since `regex` has a time limit. A pattern that
`regex` would read in another way (`[[:alpha:]]`, `(?:a){e<=1}`) counts as invalid, and is in `Patterns.problems`.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import regex

Kind = Literal["invalid", "timeout", "empty"]
KINDS: tuple[Kind, ...] = ("invalid", "timeout", "empty")
TIME_LIMIT_SECONDS = 0.5  # of one match; the patterns of CuratedTREC need microseconds on a passage
_FUZZY = re.compile(r"(?<!\\)\{\s*(?:\d+\s*<=?\s*)?[eids]\b")


def compile_pattern(pattern: str) -> Any:
    """Compile a pattern for the package `regex`; a ValueError explains why it is invalid."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # about sets that a later version of `re` may read as nested
            re.compile(pattern, re.IGNORECASE | re.UNICODE | re.MULTILINE)
        if _FUZZY.search(pattern):
            raise ValueError("'{e' and the like mean another thing here than in Python's re; escape the '{'")
        return regex.compile(pattern, regex.IGNORECASE | regex.UNICODE | regex.MULTILINE, cache_pattern=False)
    except (re.error, regex.error, FutureWarning, OverflowError, MemoryError, RecursionError, ValueError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None


class Problem(NamedTuple):
    """A pattern that cannot be used as it is, or is `empty`: it matches the empty text, and so every text."""

    question: str  # id
    pattern: str
    kind: Kind
    error: str


class Patterns:
    """Compiles each pattern once and remembers the problems.

    An invalid pattern matches nothing (released code). A pattern that ran out of time or memory matches nothing from
    then on: a pattern costs at most one time limit, whatever the number of passages. An `empty` pattern, such as `.*`
    or `Paris|`, matches everything, as in the released code, and is among the `problems`.
    """

    def __init__(self, time_limit_seconds: float = TIME_LIMIT_SECONDS):
        self._time_limit_seconds = time_limit_seconds
        self._compiled: dict[str, Any] = {}
        self._errors: dict[str, tuple[Kind, str]] = {}  # of the patterns that are not used
        self._empty: set[str] = set()
        self._problems: dict[tuple[str, str], Problem] = {}

    @property
    def problems(self) -> list[Problem]:
        """Each (question, pattern) with a problem, in the order in which they were met."""
        return list(self._problems.values())

    def counts(self) -> dict[str, int]:
        """Count the problems by kind."""
        kinds = [problem.kind for problem in self.problems]
        return {kind: kinds.count(kind) for kind in KINDS}

    def matches(self, text: str, patterns: Sequence[str], question: str) -> bool:
        """True if a pattern matches from the start of an answer, with anything after it (released code: `re.match`).

        `question`: the id that is recorded with a problem."""
        matched = [self._try("match", text, pattern, question) for pattern in patterns]  # try all, to record problems
        return any(matched)

    def found_in(self, text: str, patterns: Sequence[str], question: str) -> bool:
        """True if a passage contains an answer: a pattern matches anywhere in it, both in NFD (DPR; DrQA)."""
        normal, *in_nfd = (unicodedata.normalize("NFD", each) for each in (text, *patterns))
        found = [self._try("search", normal, pattern, question) for pattern in in_nfd]
        return any(found)

    def _try(self, method: Literal["match", "search"], text: str, pattern: str, question: str) -> bool:
        if pattern not in self._compiled and pattern not in self._errors:
            try:
                self._compiled[pattern] = compiled = compile_pattern(pattern)
                if compiled.search("") is not None:
                    self._empty.add(pattern)
            except ValueError as error:
                self._errors[pattern] = "invalid", str(error)
        if pattern in self._empty:
            problem = Problem(question, pattern, "empty", "matches the empty text, and so everything")
            self._problems.setdefault((question, pattern), problem)
        if pattern not in self._errors:
            try:
                return getattr(self._compiled[pattern], method)(text, timeout=self._time_limit_seconds) is not None
            except (TimeoutError, MemoryError, RecursionError) as error:
                reason = f"no end after {self._time_limit_seconds:g} s on {len(text)} letters"
                self._errors[pattern] = "timeout", reason if isinstance(error, TimeoutError) else "too much memory"
        self._problems.setdefault((question, pattern), Problem(question, pattern, *self._errors[pattern]))
        return False
