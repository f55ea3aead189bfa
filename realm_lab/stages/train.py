"""The training stages of one run: wiring from a context to a task of the loop, and the export of what it learned."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import numpy as np
import torch

from realm_lab import ENGINE_VERSION
from realm_lab.core.files import atomic_directory, write_json
from realm_lab.core.seeding import derive_seed
from realm_lab.evaluation.recall import DEPTHS, NormalisedBodies, rank_answers, recall_metrics, zero_shot_rows
from realm_lab.evaluation.utility import cloze_metrics, run_cloze, spread
from realm_lab.models.embedder import Embedder
from realm_lab.models.encoder import Encoder, from_bert, read_checkpoint
from realm_lab.models.export import encoder_shape, new_embedder, new_reader, write_embedder, write_reader
from realm_lab.models.reader import Reader, initialise_heads
from realm_lab.retrieval.retriever import Retriever
from realm_lab.systems.context import Context
from realm_lab.tracking.run_dir import StageRun
from realm_lab.training.finetune import FinetuneTask
from realm_lab.training.loop import train
from realm_lab.training.pairs import ArticlePairs, PairSampler, PassagePairs
from realm_lab.training.pretrain import Evaluation, PretrainTask
from realm_lab.training.warm_start import WarmStartTask


def warm_start(context: Context, run: StageRun) -> None:
    """BERT training of the reader, then the Inverse Cloze Task for the embedder."""
    params, seed, size = context.params, context.plan.seed, context.corpus.manifest.vocabulary_size
    reader = new_reader(params, size, seed)
    embedder = new_embedder(params, size, seed, _initial_encoder(context, reader))
    articles = context.corpus.articles()
    pairs = ArticlePairs(articles) if articles else PassagePairs(context.corpus.sentences(), context.passages)
    vocabulary = context.tokenizer.get_vocab()
    continues = np.zeros(max(vocabulary.values()) + 1, bool)
    continues[[number for piece, number in vocabulary.items() if piece.startswith("##")]] = True
    settings = params.warm_start.reader
    sampler = PairSampler(
        pairs,
        context.special,
        continues,
        seed=seed,
        max_length=params.corpus.sentence_length + params.corpus.passage_length,
        mask_rate=settings.mask_rate,
        salient_fraction=settings.salient_fraction,
    )
    reader, embedder = reader.to(context.device), embedder.to(context.device)
    task = WarmStartTask(params, seed, reader, embedder, sampler, context.passages, context.special)
    train(task, run, params.launch, context.device)
    task.finish()
    _finish(run, reader, embedder, 0.0)


def _initial_encoder(context: Context, reader: Reader) -> Encoder | None:
    """What the towers start from; `reader` is copied when its own warm start has ended."""
    start = context.params.warm_start.embedder.initial_encoder
    checkpoint = context.params.model.checkpoint
    if start == "checkpoint" and checkpoint is not None:
        encoder = Encoder(encoder_shape(context.params, reader.encoder.shape.vocabulary_size))
        from_bert(encoder, read_checkpoint(Path(checkpoint))[1], Path(checkpoint))
        return encoder
    return None if start == "scratch" else reader.encoder


def pretrain(context: Context, run: StageRun) -> None:
    """REALM pre-training from the warm start."""
    params = context.params
    reader, embedder, _ = context.load_models("warm_start")
    retriever = context.retriever(embedder, search=params.pretrain.search_query)
    task = PretrainTask(
        params,
        context.plan.seed,
        retriever,
        reader,
        context.corpus.sentences(),
        context.special,
        _development_metrics(context),
    )
    train(task, run, params.launch, context.device)
    _finish(run, reader, embedder, retriever.null_offset)


def _development_metrics(context: Context) -> Evaluation:
    """Zero-shot recall and retrieval utility on development questions and sentences."""
    questions, cloze = context.corpus.questions("dev"), context.corpus.sentences("cloze_dev")
    if not len(questions):
        questions = context.corpus.questions("test")
    bodies = NormalisedBodies(context.passages)
    chosen = spread(len(questions), context.params.evaluate.questions or len(questions))

    def measure(retriever: Retriever, reader: Reader) -> dict[str, float]:
        values: dict[str, float] = {}
        if len(cloze):
            result = run_cloze(
                context.params, retriever, reader, cloze, context.special, context.params.evaluate.cloze_sentences
            )
            values |= cloze_metrics(result)
        if len(chosen):
            rows_BK = zero_shot_rows(retriever, questions, chosen, max(DEPTHS))
            gold = [questions.gold[int(number)] for number in chosen]
            ranks = rank_answers(rows_BK, bodies, [questions.answers[int(number)] for number in chosen], gold)
            values |= recall_metrics(ranks)
        return values

    return measure


def finetune(context: Context, run: StageRun) -> None:
    """Open-QA fine-tuning; the document tower and its index stay as pre-training left them."""
    params = context.params
    reader, embedder, null_offset = context.load_models(context.trained())
    generator = torch.Generator().manual_seed(derive_seed(context.plan.seed, "span-head"))
    initialise_heads(reader.cpu(), generator, words_too=False)  # drawn on the CPU: equal on every device
    reader.to(context.device)
    if embedder.share_towers:
        embedder.document_encoder = copy.deepcopy(embedder.query_encoder)
    retriever = context.retriever(embedder)
    retriever.refresh(0)
    questions = context.corpus.questions("train")
    task = FinetuneTask(params, context.plan.seed, retriever, reader, questions, context.tokenizer, context.special)
    train(task, run, params.launch, context.device)
    _finish(run, reader, embedder, null_offset)


def _finish(run: StageRun, reader: Reader, embedder: Embedder, null_offset: float) -> None:
    """Export the models, write the last metrics as results, drop the checkpoints."""
    with atomic_directory(run.path / "model") as scratch:
        write_reader(reader, scratch / "reader", span_head=run.stage == "finetune")
        write_embedder(embedder, scratch / "embedder", null_offset)
        write_json(scratch / "manifest.json", {"stage": run.stage, "key": run.key, "engine_version": ENGINE_VERSION})
    last: dict[str, float] = {}
    for row in run.metrics.rows():
        last |= {name: value for name, value in row.items() if name not in ("step", "time")}
    run.finish(last)
    shutil.rmtree(run.path / "checkpoints", ignore_errors=True)
