"""Who embeds the passages of an index generation: a protocol, and the trainer itself as the simplest builder."""

# Shapes: N passages, D embedding size

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from realm_lab.models.embedder import Embedder
from realm_lab.retrieval.retriever import Retriever


class Builder(Protocol):
    """Makes generations from snapshots of the weights. Every rank calls the same methods in the same order."""

    restarts: int  # how often the builder's process had to be started again

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has gone wrong so far, for the status of the run."""

    def submit(self, step: int, embedder: Embedder) -> None:
        """Have a generation built from the weights of `step`, which must not change until it is in use.

        Submitting a generation that is being built, or is there already, changes nothing.

        Raises:
            UserError: as `tend`.
        """

    def is_built(self, step: int) -> bool:
        """Whether `wait` would return at once."""

    def wait(self, step: int, embedder: Embedder) -> Tensor:
        """The embeddings of a submitted generation, float32 [N, D]; `embedder` has the weights of `step`.

        Raises:
            UserError: it cannot be built.
        """

    def tend(self) -> None:
        """Look after the builder; called before every step.

        Raises:
            UserError: it has failed too often.
        """

    def in_use(self, step: int) -> None:
        """The generation of `step` is searched from now on, older ones no longer."""


class InlineBuilder:
    """The trainer embeds when the index is needed."""

    restarts = 0
    warnings = ()

    def __init__(self, retriever: Retriever):
        self._retriever = retriever

    def submit(self, step: int, embedder: Embedder) -> None:
        """Nothing to do yet: the snapshot is smaller than the embeddings."""

    def is_built(self, step: int) -> bool:
        """It is never late."""
        return True

    def wait(self, step: int, embedder: Embedder) -> Tensor:
        """Embed now."""
        return self._retriever.embed_passages(embedder=embedder)

    def tend(self) -> None:
        """There is no one to look after."""

    def in_use(self, step: int) -> None:
        """Nothing is kept."""
