"""Base classes of systems that write their answer. Heavy imports are inside the methods, so that declaring a system
costs nothing."""

# Shapes: Q questions, K passages

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.evaluation.answers import Answer
from realm_lab.engine.params.sections import Fraction, NonNegative, Positive, Section
from realm_lab.engine.systems.reading import PassageSystem
from realm_lab.engine.systems.registry import Retrieved, Stage, System

if TYPE_CHECKING:
    from torch import Tensor, nn

    from realm_lab.contrib.rivals.models.decoder import Example, Generator
    from realm_lab.contrib.rivals.writing import Written
    from realm_lab.engine.models.embedder import Embedder
    from realm_lab.engine.retrieval.retriever import Retriever
    from realm_lab.engine.systems.context import Context, Knowledge


class WriterOptions(Section):
    """Options of the systems that write from passages."""

    denoise_steps: NonNegative = 1_000_000
    """Steps in which the decoder learns to write (the papers start from T5 or BART)."""
    denoise_batch_size: Positive = 128
    """Texts per step of denoising."""
    denoise_learning_rate: Fraction = 1e-3
    """Peak learning rate of denoising."""


DENOISE = Stage(
    "denoise",
    ("model", *(f"system_options.{name}" for name in WriterOptions.model_fields)),
    "realm_lab.contrib.rivals.training.writers:denoise",
    uses_ranks=False,
)
FINETUNE = Stage(
    "finetune",
    ("system", "model", "finetune.retriever", "finetune.max_span_wordpieces"),
    "realm_lab.contrib.rivals.training.writers:finetune",
    uses_ranks=False,
)


class PassageWriter(PassageSystem, ABC):
    """An encoder-decoder that writes from passages; subclasses choose the method and the passages.

    Its options are WriterOptions with `steps`, `batch_size`, `learning_rate` and `passages`. The models are those
    after training and `knowledge` is the run's corpus, unless others are given.
    """

    only_bert = True

    def __init__(
        self,
        context: Context,
        model: Generator | None = None,
        embedder: Embedder | None = None,
        knowledge: Knowledge | None = None,
    ):
        super().__init__(context, knowledge)
        self._model, self._embedder = model, embedder

    @property
    def objective(self) -> str | None:
        """Loss of `RetrievingTask` that trains the query tower with the reader; None: no tower is trained."""
        return None

    @abstractmethod
    def write(self, examples: Sequence[Example], log_prior_QK: Tensor) -> Iterable[Written]:
        """Return the answer to each question."""

    @cached_property
    def model(self) -> Generator:
        """The encoder-decoder."""
        return self._model or load_generator(self.context, "finetune").to(self.context.device).eval()

    @cached_property
    def embedder(self) -> Embedder:
        """Return the towers of the retriever."""
        stage = "finetune" if self.objective else "warm_start"
        found = self._embedder or self.context.load_embedder(stage)[0]
        return found.to(self.context.device).eval()

    @cached_property
    def retriever(self) -> Retriever:
        """Return a retriever over the embeddings by the document tower."""
        return self.context.retriever(self.embedder, knowledge=self._knowledge)

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        from realm_lab.engine.evaluation.recall import search_questions

        return Retrieved(*search_questions(self.retriever, self.context.question_tokens(questions), k))

    def modules(self) -> Sequence[nn.Module]:
        return [self.model, self.embedder]

    @cached_property
    def _before_finetuning(self) -> PassageWriter:
        embedder = self.context.load_embedder("warm_start")[0]
        return type(self)(self.context, self._model, embedder, self._knowledge)

    def before_finetuning(self) -> PassageWriter:
        return self._before_finetuning if self.objective else self

    def on_corpus(self, passages: Passages, digest: str) -> System:
        return type(self)(self.context, self.model, self._embedder, self.updated(passages, digest))

    def answer(
        self, questions: Sequence[str], retrieved: Retrieved | None = None, k: int | None = None
    ) -> list[Answer]:
        import torch

        from realm_lab.contrib.rivals.models.decoder import Example
        from realm_lab.contrib.rivals.training.generation import with_passages
        from realm_lab.contrib.rivals.writing import answer_of

        context = self.context
        rows_QK, scores_QK = retrieved or self.retrieve(questions, k or self.own.passages)
        asked = [Example(tokens, ()) for tokens in context.question_tokens(questions)]
        log_prior_QK = torch.from_numpy(scores_QK).to(context.device).log_softmax(1)
        written = self.write(with_passages(asked, self.passages, rows_QK), log_prior_QK)
        each = zip(written, rows_QK, log_prior_QK.cpu().numpy(), strict=True)
        return [answer_of(context.tokenizer, self.passages, *one) for one in each]


def load_generator(context: Context, stage: str) -> Generator:
    """Return the encoder-decoder of a stage, on the CPU."""
    from realm_lab.contrib.rivals.models.decoder import read_generator

    return read_generator(context.model_folder(stage) / "generator")
