"""DPR (Karpukhin et al. 2020): towers trained on questions with their passages, then a reader on retrieved passages.

Simplified: the towers come from the warm start, not from plain BERT, and have its projection; the reader is
`bm25_dpr_reader`'s; one epoch order instead of the paper's choice of a checkpoint by its validation rank. The peak
learning rate is finetune.retriever's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from realm_lab.contrib.rivals.selecting import FINETUNE_SELECTING, SelectingOptions, SelectsPassage
from realm_lab.errors import UserError
from realm_lab.params.sections import NonNegative, Positive
from realm_lab.systems.reading import DenseRetriever
from realm_lab.systems.realm import WARM_START
from realm_lab.systems.registry import EVALUATE, Stage

if TYPE_CHECKING:
    from realm_lab.systems.context import Context
    from realm_lab.tracking.run_dir import StageRun

DEPTH = 100  # passages of BM25 in which positives and negatives are looked for (the paper's)


class DprOptions(SelectingOptions):
    """`system_options.dpr`."""

    steps: NonNegative = 18_400
    """Optimiser steps of the towers (40 epochs of the paper's 58,880 questions)."""
    batch_size: Positive = 128
    """Questions per step, which are each other's negatives (the paper's)."""


class Dpr(SelectsPassage, DenseRetriever):
    """Dense retrieval trained only on questions."""

    name = "dpr"
    title = "DPR"
    options = DprOptions
    stages = (
        WARM_START,
        Stage(
            "dpr",
            ("model", "finetune.retriever", "system_options"),
            "realm_lab.contrib.rivals.dpr:train_towers",
            steps="system_options.steps",
        ),
        FINETUNE_SELECTING,
        EVALUATE,
    )


def train_towers(context: Context, run: StageRun) -> None:
    """Train both towers on the training questions; the reader of the warm start is handed on."""
    from realm_lab.contrib.rivals.training.dual_encoder import DualEncoderTask, label
    from realm_lab.systems.stages.ending import compile_encoders, finish
    from realm_lab.training.loop import train

    options = context.options(DprOptions)
    questions, passages = context.corpus.questions("train"), context.passages
    answers = context.answer_wordpieces(questions)
    found_QK = context.bm25.search(questions.texts, DEPTH).rows_QK
    labelled = label(questions, answers, passages, found_QK)
    if not len(labelled.questions):
        raise UserError("no training question has a passage with its answer; name questions in corpus.files")
    reader = context.load_reader("warm_start").to(context.device)
    embedder = context.load_embedder("warm_start")[0].to(context.device)
    embedder.set_learned_null(False)
    compile_encoders(context.params, embedder.query_encoder, embedder.document_encoder)
    models = reader, embedder, labelled, questions, answers, passages, context.special
    seed = context.order_seed(run.stage)
    task = DualEncoderTask(context.params, seed, options.steps, options.batch_size, *models)
    train(task, run, context.params.launch, context.device)
    counts = {
        "questions_trained": len(labelled.questions),
        "questions_without_passage": len(questions) - len(labelled.questions),
        "questions_without_negative": int((labelled.negatives < 0).sum()),
    }
    finish(context, run, reader, embedder, 0.0, **counts)
