"""Base classes of systems with a span reader: `DenseRetriever` for REALM and its warm start, `SpanReader` for any other
retriever. Heavy imports are inside the methods, so that declaring a system costs nothing."""

# Shapes: Q questions, K passages, B questions at once, V words, M masked positions

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from realm_lab.engine.evaluation.answers import Answer
from realm_lab.engine.systems.bm25_options import Bm25Options
from realm_lab.engine.systems.registry import Retrieved, System, Unsupported

if TYPE_CHECKING:
    from torch import nn

    from realm_lab.engine.corpus.store import Passages
    from realm_lab.engine.evaluation.cloze_items import ClozeItem, ClozeReading
    from realm_lab.engine.evaluation.utility import ClozeResult
    from realm_lab.engine.retrieval.retriever import Retriever
    from realm_lab.engine.systems.bm25 import Bm25
    from realm_lab.engine.systems.context import Context, Knowledge
    from realm_lab.engine.systems.initial import Initial


class PassageSystem(System):
    """A system that reads passages of the run's knowledge corpus, or of `_knowledge` if that is given."""

    context: Context

    def __init__(self, context: Context, knowledge: Knowledge | None = None):
        super().__init__(context)
        self._knowledge = knowledge

    @cached_property
    def own(self) -> Any:
        """`system_options` of this system."""
        return self.context.options(self.options)

    @property
    def passages(self) -> Passages:
        """Return the knowledge corpus that the system reads."""
        return self._knowledge.passages if self._knowledge else self.context.passages

    @cached_property
    def bm25(self) -> Bm25:
        """Return BM25 over the system's passages, with the system's options if they include BM25's."""
        index = self.context.bm25_over(self._knowledge) if self._knowledge else self.context.bm25
        return index.with_options(self.own) if isinstance(self.own, Bm25Options) else index

    def updated(self, passages: Passages, digest: str) -> Knowledge:
        """Return another version of the passages, as a corpus that updates the present one."""
        from realm_lab.engine.systems.context import Knowledge

        return Knowledge(passages, digest, previous=self._knowledge or self.context.knowledge)


class SpanReader(PassageSystem):
    """A reader of spans over passages that `retrieve` finds; subclasses implement `retrieve`.

    `models` are those after fine-tuning and `knowledge` is the run's corpus, unless others are given.
    """

    def __init__(self, context: Context, models: Initial | None = None, knowledge: Knowledge | None = None):
        super().__init__(context, knowledge)
        self._models = models

    @cached_property
    def models(self) -> Initial:
        """Return the reader, the embedder and the null document's score offset."""
        from realm_lab.engine.systems.initial import Initial

        if self._models:
            return self._models
        context = self.context
        embedder, null_offset = context.load_embedder("finetune")
        return Initial(context.load_reader("finetune").to(context.device), embedder.to(context.device), null_offset)

    @cached_property
    def untuned(self) -> Initial:
        """Return the initial models of fine-tuning."""
        from realm_lab.engine.systems.initial import initial_state

        return initial_state(self.context, "finetune")

    def modules(self) -> Sequence[nn.Module]:
        return [self.models.reader]

    def readable(self, questions: Sequence[str], k: int) -> tuple[Passages, Retrieved]:
        """Return the texts to read (passages; subclasses may join them) and the best k for each question."""
        return self.passages, self.retrieve(questions, k)

    def answer(
        self, questions: Sequence[str], retrieved: Retrieved | None = None, k: int | None = None
    ) -> list[Answer]:
        import torch

        from realm_lab.engine.evaluation.answering import read_answers

        context, passages = self.context, self.passages
        if not self.models.reader.has_span_head:
            raise Unsupported("its reader never learned to answer: finetune.steps is 0")
        if retrieved is None:
            passages, retrieved = self.readable(questions, k or self.params.finetune.candidates)
        scores_QK = torch.from_numpy(retrieved.scores_QK).to(context.device)
        queries = context.question_tokens(questions)
        models = self.models.reader, context.tokenizer, context.special
        return read_answers(self.params, passages, *models, queries, retrieved.rows_QK, scores_QK)

    def on_corpus(self, passages: Passages, digest: str) -> System:
        return type(self)(self.context, self.models, self.updated(passages, digest))

    def utilities(self, question: str, answer: Answer) -> list[float | None]:
        """Measure utility with the masked-word head from before fine-tuning, since the span head cannot read an empty
        passage. The query is the question followed by as many [MASK] as the answer has wordpieces."""
        import torch

        from realm_lab.engine.evaluation.cloze_items import filling_log_probs
        from realm_lab.engine.models.candidate_reader import CandidateReader
        from realm_lab.engine.models.realm import retrieval_utility
        from realm_lab.engine.retrieval.rows import NULL

        context, reader = self.context, self.untuned.reader.eval()
        query = context.question_tokens([question])[0]
        targets = np.array(answer.candidates[answer.best].wordpieces, np.int64)
        tokens = np.concatenate([query, np.full(len(targets), context.special.mask)])
        rows = [NULL, *(candidate.row for candidate in answer.candidates)]
        at = len(query) + np.arange(len(targets))
        candidate_reader = CandidateReader(context.params, reader, self.passages, context.special)
        log_words_KMV = candidate_reader.word_log_probs(tokens, at, rows)
        log_reader_K = filling_log_probs(log_words_KMV, torch.from_numpy(targets))
        return list(retrieval_utility(log_reader_K[None], log_reader_K[None, 0])[0, 1:].tolist())


class DenseRetriever(SpanReader):
    """Retrieves passages of largest inner product with the question (section 3.2)."""

    reads_pictures = True

    @cached_property
    def retriever(self) -> Retriever:
        """Return a retriever over the embeddings by the models' document tower."""
        self.models.embedder.eval()
        _, embedder, null_offset = self.models
        return self.context.retriever(embedder, null_offset, self._knowledge)

    @cached_property
    def retriever_with_null(self) -> Retriever:
        """Return the retriever with the kind of null document that pre-training has, and its score offset."""
        from realm_lab.engine.models.initial import fit_null

        _, embedder, null_offset = self.models
        self.retriever.null_offset = fit_null(embedder, null_offset, self.params.pretrain)
        return self.retriever

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        from realm_lab.engine.evaluation.recall import search_questions

        return Retrieved(*search_questions(self.retriever, self.context.question_tokens(questions), k))

    def modules(self) -> Sequence[nn.Module]:
        return [self.models.reader, self.models.embedder]

    @cached_property
    def _before_finetuning(self) -> DenseRetriever:
        return type(self)(self.context, self.untuned, self._knowledge)

    def before_finetuning(self) -> DenseRetriever:
        return self._before_finetuning

    def read_blanks(self, items: Sequence[ClozeItem]) -> list[ClozeReading]:
        from realm_lab.engine.evaluation.cloze_items import read_cloze_items

        context = self.context
        reader = context.pretraining_reader(self.models.reader, self._knowledge)
        return read_cloze_items(
            context.params, self.retriever_with_null, reader, context.tokenizer, context.special, items
        )

    def measure(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Measure utility and likelihood on held-out sentences, at step 0 of pre-training (start) and with the initial
        models of fine-tuning (end); without pre-training both are the same."""
        from realm_lab.engine.corpus.sources import source_options
        from realm_lab.engine.corpus.vocabulary import wordpieces_by_id
        from realm_lab.engine.evaluation.examples import cloze_examples
        from realm_lab.engine.evaluation.forms import cloze_entities, cloze_forms
        from realm_lab.engine.evaluation.utility import cloze_metrics, run_cloze
        from realm_lab.engine.systems.initial import initial_state
        from realm_lab.engine.training.query_stream import QueryStream, place_null

        context, settings = self.context, self.context.params.evaluate
        sentences = context.sentences("cloze_test")
        results: dict[str, Any] = {"cloze_sentences": 0}
        examples: list[dict[str, Any]] = []
        if not len(sentences.rows_with_spans()):
            return results, examples

        def measured(system: DenseRetriever) -> ClozeResult:
            models = system.retriever_with_null, context.pretraining_reader(system.models.reader)
            count = settings.cloze_sentences
            return run_cloze(context.params, *models, sentences, context.special, count, context.asked)

        end = start = measured(self.before_finetuning())
        results["cloze_sentences"] = len(end.masked)
        if "pretrain" in context.run.stages:
            begun = type(self)(context, initial_state(context, "pretrain"))
            words = wordpieces_by_id(context.tokenizer)
            seed = context.order_seed("pretrain")
            stream = QueryStream(context.params.pretrain, context.sentences(), context.special.mask, seed, words)
            place_null(context.params.pretrain, begun.retriever_with_null, stream)
            start = measured(begun)
        for when, found in (("start", start), ("end", end)):
            preferred = cloze_forms(found, context.passages)
            # `cloze_entities` reads every title of Z: too slow for a large corpus
            if getattr(source_options(context.params.corpus), "bystanders", 0):
                preferred |= cloze_entities(found, context.passages)
            results |= {f"{name}_{when}": value for name, value in (cloze_metrics(found) | preferred).items()}
            examples += cloze_examples(context.passages, context.tokenizer, context.special, found, when)
        return results, examples
