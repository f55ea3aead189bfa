"""REALM pre-training of one run: its models, index and reward as a task of the training loop."""

from __future__ import annotations

import copy
from contextlib import ExitStack, closing
from functools import partial

from realm_lab.engine.corpus.vocabulary import wordpieces_by_id
from realm_lab.engine.evaluation.recall import DEPTHS, recall_metrics, search_questions
from realm_lab.engine.evaluation.utility import cloze_metrics, run_cloze
from realm_lab.engine.models.candidate_reader import AnyReader, RewardReader
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.models.rewards import READER, training_reward
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.approximate import approximate_search
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.search import IndexGeneration, Matrix
from realm_lab.engine.systems.asked import AskedQuestions
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.identity import corpus_folder
from realm_lab.engine.systems.initial import initial_state
from realm_lab.engine.systems.stages.ending import compile_encoders, finish
from realm_lab.engine.training.builder import ProcessBuilder
from realm_lab.engine.training.loop import train
from realm_lab.engine.training.pretrain import Evaluation, PretrainTask
from realm_lab.engine.training.probes import ReaderProbe
from realm_lab.records.run import StageRun


def pretrain(context: Context, run: StageRun) -> None:
    """REALM pre-training, from the warm start unless the parameters set something else. At each step with
    changes (`pretrain.changes`), another task takes over the state of the task before."""
    phases, made = context.params.phases(), dict[int, tuple[PretrainTask, Reader]]()
    with ExitStack() as stack:

        def begin(step: int) -> PretrainTask:
            stack.close()  # ends the builder of the task before
            made.clear()
            phase = copy.copy(context)
            phase.params = phases[step]
            before = phases[max((one for one in phases if one < step), default=step)]
            made[step] = pretrain_task(
                phase, run, stack, null_from=step if _null(before) != _null(phase.params) else None
            )
            return made[step][0]

        later = {step: partial(begin, step) for step in phases if step}
        train(begin(0), run, context.params.launch, context.device, later)
    ((task, reader),) = made.values()
    finish(context, run, reader, task.retriever.embedder, task.retriever.null_offset)


def _null(params: Params) -> tuple[str, bool]:
    return params.pretrain.null_document, params.pretrain.calibrate_null


def pretrain_task(
    context: Context, run: StageRun, stack: ExitStack, null_from: int | None = None
) -> tuple[PretrainTask, Reader]:
    """Return pre-training as a task of the loop, and its reader. The task's builder, if any, is closed with `stack`.
    `null_from`: the step at which a new null document replaces the one of the task before; None: it stays."""
    params, seed = context.params, context.run.seed
    reader, embedder, null_offset = initial_state(context, "pretrain")
    compile_encoders(params, reader.encoder, embedder.query_encoder, embedder.document_encoder)
    retriever = Retriever(
        embedder,
        context.passages,
        context.inputs,
        stale_queries=params.pretrain.search_query == "stale",
        approximate=approximate_search(params.pretrain.search, seed),
        spread=params.launch.spread_index,
    )
    retriever.null_offset = null_offset

    def stored() -> Matrix:
        return retriever.held(context.embeddings(embedder))

    # The first index, with the initial weights, shared with other runs and the evaluation.
    snapshot = copy.deepcopy(embedder) if retriever.stale_queries else None
    retriever.adopt(IndexGeneration(stored(), 0), snapshot)
    probe = ReaderProbe(params, context.sentences("cloze_dev"), context.passages, context.special, seed)
    refreshes = params.pretrain.refresh.policy.name != "never" and params.pretrain.train_document_tower
    measured = context.pretraining_reader(reader)
    trained: AnyReader = measured
    if params.pretrain.reward.name != READER:
        reward = training_reward(params.pretrain.reward)
        trained = RewardReader(reward, context.passages, context.special, context.device)
    builder = None
    if refreshes and params.launch.builder != "inline":
        folder = corpus_folder(context.root, context.run)
        builder = ProcessBuilder(run.path / "index", params.launch, folder, context.inputs)
        stack.enter_context(closing(builder))
    task = PretrainTask(
        params,
        context.order_seed(run.stage),
        retriever,
        trained,
        context.sentences(),
        context.special,
        wordpieces_by_id(context.tokenizer),
        development_metrics(context, measured),
        partial(probe.measure, measured),
        builder,
        stored,
        null_from,
    )
    return task, reader


def development_metrics(context: Context, reader: AnyReader) -> Evaluation:
    """Return a function that measures zero-shot recall and retrieval utility on development questions and sentences."""
    cloze, asked = context.sentences("cloze_dev"), AskedQuestions.of_split(context, "dev")
    tokens, count = context.question_tokens(asked.texts), context.params.evaluate.cloze_sentences

    def measure(retriever: Retriever) -> dict[str, float]:
        values: dict[str, float] = {}
        if len(cloze.rows_with_spans()):
            found = run_cloze(context.params, retriever, reader, cloze, context.special, count, context.asked)
            values |= cloze_metrics(found)
        if tokens:
            rows_BK, _ = search_questions(retriever, tokens, max(DEPTHS))
            values |= recall_metrics(asked.ranks(rows_BK)) | {"questions_dev": float(len(asked))}
        return values

    return measure
