"""An answer to a question, with the passages behind it. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """One passage and its best span."""

    row: int  # of the knowledge corpus
    log_prior: float  # log p(z|x): the retriever's, or z's share of the joint softmax
    log_span: float  # log p(s|z,x) of the best span
    span: tuple[int, int]  # characters of the body
    text: str
    wordpieces: tuple[int, ...]


class Answer(NamedTuple):
    """An answer; `candidates[best]` is the passage that it was found in. A system without passages has none."""

    text: str
    best: int = 0
    candidates: Sequence[Candidate] = ()

    @property
    def source(self) -> Candidate | None:
        """The passage that contains the answer."""
        return self.candidates[self.best] if self.candidates else None
