"""Readers that select the passage: their examples, the losses of all variants by hand, the schedule of hard EM."""

import copy
from collections.abc import Callable
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib.rivals.training.selection import HardEmTask, SelectionTask, best_answer_log_probs
from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.corpus.store import NO_ROW
from realm_lab.engine.models.inputs import join
from realm_lab.engine.models.spans import NO_ANSWER, span_log_probs
from realm_lab.engine.systems.bm25 import Bm25, texts_of
from realm_lab.engine.training.optimiser import ScheduledAdamW
from tests.tiny_system import TinySystem

SEED, BATCH, PASSAGES, WIDTH = 5, 6, 7, 3


def holds(system: TinySystem, number: int, row: int) -> bool:
    """True if a passage has an answer of a training question: by letters, not by wordpieces."""
    body = f" {system.passages.text.row(row)['body'].lower()} "
    return any(f" {answer.lower()} " in body for answer in system.corpus.questions("train").answers[number])


class Found:
    """Stands for a retriever: finds BM25's passages of the training questions; a "vector" is a question's number."""

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


@pytest.fixture(scope="module")
def found(system: TinySystem) -> Found:
    return Found(system)


def test_one_passage_with_the_answer_and_others_without_are_drawn_anew(system: TinySystem, found: Found) -> None:
    task, drawn = make_task(system, found), list[list[list[int]]]()
    numbers = np.arange(8)
    for step in (0, 1, 0):
        task._step = step
        rows_BK = task._find(numbers)[0].rows_BC
        for number, (positive, *negatives) in zip(numbers.tolist(), rows_BK.tolist(), strict=True):
            assert holds(system, number, positive)
            assert len({*negatives} - {NO_ROW}) == PASSAGES - 1
            assert not any(holds(system, number, row) for row in negatives)
        drawn.append(rows_BK.tolist())
    assert drawn[0] == drawn[2] != drawn[1]


def test_the_loss_and_its_gradient_are_those_of_the_paper(
    system: TinySystem, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScheduledAdamW, "step", lambda self, step: {})
    task = make_task(system, found)
    values = task.train_step(0)
    gradients = {name: p.grad for name, p in task.reader.named_parameters() if p.grad is not None}
    assert values["answerable_fraction"] == 1
    task.reader.zero_grad()
    loss = by_hand(task, system, lambda gold: gold.logsumexp(0))
    assert values["loss"] == pytest.approx(loss.item(), rel=1e-5)
    loss.backward()
    assert "selection.weight" in gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, task.reader.get_parameter(name).grad, atol=2e-5, rtol=2e-3)


@pytest.mark.slow
def test_it_learns_to_select_the_passage(system: TinySystem, found: Found) -> None:
    """Retrieval scores do not matter: they are NaN here."""
    task = make_task(system, found)
    task._order = EpochOrder(BATCH, SEED)  # the same few questions in every step
    for step in range(40):
        task.train_step(step)
    task.reader.eval()
    task._step = 100  # negatives that were not drawn before, among others
    drawn = task._find(np.arange(BATCH))[0]
    with torch.no_grad():
        logits_BK = task._read(drawn)[1]
        untrained_BK = make_task(system, found)._read(drawn)[1]
    assert logits_BK.argmax(1).eq(0).float().mean() > 0.8 > untrained_BK.argmax(1).eq(0).float().mean() + 0.3


def test_fewer_passages_than_asked_for_and_questions_without_a_positive(system: TinySystem, found: Found) -> None:
    task, questions = make_task(system, found), system.corpus.questions("train")
    chosen = EpochOrder(len(questions), SEED, "finetune-questions").take(0, BATCH).tolist()
    few = copy.copy(found)
    few.rows = dict(found.rows)
    for place, number in enumerate(chosen):
        positive, *negatives = task._find(np.array([number]))[0].rows_BC[0].tolist()
        few.rows[questions.tokens[number].tobytes()] = np.array([positive if place % 2 else NO_ROW, *negatives[:2]])
    task.retriever = few
    values = task.train_step(0)
    assert values["answerable_fraction"] == 0.5
    assert 0 < values["loss"] < 100
    drawn = task._find(np.array(chosen[:2]))[0].rows_BC
    assert (drawn >= 0).sum(1).tolist() == [0, 3]


TAU = 10
OVER_SPANS: dict[str, Callable[[Tensor], Tensor]] = {
    "hard_em": lambda gold: gold.max(),
    "first_only": lambda gold: gold[0],
    "mml": lambda gold: gold.logsumexp(0),
}


def hard_em_task(system: TinySystem, found: Found, variant: Any) -> Any:
    return make_task(system, found, partial(HardEmTask, variant=variant, tau_steps=TAU))


@pytest.mark.parametrize("variant", OVER_SPANS)
def test_the_loss_is_that_of_the_variant(system: TinySystem, monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    monkeypatch.setattr(ScheduledAdamW, "step", lambda self, step: {})
    task = hard_em_task(system, Found(system), variant)
    for number, answers in enumerate(task._answers):  # the title of its passage is in the passage more than once
        task._answers[number] = [*answers, system.passages.titles[system.corpus.questions("train").gold[number][0]]]
    monkeypatch.setattr("realm_lab.contrib.rivals.training.selection.MOST_HARD", 1.0)
    first = EpochOrder(len(task._answers), task.seed, "finetune-questions").take(0, BATCH)
    task._order = SimpleNamespace(take=lambda start, count: first)  # the batch that by_hand reads
    values = task.train_step(TAU)
    assert values["hard_update"] == float(variant == "hard_em")
    losses = {name: by_hand(task, system, over_spans).item() for name, over_spans in OVER_SPANS.items()}
    assert values["loss"] == pytest.approx(losses[variant], rel=1e-5)
    assert len({round(loss, 4) for loss in losses.values()}) == 3


def test_the_probability_of_a_hard_step_rises_to_its_most(system: TinySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SelectionTask, "train_step", lambda self, step: {})
    found = Found(system)
    task = hard_em_task(system, found, "hard_em")
    task._tau_steps = 2000
    hard = [task.train_step(step)["hard_update"] for step in range(4000)]
    assert hard[0] == 0
    assert np.mean(hard[:1000]) == pytest.approx(0.25, abs=0.04)
    assert np.mean(hard[1000:1600]) == pytest.approx(0.65, abs=0.06)
    assert np.mean(hard[1600:]) == pytest.approx(0.8, abs=0.03)
    assert [task.train_step(step)["hard_update"] for step in (3000, 3001)] == hard[3000:3002]  # whatever ran before
    for variant in ("first_only", "mml"):
        other = hard_em_task(system, found, variant)
        assert not any(other.train_step(step)["hard_update"] for step in range(0, 400, 7))


def test_the_likeliest_place_is_the_largest_of_those_marked() -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs_NLW = span_log_probs(torch.randn(5, 7, 3, generator=generator))
    marked_NLW = torch.rand(5, 7, 3, generator=generator) < 0.2
    marked_NLW[2] = False
    found = best_answer_log_probs(log_probs_NLW, marked_NLW).tolist()
    for number, value in enumerate(found):
        places = marked_NLW[number].nonzero().tolist()
        expected = max((log_probs_NLW[number, s, w].item() for s, w in places), default=NO_ANSWER)
        assert value == pytest.approx(expected)
