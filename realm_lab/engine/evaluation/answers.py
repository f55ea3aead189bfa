"""An answer to a question, with the passages behind it. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """One passage and its best span."""

    row: int  # of the knowledge corpus
    log_prior: float  # log p(z|x), as in fine-tuning (models/spans.py)
    log_span: float  # log p(s|z,x) of the best span
    span: tuple[int, int]  # characters of the body
    text: str
    wordpieces: tuple[int, ...]


class Answer(NamedTuple):
    """An answer, found in the passage `candidates[best]`. A system without passages has no candidates."""

    text: str
    best: int = 0
    candidates: Sequence[Candidate] = ()

    @property
    def source(self) -> Candidate | None:
        """The passage that contains the answer."""
        return self.candidates[self.best] if self.candidates else None
