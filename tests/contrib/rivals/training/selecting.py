"""BM25's passages instead of a retriever, a task on them, and its loss by hand."""

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realm_lab.contrib.rivals.training.selection import SelectionTask
from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.models.inputs import join
from realm_lab.engine.systems.bm25 import Bm25, texts_of
from tests.tiny_system import TinySystem

SEED, BATCH, PASSAGES, WIDTH = 5, 6, 7, 3


def holds(system: TinySystem, number: int, row: int) -> bool:
    """True if a passage has an answer of a training question: by letters, not by wordpieces."""
    body = f" {system.passages.text.row(row)['body'].lower()} "
    return any(f" {answer.lower()} " in body for answer in system.corpus.questions("train").answers[number])


class Found:
    """BM25's passages of the training questions where a retriever is expected; a "vector" is a question's number."""

    def __init__(self, system: TinySystem):
        self.system, self.passages = system, system.passages
        self.embedder = copy.deepcopy(system.embedder)

    @cached_property
    def rows(self) -> dict[bytes, np.ndarray]:
        questions = self.system.corpus.questions("train")
        found = Bm25.of_texts(*texts_of(self.passages)).search(questions.texts, 100).rows_QK
        return {questions.tokens[number].tobytes(): found[number] for number in range(len(questions))}

    def embed_queries(self, queries: list[np.ndarray]) -> Tensor:
        self._asked = [self.rows[query.tobytes()] for query in queries]
        return torch.zeros(len(queries), 1)

    def find(self, query_BD: Tensor, count: int) -> np.ndarray:
        return np.stack(self._asked)[:, :count]

    def indexed_score(self, query_BD: Tensor, rows_BK: np.ndarray) -> Tensor:
        return torch.full(rows_BK.shape, torch.nan)  # not to be used


def make_task(system: TinySystem, found: Found, kind: Any = SelectionTask, **finetune: Any) -> Any:
    rate = system.params.finetune.reader.model_copy(update={"warmup_steps": 0, "learning_rate": 3e-3})
    fixed = {"softmax": "selected", "train_query_tower": False, "early_loss_candidates": 0}
    sizes = {"batch_size": BATCH, "candidates": PASSAGES, "max_span_wordpieces": WIDTH, "steps": 50, "reader": rate}
    params = system.params.model_copy(
        update={"finetune": system.params.finetune.model_copy(update=fixed | sizes | finetune)}
    )
    reader = copy.deepcopy(system.reader)
    reader.add_selection(torch.Generator().manual_seed(1))
    given = found, reader, system.corpus.questions("train"), system.tokenizer, system.special
    return kind(params, SEED, *given)


def by_hand(task: Any, system: TinySystem, over_spans: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean of -log p(z+|x) - log p(y|z+,x), each passage and each span by itself, with the graph."""
    questions, losses = system.corpus.questions("train"), []
    for number in EpochOrder(len(questions), SEED, "finetune-questions").take(0, BATCH).tolist():
        query = questions.tokens[number]
        answers = [answer.tolist() for answer in task._answers[number]]
        selection, spans = [], []
        rows_C = task._find(np.array([number]))[0].rows_BC[0]
        for row in rows_C[rows_C >= 0].tolist():
            body = system.passages.bodies[row]
            batch = join([query], [body], system.special, 1000)
            selection.append(task.reader.selection.weight[0] @ task.reader.encoder(*batch)[0, 0])
            spans.append((body, task.reader.span_logits(batch, WIDTH)[0]))
        body, logits_LW = spans[0]
        logits = {
            (s, w): logits_LW[len(query) + 2 + s, w]
            for s in range(len(body)) for w in range(WIDTH) if s + w < len(body)
        }  # fmt: skip
        gold = [logit for (s, w), logit in logits.items() if body[s : s + w + 1].tolist() in answers]
        log_span = over_spans(torch.stack(gold)) - torch.stack(list(logits.values())).logsumexp(0)
        losses.append(-torch.stack(selection).log_softmax(0)[0] - log_span)
    return torch.stack(losses).mean()
