"""DrQA (Chen et al. 2017): hashed TF-IDF finds articles, LSTMs read all their passages, and the answer is the span with
the largest unnormalised exp(start + end) in all passages.

The ranking is the released one (tfidf.py); DrQA's paragraphs are the passages of the corpus. Passages are retrieved in
their order in the best article, then in the second, so that recall@k counts k passages of few articles.

Simplified: words are the wordpieces of the corpus, whose vectors start at random and are all trained; the paper has
GloVe's, fixed except for the 1,000 most frequent in questions. One feature marks wordpieces of the question, and
there are no lemmas, parts of speech or entities (the released multitask model has none either). Examples are the gold
passages and those of distant supervision together, without a filter by named entities and lengths of paragraphs.
AdamW with a constant learning rate and clipping at 1, instead of Adamax and 10. A fixed number of steps; the
longest answer is finetune.max_span_wordpieces (the paper's 15 words).
"""

# Shapes: Q questions, K passages

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.evaluation.answers import Answer
from realm_lab.engine.params.sections import Dropout, Fraction, NonNegative, Positive, Section
from realm_lab.engine.systems.reading import PassageSystem
from realm_lab.engine.systems.registry import EVALUATE, Retrieved, Stage

if TYPE_CHECKING:
    from torch import nn

    from realm_lab.contrib.rivals.models.document_reader import DocumentReader
    from realm_lab.contrib.rivals.tfidf import TfidfArticles


class DrqaOptions(Section):
    """`system_options.drqa`."""

    articles: Positive = 5
    """Articles whose passages are read per question (the paper's)."""
    steps: NonNegative = 240_000
    """Optimiser steps (40 epochs of the released multitask model's 192,396 examples)."""
    batch_size: Positive = 32
    """Examples per step (the released code's)."""
    learning_rate: Fraction = 2e-3
    """Constant learning rate (the released code's, for Adamax)."""
    embedding_size: Positive = 300
    """Size of a word vector (the paper's)."""
    hidden_size: Positive = 128
    """Size of each LSTM, per direction (the paper's)."""
    dropout: Dropout = 0.4
    """Dropout on word vectors, and on inputs and outputs of the LSTMs (the released code's)."""


class Drqa(PassageSystem):
    """TF-IDF over articles and a reader of paragraphs."""

    name = "drqa"
    title = "DrQA"
    options = DrqaOptions
    fixed: ClassVar = {"finetune.softmax": "joint"}  # spans of all passages compare by start + end
    stages = (
        Stage(
            "document_reader",
            ("system", "finetune.max_span_wordpieces", "finetune.softmax", "model.precision"),
            "realm_lab.contrib.rivals.training.document_reader:train_reader",
            uses_ranks=False,
        ),
        EVALUATE,
    )

    @cached_property
    def tfidf(self) -> TfidfArticles:
        """Return the index over the articles."""
        from realm_lab.contrib.rivals.tfidf import TfidfArticles

        return TfidfArticles(self.passages)

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        return Retrieved.padded(self.tfidf.search(questions, k), k)

    def answer(
        self, questions: Sequence[str], retrieved: Retrieved | None = None, k: int | None = None
    ) -> list[Answer]:
        import torch

        from realm_lab.engine.evaluation.answering import read_answers

        if retrieved is None:
            found = self.tfidf.search(questions, k or self.own.articles)
            retrieved = Retrieved.padded(found, k or max(1, *(len(rows) for rows, _ in found)))
        context = self.context
        scores_QK = torch.zeros(retrieved.rows_QK.shape, device=context.device)  # TF-IDF scores do not count
        models = self.reader, context.tokenizer, context.special
        queries = context.question_tokens(questions)
        return read_answers(self.params, self.passages, *models, queries, retrieved.rows_QK, scores_QK)

    def modules(self) -> Sequence[nn.Module]:
        return [self.reader]

    def on_corpus(self, passages: Passages, digest: str) -> Drqa:
        updated = Drqa(self.context, self.updated(passages, digest))
        updated.reader = self.reader
        return updated

    def new_reader(self) -> DocumentReader:
        """Build a reader with weights drawn from the run's seed of new weights."""
        import torch

        from realm_lab.contrib.rivals.models.document_reader import DocumentReader
        from realm_lab.engine.core.seeding import derive_seed

        own, context = self.own, self.context
        with torch.random.fork_rng(devices=[]):  # drawn on the CPU: equal on every device
            torch.manual_seed(derive_seed(context.initial_seed, "document-reader"))
            reader = DocumentReader(context.vocabulary_size, own.embedding_size, own.hidden_size, own.dropout)
        return reader.to(context.device)

    @cached_property
    def reader(self) -> DocumentReader:
        from realm_lab.engine.models.folders import load_parameters

        reader = self.new_reader()
        load_parameters(reader, self.context.model_folder("document_reader") / "model.safetensors")
        return reader
