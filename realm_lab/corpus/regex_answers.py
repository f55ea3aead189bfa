"""Regular expressions as answers (CuratedTREC): no pattern can hang the program, and none fails without a word.

Patterns are PCRE. They are compiled by the package `regex`, a superset of `re` whose matching can be given a time
limit, with the flags of the released code: case-insensitive, Unicode, `^` and `$` at every line.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import regex

Kind = Literal["invalid", "timeout"]
KINDS: tuple[Kind, ...] = ("invalid", "timeout")
Rule = Literal["start", "full", "anywhere"]
RULES: dict[Rule, str] = {"start": "match", "full": "fullmatch", "anywhere": "search"}
TIME_LIMIT_SECONDS = 0.5  # of one match; the patterns of CuratedTREC need microseconds on a passage


class Problem(NamedTuple):
    """A pattern that could not be used as it stands."""

    question: str  # id
    pattern: str
    kind: Kind
    error: str


class Patterns:
    """Compiles each pattern once and remembers the problems.

    An invalid pattern matches nothing (released code). So does one that has run out of time, from then on: a question
    costs at most one time limit for each of its patterns, whatever the number of passages.
    """

    def __init__(self, time_limit_seconds: float = TIME_LIMIT_SECONDS):
        self._time_limit_seconds = time_limit_seconds
        self._compiled: dict[str, Any] = {}  # None: invalid, or given up
        self._errors: dict[str, tuple[Kind, str]] = {}
        self._problems: dict[tuple[str, str], Problem] = {}

    @property
    def problems(self) -> list[Problem]:
        """Each (question, pattern) that could not be used, in the order in which they were met."""
        return list(self._problems.values())

    def matches(self, text: str, patterns: Sequence[str], question: str, rule: Rule = "start") -> bool:
        """Whether one of the patterns matches the text: at its start and with anything behind it (released code:
        `re.match`), the full text, or anywhere in it. `question` is the id that a problem is named by."""
        matched = [self._matches(text, pattern, question, rule) for pattern in patterns]  # all, for their problems
        return any(matched)

    def _matches(self, text: str, pattern: str, question: str, rule: Rule) -> bool:
        compiled = self._compile(pattern)
        found = None
        if compiled is not None:
            try:
                found = getattr(compiled, RULES[rule])(text, timeout=self._time_limit_seconds)
            except TimeoutError:
                self._give_up(pattern, "timeout", f"no end after {self._time_limit_seconds:g} s on {len(text)} letters")
            except (MemoryError, RecursionError) as error:
                self._give_up(pattern, "timeout", f"too much memory ({type(error).__name__})")
        if pattern in self._errors:
            self._problems.setdefault((question, pattern), Problem(question, pattern, *self._errors[pattern]))
        return found is not None

    def _compile(self, pattern: str) -> Any:
        if pattern not in self._compiled:
            try:
                flags = regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
                self._compiled[pattern] = regex.compile(pattern, flags, cache_pattern=False)
            except (regex.error, ValueError, OverflowError, MemoryError, RecursionError) as error:
                self._give_up(pattern, "invalid", " ".join(str(error).split()))
        return self._compiled[pattern]

    def _give_up(self, pattern: str, kind: Kind, error: str) -> None:
        self._compiled[pattern] = None
        self._errors[pattern] = (kind, error)

    def found_in(self, text: str, patterns: Sequence[str], question: str) -> bool:
        """Whether a passage holds an answer: a pattern matches anywhere in it, both in NFD (DPR; DrQA)."""
        normal = unicodedata.normalize("NFD", text)
        return self.matches(
            normal, [unicodedata.normalize("NFD", pattern) for pattern in patterns], question, "anywhere"
        )

    def counts(self) -> dict[str, int]:
        """Patterns with a problem, by its kind."""
        kinds = Counter(problem.kind for problem in self.problems)
        return {kind: kinds[kind] for kind in KINDS}
