"""Training of DrQA's document reader (Chen et al. 2017, sections 3.2 and 4.4), with passages that contain the answer as
examples (distant supervision)."""

# Shapes: N examples, P positions of a passage, R passages

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from realm_lab.contrib.rivals.drqa import Drqa
from realm_lab.contrib.rivals.models.document_reader import DocumentReader
from realm_lab.contrib.rivals.tfidf import STOP_WORDS
from realm_lab.engine.core.process import autocast
from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.corpus.store import Passages, Questions
from realm_lab.engine.corpus.vocabulary import SpecialIds, wordpieces_by_id
from realm_lab.engine.models.folders import write_tensors
from realm_lab.engine.models.inputs import join
from realm_lab.engine.models.spans import find_answer, holds_answer
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.params.sections import Optimiser
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.stages.ending import end_stage
from realm_lab.engine.training.loop import train
from realm_lab.engine.training.optimiser import ModelsTask, TrainedModels
from realm_lab.errors import UserError
from realm_lab.records.run import StageRun

WINDOW = 20  # words on both sides of an answer that are compared (the released script's)
EXAMPLES = 5  # of a question (the released script's)


class Example(NamedTuple):
    """A question, a passage, and the answer's first and last wordpiece in it."""

    question: int
    row: int
    start: int
    end: int


def distant_examples(
    questions: Questions,
    answers: Sequence[Sequence[np.ndarray]],
    rows: Sequence[np.ndarray],
    passages: Passages,
    ignored: frozenset[int],
    max_width: int,
    read: int,
) -> list[Example]:
    """Return at most EXAMPLES per question, from its gold passages, then `rows`. A passage with the answer gives one
    example: the occurrence whose surroundings share most unigrams and bigrams with the question, unless all share none.
    N-grams with an `ignored` wordpiece (stop words, punctuation) do not count. The reader sees the first `read`
    wordpieces of a passage."""
    examples: list[Example] = []
    for number, found_R in enumerate(rows):
        query, first = questions.tokens[number], len(examples)
        asked = _ngrams(query, ignored)
        rows_R = np.array(list(dict.fromkeys([*questions.gold[number].tolist(), *found_R.tolist()])), np.int64)
        for row in rows_R[holds_answer(passages.bodies, rows_R, answers[number])].tolist():
            body, shared = passages.bodies[row][:read], []
            for start, width in find_answer(body, answers[number], max_width):
                window = body[max(0, start - WINDOW) : start + width + 1 + WINDOW]
                shared.append((len(asked & _ngrams(window, ignored)), -start, start + width))
            if shared and max(shared)[0] and len(examples) < first + EXAMPLES:
                _, start, end = max(shared)
                examples.append(Example(number, row, -start, end))
    return examples


def _ngrams(tokens: np.ndarray, ignored: frozenset[int]) -> set[tuple[int, ...]]:
    words = tokens.tolist()
    ngrams = [(word,) for word in words] + list(pairwise(words))
    return {ngram for ngram in ngrams if ignored.isdisjoint(ngram)}


class DocumentReaderTask(ModelsTask):
    """Task of the training loop: minimise -log p(start) - log p(end), each a softmax over its passage."""

    def __init__(
        self,
        params: Params,
        seed: int,
        steps: int,
        batch_size: int,
        learning_rate: float,
        reader: DocumentReader,
        examples: Sequence[Example],
        questions: Questions,
        passages: Passages,
        special: SpecialIds,
    ):
        if not examples:
            raise UserError("no passage answers training questions; name others in corpus.files.questions_train")
        self.seed, self.total_steps, self._batch_size = seed, steps, batch_size
        self._params, self._reader, self._special = params, reader, special
        self._examples, self._questions, self._passages = examples, questions, passages
        self._order = EpochOrder(len(examples), seed, "document-reader-examples")
        settings = Optimiser(learning_rate=learning_rate, warmup_steps=0, final_fraction=1.0, recipe="short")
        self._models = TrainedModels(reader, nn.Module())
        self._models.train("document_reader", reader, settings, steps, set())

    def train_step(self, step: int) -> dict[str, float]:
        """Run one step on the mean over a batch of examples."""
        chosen = self._order.take(step * self._batch_size, self._batch_size).tolist()
        examples = [self._examples[index] for index in chosen]
        corpus, device = self._params.corpus, self._reader.words.weight.device
        queries = [self._questions.tokens[example.question] for example in examples]
        bodies = [self._passages.bodies[example.row] for example in examples]
        batch = join(queries, bodies, self._special, corpus.sentence_length + corpus.passage_length).to(device)
        self._reader.train()
        self._models.zero_grad()
        with autocast(device, self._params.model.precision):
            found = self._reader.endpoints(batch)
        ends = torch.tensor([(example.start, example.end) for example in examples], device=device)
        loss = functional.cross_entropy(found.start_NP, ends[:, 0]) + functional.cross_entropy(found.end_NP, ends[:, 1])
        loss.backward()
        return {"loss": loss.item(), **self._models.step(step)}


def train_reader(context: Context, run: StageRun) -> None:
    """Train the reader on passages of the training questions that contain the answer."""
    system = cast(Drqa, context.system)
    own, questions, passages = system.own, context.corpus.questions("train"), context.passages
    answers = context.answer_wordpieces(questions)
    words = enumerate(wordpieces_by_id(context.tokenizer))
    ignored = frozenset(i for i, word in words if word in STOP_WORDS or not any(map(str.isalnum, word)))
    rows = [rows for rows, _ in system.tfidf.search(questions.texts, own.articles)]
    width, read = context.params.finetune.max_span_wordpieces, context.params.corpus.passage_length - 1
    examples = distant_examples(questions, answers, rows, passages, ignored, width, read)
    reader = system.new_reader()
    sizes = own.steps, own.batch_size, own.learning_rate
    texts = questions, passages, context.special
    task = DocumentReaderTask(context.params, context.order_seed(run.stage), *sizes, reader, examples, *texts)
    train(task, run, context.params.launch, context.device)
    trained = {example.question for example in examples}
    counts = {"examples": len(examples), "questions_without_example": len(questions) - len(trained)}
    weights: dict[str, Tensor] = dict(reader.named_parameters())
    end_stage(run, lambda folder: write_tensors(folder / "model.safetensors", weights), counts)
