"""Base classes of systems that write their answer. Heavy imports are inside, so that declaring a system costs
nothing."""

# Shapes: Q questions, K passages

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from realm_lab.params.sections import Fraction, NonNegative, Positive, Section
from realm_lab.systems.reading import PassageSystem
from realm_lab.systems.registry import Retrieved, Stage, System

if TYPE_CHECKING:
    from torch import Tensor, nn

    from realm_lab.contrib.rivals.models.decoder import Example, Generator
    from realm_lab.contrib.rivals.training.generation import GenerationTask
    from realm_lab.contrib.rivals.writing import Written
    from realm_lab.corpus.store import Passages
    from realm_lab.evaluation.answers import Answer
    from realm_lab.models.embedder import Embedder
    from realm_lab.retrieval.retriever import Retriever
    from realm_lab.systems.context import Context, Knowledge
    from realm_lab.tracking.run_dir import StageRun

OTHER_PASSAGES = 3  # besides the one that helps, in `denoise`


class WriterOptions(Section):
    """Options of the systems that write from passages."""

    denoise_steps: NonNegative = 1_000_000
    """Steps in which the decoder learns to write; the papers have the pre-training of T5 or BART."""
    denoise_batch_size: Positive = 128
    """Texts per step of these."""
    denoise_learning_rate: Fraction = 1e-3
    """Peak learning rate of these."""


DENOISE = Stage(
    "denoise",
    ("model", *(f"system_options.{name}" for name in WriterOptions.model_fields)),
    "realm_lab.contrib.rivals.generative:denoise",
    uses_ranks=False,
    steps="system_options.denoise_steps",
)


FINETUNE = Stage(
    "finetune",
    ("model", "finetune.retriever", "finetune.max_span_wordpieces", "system_options"),
    "realm_lab.contrib.rivals.generative:finetune",
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
        super().__init__(context)
        self._model, self._embedder, self._knowledge = model, embedder, knowledge

    @property
    @abstractmethod
    def objective(self) -> str | None:
        """Loss of `RetrievingTask` that trains the query tower with the reader; None: no tower is trained."""

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
        """Search the embeddings by the document tower."""
        return self.context.retriever(self.embedder, knowledge=self._knowledge)

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        from realm_lab.evaluation.recall import search_questions

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
        from realm_lab.contrib.rivals.training.retrieving import with_passages
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
    from realm_lab.contrib.rivals.models.generators import read_generator

    return read_generator(context.model_folder(stage) / "generator")


def learn(context: Context, run: StageRun, task: GenerationTask, embedder: Embedder | None = None) -> None:
    """Train the encoder-decoder of a task, and export it, with the embedder if that is trained too."""
    from realm_lab.contrib.rivals.models.generators import write_generator
    from realm_lab.models.folders import write_embedder
    from realm_lab.systems.stages.ending import compile_encoders, end_stage
    from realm_lab.training.loop import train

    compile_encoders(context.params, task.model.encoder)
    train(task, run, context.params.launch, context.device)

    def write(scratch: Path) -> None:
        write_generator(task.model, scratch / "generator")
        if embedder is not None:
            write_embedder(embedder, scratch / "embedder")

    end_stage(run, write, {})


def question_examples(context: Context) -> list[Example]:
    """Return the training questions, each with its first answer. UserError: there are none."""
    from realm_lab.contrib.rivals.models.decoder import Example
    from realm_lab.errors import UserError

    questions = context.corpus.questions("train")
    if not len(questions):
        raise UserError("no training questions in the prepared corpus; name them in corpus.files.questions_train")
    targets = context.wordpieces([answers[0] for answers in questions.answers])
    return [Example(questions.tokens[number], (), np.array(target, np.int64)) for number, target in enumerate(targets)]


def finetune(context: Context, run: StageRun) -> None:
    """Questions with their passages, found once, or at each step by a query tower that learns, in the index of the warm
    start."""
    from realm_lab.contrib.rivals.training.generation import GenerationTask, drawing
    from realm_lab.contrib.rivals.training.retrieving import RetrievingTask, with_passages

    seed, examples = context.order_seed(run.stage), question_examples(context)
    system = cast(PassageWriter, context.system)
    own, objective = system.own, system.objective
    if objective is None:
        rows_QK = system.retrieve(context.corpus.questions("train").texts, own.passages).rows_QK
        examples = with_passages(examples, context.passages, rows_QK)
    model = load_generator(context, "denoise").to(context.device)
    draw = drawing(len(examples), own.batch_size, seed, f"{system.name}-questions", lambda item, _: examples[item])
    given = context.params, seed, model, context.special, draw, own.steps, own.learning_rate
    if objective is None:
        learn(context, run, GenerationTask(*given))
        return
    retriever = system.before_finetuning().retriever
    retriever.embedder.split_towers()
    task = RetrievingTask(*given, retriever=retriever, passages=own.passages, objective=objective)
    learn(context, run, task, retriever.embedder)


def denoise(context: Context, run: StageRun) -> None:
    """Train the warm start's encoder and a new decoder to write a salient span of a sentence, removed there, from a
    passage that can help: the pairs of the reader's warm start. If a pair has no such span, spans of any words are
    used. In the second half of the steps that passage is among others that cannot help. With these from the first step,
    a decoder of the toy world often did not learn to copy in 600 steps."""
    from realm_lab.contrib.rivals.models.generators import new_generator
    from realm_lab.contrib.rivals.training.generation import GenerationTask, blank, corrupt_spans, drawing
    from realm_lab.training.pairs import ArticlePairs, PassagePairs

    options, seed, special = context.options(WriterOptions), context.order_seed(run.stage), context.special
    articles = context.corpus.articles()
    pairs = ArticlePairs(articles) if articles else PassagePairs(context.corpus.sentences(), context.passages)

    def example(others: int, item: int, generator: np.random.Generator) -> Example:
        pair = pairs.pair(item, True, generator)
        if len(pair.spans):
            chosen = int(generator.integers(len(pair.spans)))
            read = blank(pair.first, pair.spans[chosen : chosen + 1], special)
        else:
            read = corrupt_spans(pair.first, special, generator)
        drawn = generator.integers(len(pairs), size=others)
        seconds = [pair.second, *(pairs.pair(int(other), True, generator).second for other in drawn)]
        return read._replace(seconds=[seconds[place] for place in generator.permutation(len(seconds))])

    model = new_generator(context.load_reader("warm_start").encoder, context.initial_seed).to(context.device)
    alone, among_others = (
        drawing(len(pairs), options.denoise_batch_size, seed, "denoise", partial(example, others))
        for others in (0, OTHER_PASSAGES)
    )

    def draw(step: int) -> list[Example]:
        return (alone if 2 * step < options.denoise_steps else among_others)(step)

    learning_rate = options.denoise_learning_rate
    task = GenerationTask(context.params, seed, model, special, draw, options.denoise_steps, learning_rate)
    learn(context, run, task)
