"""The training stages of one run: wiring from a context to a task of the loop, and the export of what it learned."""

# Shapes: B questions, K passages

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realm_lab import ENGINE_VERSION
from realm_lab.core.files import atomic_directory, write_json, write_text
from realm_lab.core.process import ranks
from realm_lab.core.seeding import derive_seed
from realm_lab.corpus.vocabulary import save_tokenizer, wordpieces_by_id
from realm_lab.evaluation.recall import DEPTHS, recall_metrics, search_questions
from realm_lab.evaluation.utility import cloze_metrics, run_cloze
from realm_lab.models.embedder import Embedder
from realm_lab.models.encoder import Encoder, show
from realm_lab.models.folders import write_embedder, write_reader
from realm_lab.models.initial import new_embedder, new_reader, read_initial_encoder
from realm_lab.models.reader import Reader
from realm_lab.params.parameters import Finetune, Params
from realm_lab.params.sections import Search
from realm_lab.retrieval.retriever import MakeSearch, Retriever
from realm_lab.retrieval.search import IndexGeneration
from realm_lab.systems.context import Context
from realm_lab.systems.evaluate import AskedQuestions
from realm_lab.systems.identity import corpus_folder
from realm_lab.systems.initial import Initial, initial_state
from realm_lab.systems.reading import SpanReader
from realm_lab.tracking.run_dir import StageRun
from realm_lab.training.builder import ProcessBuilder
from realm_lab.training.finetune import FinetuneTask
from realm_lab.training.loop import train
from realm_lab.training.pairs import ArticlePairs, Captions, PairSampler, PassagePairs
from realm_lab.training.pretrain import Evaluation, PretrainTask
from realm_lab.training.probes import ReaderProbe
from realm_lab.training.warm_start import WarmStartTask

CARD = """\
---
library_name: transformers
tags: [realm, retrieval, open-domain-qa]
---
# {name} of a REALM run (Guu et al. 2020)

Made by realm_lab. `AutoModel.from_pretrained` and `AutoTokenizer.from_pretrained` open this folder
as a BERT model. What transformers has no place for (projections, span head) is in the other .safetensors files, which
realm_lab reads: set `finetune.initial_reader` or `finetune.initial_retriever` to this folder.
"""


def warm_start(context: Context, run: StageRun) -> None:
    """BERT training of the reader, then the Inverse Cloze Task for the embedder."""
    params, seed, size = context.params, context.plan.seed, context.vocabulary_size
    reader = new_reader(params, size, seed)
    embedder = new_embedder(params, size, seed, _initial_encoder(context, reader))
    embedder.set_learned_null(False)  # pre-training's: the warm start is the same for every null document
    show(reader, context.patches)
    show(embedder, context.patches)
    articles = context.corpus.articles()
    pairs = ArticlePairs(articles) if articles else PassagePairs(context.corpus.sentences(), context.passages)
    continues = np.array([piece.startswith("##") for piece in wordpieces_by_id(context.tokenizer)])
    sampler = PairSampler(
        pairs,
        context.special,
        continues,
        seed=seed,
        max_length=params.corpus.sentence_length + params.corpus.passage_length,
    )
    reader, embedder = reader.to(context.device), embedder.to(context.device)
    compile_encoders(params, reader.encoder, embedder.query_encoder, embedder.document_encoder)
    captions = Captions(articles, size) if articles and context.patches is not None else None
    task = WarmStartTask(params, seed, reader, embedder, sampler, context.passages, context.special, captions)
    train(task, run, params.launch, context.device)
    task.finish()
    finish(context, run, reader, embedder, 0.0)


def _initial_encoder(context: Context, reader: Reader) -> Encoder | None:
    """What the towers start from; `reader` is copied when its own warm start has ended."""
    start = context.params.warm_start.embedder.initial_encoder
    checkpoint = context.params.model.checkpoint
    if start == "checkpoint" and checkpoint is not None:
        return read_initial_encoder(Path(checkpoint), context.params, context.vocabulary_size)
    return None if start == "scratch" else reader.encoder


def pretrain(context: Context, run: StageRun) -> None:
    """REALM pre-training, from the warm start where the parameters say nothing else."""
    params, seed = context.params, context.plan.seed
    reader, embedder, null_offset = initial_state(context, "pretrain")
    compile_encoders(params, reader.encoder, embedder.query_encoder, embedder.document_encoder)
    retriever = Retriever(
        embedder,
        context.passages,
        context.inputs,
        stale_queries=params.pretrain.search_query == "stale",
        approximate=_approximate_search(params.pretrain.search, seed),
    )
    retriever.null_offset = null_offset
    # The first index, of the weights that training begins with, which other runs and the evaluation have as well.
    vectors_ND = context.embeddings(embedder).as_tensor(context.device)
    snapshot = copy.deepcopy(embedder) if retriever.stale_queries else None
    retriever.adopt(IndexGeneration(vectors_ND, 0), snapshot)
    probe = ReaderProbe(params, context.sentences("cloze_dev"), context.passages, context.special, seed)
    refreshes = params.pretrain.refresh.policy != "never" and params.pretrain.train_document_tower
    with ExitStack() as stack:
        builder = None
        if refreshes and params.launch.builder != "inline":
            folder = corpus_folder(context.root, context.plan)
            builder = stack.enter_context(closing(ProcessBuilder(run.path / "index", params, folder, context.device)))
        task = PretrainTask(
            params,
            seed,
            retriever,
            reader,
            context.sentences(),
            context.special,
            wordpieces_by_id(context.tokenizer),
            development_metrics(context),
            probe,
            builder,
        )
        train(task, run, params.launch, context.device)
    finish(context, run, reader, embedder, retriever.null_offset)


def _approximate_search(settings: Search, seed: int) -> MakeSearch | None:
    """What searches the index where the parameters ask for FAISS, which is slow to import."""
    if settings.backend == "exact":
        return None
    from realm_lab.retrieval.faiss_backends import FaissSearch

    return lambda vectors_ND, exact: FaissSearch(settings.backend, vectors_ND, settings.faiss_options(), seed, exact)


def development_metrics(context: Context) -> Evaluation:
    """Zero-shot recall and retrieval utility on development questions and sentences, as far as there are any."""
    cloze, asked = context.sentences("cloze_dev"), AskedQuestions.of_split(context, "dev")
    tokens, count = context.question_tokens(asked.texts), context.params.evaluate.cloze_sentences

    def measure(retriever: Retriever, reader: Reader) -> dict[str, float]:
        values: dict[str, float] = {}
        if len(cloze):
            values |= cloze_metrics(run_cloze(context.params, retriever, reader, cloze, context.special, count))
        if tokens:
            rows_BK, _ = search_questions(retriever, tokens, max(DEPTHS))
            values |= recall_metrics(asked.ranks(rows_BK)) | {"questions_dev": float(len(asked))}
        return values

    return measure


def finetune(context: Context, run: StageRun) -> None:
    """Open-QA fine-tuning; the document tower and its index stay as they are in the beginning."""
    initial = initial_state(context, "finetune")
    tune(context, run, initial, context.retriever(initial.embedder), context.system.params.finetune)


def finetune_reader(context: Context, run: StageRun) -> None:
    """Open-QA fine-tuning of the reader alone, on what the system finds before it; the query tower stays as it is, and
    the early loss, which trains nothing else, is left out."""
    fixed = {"train_query_tower": False, "early_loss_candidates": 0}
    settings = context.system.params.finetune.model_copy(update=fixed)
    initial = initial_state(context, "finetune")
    tune(context, run, initial, FixedPassages(context, initial.embedder, settings.candidates), settings)


class FixedPassages:
    """The training questions' passages by a retriever that does not learn, where fine-tuning expects one that does: a
    "vector" is the number of a question. The embedder is carried along untrained."""

    def __init__(self, context: Context, embedder: Embedder, depth: int):
        self.embedder = embedder
        questions = context.corpus.questions("train")
        self._numbers = {questions.tokens[number].tobytes(): number for number in range(len(questions))}
        system = context.system.before_finetuning()
        assert isinstance(system, SpanReader)
        self.passages, (self._rows, self._scores) = system.readable(questions.texts, depth)
        self._device = context.device

    def embed_queries(self, queries: Sequence[np.ndarray]) -> Tensor:
        """The number of each question, [B, 1]."""
        return torch.tensor([[self._numbers[query.tobytes()]] for query in queries], device=self._device)

    def find(self, number_B1: Tensor, count: int) -> np.ndarray:
        """Rows of the best `count` passages, [B, count]."""
        return self._rows[number_B1[:, 0].cpu().numpy(), :count]

    def indexed_score(self, number_B1: Tensor, rows_BK: np.ndarray) -> Tensor:
        """The retriever's scores of those passages, [B, K]."""
        scores_BK = self._scores[number_B1[:, 0].cpu().numpy(), : rows_BK.shape[1]]
        return torch.from_numpy(scores_BK).to(self._device)


def tune(
    context: Context,
    run: StageRun,
    initial: Initial,
    retriever: Any,
    settings: Finetune,
    make_task: Callable[..., FinetuneTask] = FinetuneTask,
) -> None:
    """Fine-tune a reader, and the query tower where `settings` say so, on what a retriever (or what has its methods
    `embed_queries`, `find` and `indexed_score`) finds."""
    params = context.params.model_copy(update={"finetune": settings})
    reader, embedder, null_offset = initial
    compile_encoders(params, reader.encoder, embedder.query_encoder, embedder.document_encoder)
    questions = context.corpus.questions("train")
    if settings.softmax == "selected":
        reader.add_selection(torch.Generator().manual_seed(derive_seed(context.plan.seed, "passage-selection")))
    task = make_task(params, context.plan.seed, retriever, reader, questions, context.tokenizer, context.special)
    train(task, run, params.launch, context.device)
    reader.has_span_head |= settings.steps > 0
    finish(context, run, reader, embedder, null_offset)


def compile_encoders(params: Params, *encoders: Encoder) -> None:
    """Compile the encoders in place where the parameters say so: names of weights stay, numbers move by rounding."""
    if params.launch.compile:
        for encoder in set(encoders):
            encoder.compile(dynamic=True)


def finish(
    context: Context, run: StageRun, reader: Reader, embedder: Embedder, null_offset: float, **counts: int
) -> None:
    """Export a reader and an embedder, and end the stage."""

    def write(scratch: Path) -> None:
        write_reader(reader, scratch / "reader", span_head=run.stage == "finetune" and reader.has_span_head)
        write_embedder(embedder, scratch / "embedder", null_offset)
        for name in ("reader", "embedder"):
            save_tokenizer(context.tokenizer, scratch / name, reader.encoder.shape.positions)
            write_text(scratch / name / "README.md", CARD.format(name=name))

    end_stage(run, write, counts)


def end_stage(run: StageRun, write: Callable[[Path], None], counts: Mapping[str, int]) -> None:
    """Export what `write` writes into a folder, write the last metrics and `counts` as results, drop checkpoints and
    index; the first rank does."""
    if ranks().rank:
        return
    with atomic_directory(run.path / "model") as scratch:
        write(scratch)
        write_json(scratch / "manifest.json", {"stage": run.stage, "key": run.key, "engine_version": ENGINE_VERSION})
    close(run, **counts)


def close(run: StageRun, **counts: int) -> None:
    """Write the last metrics and `counts` as results, drop checkpoints and index."""
    last: dict[str, float] = dict(counts)
    for row in run.metrics.rows():
        last |= {name: value for name, value in row.items() if name not in ("step", "time")}
    run.finish(last)
    for name in ("checkpoints", "index"):
        shutil.rmtree(run.path / name, ignore_errors=True)
