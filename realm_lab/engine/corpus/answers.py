"""Answer strings: the normal form of the released code, and whether a passage holds an answer."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from realm_lab.engine.corpus.records import AnswerKind
from realm_lab.engine.corpus.regex_answers import Patterns

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(1 << 14)  # the same passages and answers come many times
def normalise_answer(text: str) -> str:
    """NFD, lower case, without ASCII punctuation, without a/an/the, single blanks (released code, eval_utils)."""
    text = unicodedata.normalize("NFD", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def can_be_scored(answer: str, kind: AnswerKind) -> bool:
    """True if an answer is not empty after normalisation (a regular expression: not blank). Empty answers are equal."""
    return bool(answer.strip() if kind == "regex" else normalise_answer(answer))


def holds_answer(normalised_text: str, answers: Sequence[str]) -> bool:
    """True if a normalised text contains one of the answers as whole words."""
    padded = f" {normalised_text} "
    return any(f" {answer} " in padded for answer in map(normalise_answer, answers) if answer)


def passage_holds(body: str, answers: Sequence[str], kind: AnswerKind, patterns: Patterns, question: str) -> bool:
    """True if a passage contains an answer as whole words, both normalised. A regular expression may match anywhere in
    the passage; `patterns` records faulty expressions under the question's id."""
    if kind == "regex":
        return patterns.found_in(body, answers, question)
    return holds_answer(normalise_answer(body), answers)
