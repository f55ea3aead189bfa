"""The training stages of the systems that write their answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from realm_lab.contrib.rivals.closed_book import ClosedBookOptions
from realm_lab.contrib.rivals.generative import PassageWriter, WriterOptions, load_generator
from realm_lab.contrib.rivals.models.decoder import Example, Generator, new_generator, write_generator
from realm_lab.contrib.rivals.training.generation import (
    CopyingTask,
    Draw,
    GenerationTask,
    RetrievingTask,
    blank,
    corrupt_spans,
    drawing,
    with_passages,
)
from realm_lab.engine.models.folders import write_embedder
from realm_lab.engine.models.initial import new_reader
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.stages.ending import compile_encoders, end_stage
from realm_lab.engine.training.loop import train
from realm_lab.engine.training.pairs import ArticlePairs, PassagePairs
from realm_lab.errors import UserError
from realm_lab.records.run import StageRun

OTHER_PASSAGES = 3  # besides the one that helps, in `denoise`
NO_SPAN = "no sentence of the pre-training corpus has a salient span"


def learn(
    context: Context,
    run: StageRun,
    model: Generator,
    draw: Draw,
    steps: int,
    learning_rate: float,
    task_class: type[GenerationTask] = GenerationTask,
    **retrieving: Any,
) -> None:
    """Train an encoder-decoder on drawn examples, and save it; also the towers if a retriever is trained with it."""
    given = context.params, context.order_seed(run.stage), model.to(context.device), context.special, draw, steps
    task = (RetrievingTask if retrieving else task_class)(*given, learning_rate, **retrieving)
    compile_encoders(context.params, model.encoder)
    train(task, run, context.params.launch, context.device)

    def write(scratch: Path) -> None:
        write_generator(model, scratch / "generator")
        if retrieving:
            write_embedder(retrieving["retriever"].embedder, scratch / "embedder")

    end_stage(run, write, {})


def question_examples(context: Context) -> tuple[list[str], list[Example]]:
    """Return the training questions that have an answer: their texts, and each with its first answer as the target.
    UserError: there are none."""
    questions = context.corpus.questions("train")
    numbers = [number for number, answers in enumerate(questions.answers) if answers]
    if not numbers:
        raise UserError("there are no training questions with an answer; name some in corpus.files.questions_train")
    targets = context.wordpieces([questions.answers[number][0] for number in numbers])
    pairs = zip(numbers, targets, strict=True)
    examples = [Example(questions.tokens[number], (), np.array(target, np.int64)) for number, target in pairs]
    return [questions.texts[number] for number in numbers], examples


def denoise(context: Context, run: StageRun) -> None:
    """Train the warm start's encoder and a new decoder to write the salient span that was removed from a sentence, with
    a passage that can help. The pairs come from the reader's warm start; in a pair without a salient span, spans of any
    words are removed. In the second half of the steps, OTHER_PASSAGES that cannot help are read too. With these from
    the first step, the decoder often did not learn to copy in 600 steps of the toy world. In the toy world every span
    is in the passage, and a decoder that does not copy at the end is flagged."""
    options, seed, special = context.options(WriterOptions), context.order_seed(run.stage), context.special
    articles = context.corpus.articles()
    pairs = ArticlePairs(articles) if articles else PassagePairs(context.corpus.sentences(), context.passages)
    if options.denoise_steps and not len(pairs):
        raise UserError(NO_SPAN, "check corpus.tagger, or set the option denoise_steps to 0")

    def example(others: int, item: int, generator: np.random.Generator) -> Example:
        pair = pairs.pair(item, True, generator)
        if len(pair.spans):
            chosen = int(generator.integers(len(pair.spans)))
            read = blank(pair.first, pair.spans[chosen : chosen + 1], special)
        else:
            read = corrupt_spans(pair.first, special, generator)
        drawn = generator.integers(len(pairs), size=others)
        seconds = [pair.second, *(pairs.pair(int(other), True, generator).second for other in drawn)]
        return read._replace(seconds=[seconds[position] for position in generator.permutation(len(seconds))])

    model = new_generator(context.load_reader("warm_start").encoder, context.initial_seed)
    alone, among_others = (
        drawing(len(pairs), options.denoise_batch_size, seed, "denoise", partial(example, others))
        for others in (0, OTHER_PASSAGES)
    )

    def draw(step: int) -> list[Example]:
        return (alone if 2 * step < options.denoise_steps else among_others)(step)

    task_class = CopyingTask if articles else GenerationTask
    learn(context, run, model, draw, options.denoise_steps, options.denoise_learning_rate, task_class)


def finetune(context: Context, run: StageRun) -> None:
    """Train on questions with passages. They are found once; if the query tower learns, at each step, in the index of
    the warm start."""
    seed, (texts, examples) = context.order_seed(run.stage), question_examples(context)
    system = cast(PassageWriter, context.system)
    own, objective = system.own, system.objective
    if objective is None:
        rows_QK = system.retrieve(texts, own.passages).rows_QK
        examples = with_passages(examples, context.passages, rows_QK)
        retrieving = {}
    else:
        retriever = system.before_finetuning().retriever
        retriever.embedder.split_towers()
        retrieving = {"retriever": retriever, "passages": own.passages, "objective": objective}
    draw = drawing(len(examples), own.batch_size, seed, f"{system.name}-questions", lambda item, _: examples[item])
    learn(context, run, load_generator(context, "denoise"), draw, own.steps, own.learning_rate, **retrieving)


def corrupt(context: Context, run: StageRun) -> None:
    """Train by span corruption on the sentences of X and the passages of Z, each text equally often."""
    sentences, bodies = context.corpus.sentences().tokens, context.passages.bodies
    encoder = new_reader(context.params, context.vocabulary_size, context.initial_seed).encoder

    def example(item: int, generator: np.random.Generator) -> Example:
        tokens = sentences[item] if item < len(sentences) else bodies[item - len(sentences)]
        return corrupt_spans(tokens, context.special, generator)

    count = len(sentences) + len(bodies)
    options, model = context.options(ClosedBookOptions), new_generator(encoder, context.initial_seed)
    _learn(context, run, model, count, example, options.corruption_steps)


def write_salient_spans(context: Context, run: StageRun) -> None:
    """Train to write a salient span that was removed from a sentence of X (Roberts et al. 2020)."""
    sentences = context.sentences()
    rows, options = sentences.rows_with_spans(), context.options(ClosedBookOptions)
    if options.salient_span_steps and not len(rows):
        remedy = "check corpus.tagger and pretrain.recurring_spans, or set the option salient_span_steps to 0"
        raise UserError(NO_SPAN, remedy)

    def example(item: int, generator: np.random.Generator) -> Example:
        spans = sentences.salient_spans(int(rows[item]))
        chosen = int(generator.integers(len(spans)))
        return blank(sentences.tokens[int(rows[item])], spans[chosen : chosen + 1], context.special)

    model = load_generator(context, "span_corruption")
    _learn(context, run, model, len(rows), example, options.salient_span_steps)


def answer_questions(context: Context, run: StageRun) -> None:
    """Train to answer questions without passages."""
    _, examples = question_examples(context)
    options, model = context.options(ClosedBookOptions), load_generator(context, "salient_spans")
    _learn(context, run, model, len(examples), lambda item, _: examples[item], options.question_steps)


def _learn(
    context: Context,
    run: StageRun,
    model: Generator,
    count: int,
    example: Callable[[int, np.random.Generator], Example],
    steps: int,
) -> None:
    options = context.options(ClosedBookOptions)
    draw = drawing(count, options.batch_size, context.order_seed(run.stage), run.stage, example)
    learn(context, run, model, draw, steps, options.learning_rate)
