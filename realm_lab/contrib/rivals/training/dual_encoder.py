"""Supervised training of the retriever's towers on questions (Karpukhin et al. 2020, DPR)."""

# Shapes: B questions of this rank, G passages of all ranks, D embedding size, K passages by BM25

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from realm_lab.contrib.rivals.dpr import DprOptions
from realm_lab.contrib.rivals.training.selection import DEPTH
from realm_lab.engine.core.process import autocast, gather_rows, ranks, share, summed
from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.corpus.store import NO_ROW, Passages, Questions
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.evaluation.judged import is_question
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.initial import frozen_names
from realm_lab.engine.models.inputs import join
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.models.spans import holds_answer
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.stages.ending import compile_encoders, finish
from realm_lab.engine.training.loop import train
from realm_lab.engine.training.optimiser import ModelsTask, TrainedModels
from realm_lab.errors import UserError
from realm_lab.records.run import StageRun

Answers = Sequence[Sequence[np.ndarray]]  # of each question, the wordpieces of each of its answers


class LabelledPassages(NamedTuple):
    """The usable questions in order: their numbers, and rows of a positive and a negative passage for each."""

    questions: np.ndarray
    positives: np.ndarray
    negatives: np.ndarray  # NO_ROW: there is no judged negative, and none among the passages of BM25


def label(questions: Questions, answers: Answers, passages: Passages, found_QK: np.ndarray) -> LabelledPassages:
    """Choose examples. The positive of a question is its first gold passage, else the best of BM25 (`found_QK`) with an
    answer; a question with neither is left out. The negative is the first passage that is judged irrelevant (a hard
    negative of the file), else the best of BM25 without an answer; never a gold passage or the question itself."""
    labelled = []
    for number, rows_K in enumerate(found_QK):
        rows, gold = rows_K[rows_K >= 0], questions.gold[number]
        held = holds_answer(passages.bodies, rows, answers[number])
        positives = [*gold, *rows[held]]
        judged = questions.judged[number]
        hard = judged[(questions.relevance[number] <= 0) & (judged != NO_ROW) & ~np.isin(judged, gold)]
        asked = questions.ids[number], questions.texts[number]
        others = (row for row in rows[~held & ~np.isin(rows, gold)] if not is_question(passages.text.row(row), *asked))
        if positives:
            labelled.append((number, positives[0], next(chain(hard, others), NO_ROW)))
    return LabelledPassages(*np.array(labelled, np.int64).reshape(-1, 3).T)


class DualEncoderTask(ModelsTask):
    """In-batch softmax from a question to its positive, among the positives and negatives of all questions of a step.

    A passage of another question that contains an answer to this one, or is gold for it, is not a negative: a small
    corpus has many such passages. (The paper mentions no such rule.) The reader is saved with the towers, untrained.
    """

    def __init__(
        self,
        params: Params,
        seed: int,
        steps: int,
        batch_size: int,
        reader: Reader,
        embedder: Embedder,
        labelled: LabelledPassages,
        questions: Questions,
        answers: Answers,
        passages: Passages,
        special: SpecialIds,
    ):
        self.seed, self.total_steps, self._batch_size = seed, steps, batch_size
        self._params, self._special, self._passages = params, special, passages
        self.embedder, self._labelled, self._questions, self._answers = embedder, labelled, questions, answers
        self._device = next(embedder.parameters()).device
        if batch_size < ranks().size:
            raise UserError(
                f"parameter 'system_options.dpr.batch_size' is {batch_size}, fewer than the {ranks().size} ranks that "
                "share a batch; raise it, or lower launch.ranks"
            )
        self._order = EpochOrder(len(labelled.questions), seed, "dual-encoder-questions")
        self._models = TrainedModels(reader, embedder)
        settings = params.finetune
        self._models.train("reader", reader, settings.reader, steps, set(), False)
        self._models.train("retriever", embedder, settings.retriever, steps, frozen_names(embedder, params))

    def train_step(self, step: int) -> dict[str, float]:
        """Run one step on the mean of -log p(positive | question); the passages of all ranks are each other's
        negatives."""
        size = self._batch_size
        chosen = self._order.take(step * size, size)
        numbers, positives, negatives = (column[chosen] for column in self._labelled)
        mine = range(size)[share(size)]
        self.embedder.train()
        self._models.zero_grad()
        own = slice(mine.start, mine.stop)
        query_BD, document_GD = self._embed(numbers[own], positives[own], negatives[own])
        rows_G = np.concatenate([positives, negatives[negatives != NO_ROW]])
        excluded_BG = np.stack([self._excluded(int(numbers[position]), position, rows_G) for position in mine])
        score_BG = (query_BD @ document_GD.T).masked_fill(torch.from_numpy(excluded_BG).to(self._device), -torch.inf)
        target_B = torch.tensor(mine, device=self._device)
        loss = functional.cross_entropy(score_BG, target_B, reduction="sum") / size
        loss.backward()
        right = (score_BG.argmax(1) == target_B).float().sum().item()
        total, right = summed(loss.item(), right)
        return {"loss": total, "accuracy_in_batch": right / size, **self._models.step(step)}

    def _embed(self, numbers: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return this rank's questions [B, D], and the passages of all ranks, positives first, [G, D]."""
        rows = [*positives, *negatives[negatives != NO_ROW]]
        titles, bodies = ([part[row] for row in rows] for part in (self._passages.titles, self._passages.bodies))
        queries, corpus = [self._questions.tokens[int(number)] for number in numbers], self._params.corpus
        with autocast(self._device, self._params.model.precision):
            batch = join(queries, None, self._special, corpus.sentence_length).to(self._device)
            query_BD = self.embedder.embed_queries(batch)
            batch = join(titles, bodies, self._special, corpus.passage_length).to(self._device)
            document_D = self.embedder.embed_documents(batch)
        parts = document_D[: len(positives)], document_D[len(positives) :]
        return query_BD, torch.cat([gather_rows(part) for part in parts])

    def _excluded(self, number: int, position: int, rows_G: np.ndarray) -> np.ndarray:
        """Mark passages that are left out of a question's softmax, bool [G]: those with an answer to it, and gold ones.
        Its positive, at `position`, stays."""
        gold = [rows_G[position], *self._questions.gold[number]]
        excluded_G: np.ndarray = holds_answer(self._passages.bodies, rows_G, self._answers[number])
        excluded_G |= np.isin(rows_G, gold)
        excluded_G[position] = False
        return excluded_G


def train_towers(context: Context, run: StageRun) -> None:
    """Train both towers on the training questions, and keep the reader of the warm start."""
    options = context.options(DprOptions)
    questions, passages = context.corpus.questions("train"), context.passages
    answers = context.answer_wordpieces(questions)
    found_QK = context.bm25.with_options(options).search(questions.texts, DEPTH).rows_QK
    labelled = label(questions, answers, passages, found_QK)
    if not len(labelled.questions):
        raise UserError("no passage answers training questions; name others in corpus.files.questions_train")
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
