"""Base of systems that start from BM25 and follow links (links.py): a retriever in a separate stage,
trained on the passages of each question, then the span reader on its results."""

# Shapes: P passages of a question, D hidden size

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from realm_lab.contrib.rivals.bm25_reader import Bm25Passages
from realm_lab.contrib.rivals.links import Links
from realm_lab.engine.corpus.store import Questions
from realm_lab.engine.corpus.vocabulary import wordpieces_by_id
from realm_lab.engine.params.sections import NonNegative, Positive
from realm_lab.engine.systems.bm25_options import Bm25Options
from realm_lab.engine.systems.realm import FINETUNE_READER, WARM_START
from realm_lab.engine.systems.registry import EVALUATE, Stage

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from realm_lab.contrib.rivals.models.linked import PairEncoder
    from realm_lab.engine.models.encoder import Encoder

KEPT = "retriever"
STAGES = (
    WARM_START,
    Stage(
        "retriever",
        ("system", "model", "finetune.reader"),
        "realm_lab.contrib.rivals.training.linked:train_retriever",
        keeps=KEPT,
    ),
    FINETUNE_READER,
    EVALUATE,
)


class LinkedOptions(Bm25Options):
    """Options of the systems that follow links."""

    steps: NonNegative = 29_700
    """Optimiser steps of the retriever (3 epochs of NQ-open's 79,168 training questions)."""
    batch_size: Positive = 8
    """Questions per step (PathRetriever's released code)."""


class Example(NamedTuple):
    """A training question; rows are of the knowledge corpus."""

    number: int  # of the question
    kept: np.ndarray  # passages that every step reads; PathRetriever: the path in its order
    positives: np.ndarray  # passages to be chosen
    others: np.ndarray  # negatives; a step reads some of them


class LinkedReader(Bm25Passages, ABC):
    """Base class; subclasses define the model, its training examples and its retrieval."""

    only_bert = True
    depth: ClassVar[int] = 100  # passages of BM25 to start from, and to find the answer in

    @abstractmethod
    def new_model(self, encoder: Encoder, generator: torch.Generator) -> Any:
        """Return the untrained model, its encoder copied from the warm start's reader."""

    @abstractmethod
    def example(
        self, number: int, path: np.ndarray, is_gold: bool, bm25: np.ndarray, holding: np.ndarray
    ) -> Example | None:
        """Return the training example of a question, or None. `path` ends with a gold passage (`is_gold`), or is the
        best passage of BM25 with the answer, or empty. `holding`: gold passages, and those in `near` with an answer."""

    @abstractmethod
    def loss(self, model: Any, vectors_PD: Tensor, rows_P: np.ndarray, example: Example) -> Tensor:
        """Return the loss of one example."""

    @abstractmethod
    def search(self, tokens: np.ndarray, bm25: np.ndarray) -> Any:
        """Return the trained model's results, best first, for a question's wordpieces and its best rows by BM25."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self._found: dict[str, Any] = {}

    def found(self, questions: Sequence[str]) -> list[Any]:
        """Run `search` for each question, once."""
        new = [question for question in dict.fromkeys(questions) if question not in self._found]
        if new:
            found_QK = self.bm25.search(new, self.depth).rows_QK
            for question, tokens, rows_K in zip(new, self.context.question_tokens(new), found_QK, strict=True):
                self._found[question] = self.search(tokens, rows_K[rows_K >= 0])
        return [self._found[question] for question in questions]

    def near(self, path: np.ndarray, bm25: np.ndarray) -> list[np.ndarray]:
        """Return the rows in which answers are looked for: at least those that `example` may take as negatives."""
        return [bm25, *map(self.links.of, [*path, *bm25])]

    @cached_property
    def links(self) -> Links:
        """Links between the passages: titles that bodies name (links.py)."""
        words = wordpieces_by_id(self.context.tokenizer)
        continues = np.array([piece.startswith("##") for piece in words])
        return Links(self.passages, continues, self.context.special.unk)

    def initial_model(self) -> Any:
        """Return the model before its training, on the device."""
        import torch

        from realm_lab.engine.core.seeding import derive_seed
        from realm_lab.engine.models.encoder import Encoder

        generator = torch.Generator().manual_seed(derive_seed(self.context.initial_seed, "linked-retriever"))
        encoder = self.context.load_reader("warm_start").encoder
        assert isinstance(encoder, Encoder)  # only_bert
        return self.new_model(encoder, generator).to(self.context.device)

    @cached_property
    def model(self) -> Any:
        from realm_lab.engine.models.folders import load_parameters

        run = self.context.stage(KEPT)
        run.results()  # raises if it has not finished
        model = self.initial_model()
        load_parameters(model, run.path / KEPT / "model.safetensors")
        return model.eval()

    def modules(self) -> Sequence[nn.Module]:
        return [self.models.reader, self.model]

    def pair_encoder(self, model: Any) -> PairEncoder:
        """Return the model's encoder with the passages."""
        from realm_lab.contrib.rivals.models.linked import PairEncoder

        return PairEncoder(self.context.params, model.encoder, self.passages, self.context.special)

    def examples(self, questions: Questions) -> list[Example]:
        """Return the examples of all training questions that have one."""
        from realm_lab.engine.models.spans import holds_answer

        found_QK = self.bm25.search(questions.texts, self.depth).rows_QK
        answers, examples = self.context.answer_wordpieces(questions), []
        for number, rows_K in enumerate(found_QK):
            rows, path = rows_K[rows_K >= 0], questions.paths[number]
            near = np.unique(np.concatenate([questions.gold[number], *self.near(path, rows)]))
            is_gold_row = np.isin(near, questions.gold[number])
            holding = near[holds_answer(self.passages.bodies, near, answers[number]) | is_gold_row]
            if not len(path):
                path = np.array([*questions.gold[number], *rows[np.isin(rows, holding)]][:1], np.int64)
            is_gold = bool(np.isin(path[-1:], questions.gold[number]).all() and len(path))
            example = self.example(number, path.astype(np.int64), is_gold, rows, holding)
            examples += [example] if example else []
        return examples
