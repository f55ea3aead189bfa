"""Fine-tuning against the enumeration of every span and passage, and what each of its switches changes."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from realm_lab.core.seeding import epoch_order
from realm_lab.errors import UserError
from realm_lab.models.inputs import join
from realm_lab.training.finetune import FinetuneTask
from realm_lab.training.loop import NonFiniteLoss
from realm_lab.training.optimiser import ScheduledAdamW

if TYPE_CHECKING:
    from tests.tiny_system import Reference, TinySystem

SEED, BATCH, PASSAGES, EARLY, WIDTH = 5, 8, 12, 40, 3


def make_task(system: TinySystem, dropout: float = 0.0, launch: dict[str, Any] | None = None, **finetune: Any) -> Any:
    """A task on copies of the system's models."""
    chosen: dict[str, Any] = {
        "batch_size": BATCH,
        "candidates": PASSAGES,
        "max_span_wordpieces": WIDTH,
        "early_loss_candidates": 0,
    }
    rate = system.params.finetune.reader.model_copy(update={"warmup_steps": 0, "learning_rate": 1e-3})
    chosen |= {"steps": 50, "reader": rate, "retriever": rate} | finetune
    updated = {
        "finetune": system.params.finetune.model_copy(update=chosen),
        "launch": system.params.launch.model_copy(update=launch or {}),
    }
    params = system.params.model_copy(update=updated)
    retriever = system.retriever(copy.deepcopy(system.embedder))
    retriever.refresh(0)
    reader = copy.deepcopy(system.reader)
    for module in (*reader.modules(), *retriever.embedder.modules()):
        if isinstance(module, nn.Dropout):
            module.p = dropout
    questions = system.corpus.questions("train")
    return FinetuneTask(params, SEED, retriever, reader, questions, system.tokenizer, system.special)


def weights(task: FinetuneTask) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in task.tensors().items() if name.split(".")[0] in PARTS}


PARTS = {"reader", "embedder"}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Which of reader, query_* and document_* have another bit."""
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    return {name.split(".")[1].split("_")[0] if name.startswith("embedder") else "reader" for name in changed}


def gradients(task: FinetuneTask, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The values and gradients of the first step, without the step."""
    with monkeypatch.context() as patches:
        patches.setattr(ScheduledAdamW, "step", lambda self, step: {})
        torch.manual_seed(0)
        values = task.train_step(0)
    found: dict[str, Tensor] = {}
    for name, module in (("reader", task.reader), ("embedder", task.retriever.embedder)):
        found |= {f"{name}.{key}": p.grad for key, p in module.named_parameters() if p.grad is not None}
    return values, found


class Enumeration:
    """Both terms of a question's loss from single sequences, in plain Python and float64."""

    def __init__(self, system: TinySystem, reference: Reference):
        self.system, self.reference = system, reference
        self.questions = system.corpus.questions("train")
        self.documents = [reference.document(row) for row in range(len(system.passages))]

    def chosen(self, count: int = BATCH) -> list[int]:
        return [int(n) for n in epoch_order(len(self.questions), SEED, "finetune-questions").take(0, count)]

    def answers(self, number: int) -> list[list[int]]:
        tokenizer = self.system.tokenizer
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in self.questions.answers[number]]

    def ranked(self, number: int) -> list[tuple[int, float]]:
        """Every passage with f(x, z), best first."""
        query = self.reference.query(self.questions.tokens[number])
        scores = [(query @ document).item() for document in self.documents]
        return sorted(enumerate(scores), key=lambda item: -item[1])

    def reader_term(self, number: int, passages: int, softmax: str) -> float | None:
        """log p(y|x), None where no passage holds the answer."""
        ranked = self.ranked(number)[:passages]
        answers = self.answers(number)
        prior = sum(math.exp(score) for _, score in ranked)
        gold_joint = all_joint = factored = 0.0
        for row, score in ranked:
            body = self.system.passages.bodies[row].tolist()
            logits = self.reference.span_logits(self.questions.tokens[number], np.array(body), WIDTH)
            total = sum(math.exp(logit) for logit in logits.values())
            gold = sum(math.exp(logit) for (s, e), logit in logits.items() if body[s : e + 1] in answers)
            factored += math.exp(score) / prior * gold / total
            gold_joint += math.exp(score) * gold
            all_joint += math.exp(score) * total
        if not gold_joint:
            return None
        return math.log(factored if softmax == "factored" else gold_joint / all_joint)

    def early_term(self, number: int, passages: int) -> float | None:
        """log p_early, None where no passage holds an answer; the passages are searched as text."""
        ranked = self.ranked(number)[:passages]
        wanted = [" ".join(["", *map(str, answer), ""]) for answer in self.answers(number)]
        bodies = [" ".join(["", *map(str, self.system.passages.bodies[row].tolist()), ""]) for row, _ in ranked]
        held = [math.exp(s) for (_, s), body in zip(ranked, bodies, strict=True) if any(w in body for w in wanted)]
        return math.log(sum(held) / sum(math.exp(score) for _, score in ranked)) if held else None


@pytest.fixture(scope="module")
def enumeration(system: TinySystem, reference: Reference) -> Enumeration:
    return Enumeration(system, reference)


@pytest.mark.parametrize("early", [0, EARLY])
@pytest.mark.parametrize("softmax", ["factored", "joint"])
def test_the_loss_is_that_of_every_span_and_passage(
    system: TinySystem, enumeration: Enumeration, softmax: str, early: int
) -> None:
    values = make_task(system, softmax=softmax, early_loss_candidates=early).train_step(0)
    numbers = enumeration.chosen()
    reader = [enumeration.reader_term(number, PASSAGES, softmax) for number in numbers]
    first = [enumeration.early_term(number, early) if early else None for number in numbers]
    known, known_early = [[value for value in terms if value is not None] for terms in (reader, first)]
    useful = sum(one is not None or two is not None for one, two in zip(reader, first, strict=True))
    assert 0 < len(known) < useful or not early  # some have one positive, some both
    assert useful < BATCH or early  # some have none
    assert values["loss_reader"] == pytest.approx(-sum(known) / useful, rel=1e-4)
    assert values["loss"] == pytest.approx(-(sum(known) + sum(known_early)) / useful, rel=1e-4)
    assert values["marginal_log_likelihood"] == pytest.approx(sum(known) / len(known), rel=1e-4)
    assert values["answerable_fraction"] == len(known) / BATCH
    assert ("loss_early" in values) == ("early_answerable_fraction" in values) == bool(early)
    if early:
        assert values["loss_early"] == pytest.approx(-sum(known_early) / useful, rel=1e-4)
        assert values["early_answerable_fraction"] == len(known_early) / BATCH


def test_the_early_softmax_is_over_exactly_its_passages(system: TinySystem, enumeration: Enumeration) -> None:
    for early in (PASSAGES, 23, len(system.passages)):
        values = make_task(system, early_loss_candidates=early).train_step(0)
        terms = [enumeration.early_term(number, early) for number in enumeration.chosen()]
        known = [term for term in terms if term is not None]
        assert values["loss_early"] == pytest.approx(-sum(known) / len(known), rel=1e-4)
        assert values["early_answerable_fraction"] == len(known) / BATCH
    assert values["early_answerable_fraction"] == 1  # in all of the corpus


def plain_loss(task: FinetuneTask, system: TinySystem, numbers: list[int], softmax: str, early: int) -> Tensor:
    """The loss with its graph, one sequence at a time and span by span, on the task's own weights."""
    enumerate_answers = Enumeration.answers
    holder = type("Holder", (), {"system": system, "questions": system.corpus.questions("train")})()
    index = task.retriever.index
    assert index is not None
    terms = []
    for number in numbers:
        query, answers = holder.questions.tokens[number], enumerate_answers(holder, number)
        batch = join([query], None, system.special, system.params.corpus.sentence_length)
        score_N = index.embeddings_ND @ task.retriever.embedder.embed_queries(batch)[0]
        order = score_N.argsort(descending=True).tolist()
        pieces: dict[bool, list[Tensor]] = {True: [], False: []}
        factored = []
        log_prior_K = score_N[order[:PASSAGES]].log_softmax(0)
        for place, row in enumerate(order[:PASSAGES]):
            body = system.passages.bodies[row]
            joined = join([query], [body], system.special, 1000)
            logits_LW = task.reader.span_logits(joined, WIDTH)[0]
            spans = [(s, w) for s in range(len(body)) for w in range(WIDTH) if s + w < len(body)]
            own: dict[bool, list[Tensor]] = {True: [], False: []}
            for s, w in spans:
                own[body[s : s + w + 1].tolist() in answers].append(logits_LW[len(query) + 2 + s, w])
            total = torch.stack([*own[True], *own[False]]).logsumexp(0)
            for held, logits in own.items():
                pieces[held] += [logit + score_N[row] for logit in logits]
            if own[True]:
                factored.append(log_prior_K[place] + torch.stack(own[True]).logsumexp(0) - total)
        term = torch.zeros(())
        if pieces[True] and softmax == "factored":
            term = term - torch.stack(factored).logsumexp(0)
        elif pieces[True]:
            everything = torch.stack([*pieces[True], *pieces[False]])
            term = term - (torch.stack(pieces[True]).logsumexp(0) - everything.logsumexp(0))
        texts = [" ".join(["", *map(str, answer), ""]) for answer in answers]
        held_rows = []
        for row in order[:early]:
            body_text = " ".join(["", *map(str, system.passages.bodies[row].tolist()), ""])
            held_rows += [row] if any(text in body_text for text in texts) else []
        if held_rows:
            term = term - (score_N[held_rows].logsumexp(0) - score_N[order[:early]].logsumexp(0))
        if pieces[True] or held_rows:
            terms.append(term)
    return torch.stack(terms).mean()


@pytest.mark.parametrize("early", [0, EARLY])
@pytest.mark.parametrize("softmax", ["factored", "joint"])
def test_gradients_are_those_of_the_enumerated_loss(
    system: TinySystem, enumeration: Enumeration, monkeypatch: pytest.MonkeyPatch, softmax: str, early: int
) -> None:
    task = make_task(system, softmax=softmax, early_loss_candidates=early, batch_size=4)
    values, found = gradients(task, monkeypatch)
    task.reader.zero_grad()
    task.retriever.embedder.zero_grad()
    loss = plain_loss(task, system, enumeration.chosen(4), softmax, early)
    loss.backward()
    assert values["loss"] == pytest.approx(loss.item(), rel=1e-4)
    compared = {"reader": 0, "embedder": 0}
    for name, module in (("reader", task.reader), ("embedder", task.retriever.embedder)):
        for key, parameter in module.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(found[f"{name}.{key}"], parameter.grad, atol=2e-5, rtol=2e-3)
                compared[name] += 1
            else:
                assert f"{name}.{key}" not in found
    assert min(compared.values()) > 5


@pytest.mark.parametrize("micro_batch", [1, 3])
@pytest.mark.parametrize("softmax", ["factored", "joint"])
def test_a_micro_batch_changes_no_gradient(
    system: TinySystem, monkeypatch: pytest.MonkeyPatch, softmax: str, micro_batch: int
) -> None:
    settings: dict[str, Any] = {"softmax": softmax, "early_loss_candidates": EARLY, "batch_size": 32}
    whole, expected = gradients(make_task(system, **settings), monkeypatch)
    task = make_task(system, launch={"micro_batch": micro_batch}, **settings)
    reads: list[int] = []
    original = task._read

    def read(found: Any) -> Any:
        reads.append(len(found.queries))
        return original(found)

    task._read = read
    values, found = gradients(task, monkeypatch)
    assert max(reads) <= micro_batch < sum(reads)
    assert values == pytest.approx(whole, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-3)


def test_reading_twice_changes_no_gradient(system: TinySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    original = type(system.reader).span_logits

    def counted(self: Any, *rest: Any) -> Tensor:
        reads.append(len(rest))
        logits: Tensor = original(self, *rest)
        return logits

    monkeypatch.setattr(type(system.reader), "span_logits", counted)
    results = []
    for recompute in (False, True):
        reads.clear()
        task = make_task(system, dropout=0.1, launch={"recompute": recompute}, softmax="joint")
        results.append((*gradients(task, monkeypatch), len(reads)))
    (one, ours, once), (other, theirs, twice) = results
    assert twice == 2 * once
    assert one == other
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def single_steps(system: TinySystem, **finetune: Any) -> list[tuple[dict[str, float], set[str]]]:
    """Thirty steps of one question: what each says and what it moves."""
    task = make_task(system, batch_size=1, **finetune)
    steps = []
    for step in range(30):
        before = weights(task)
        steps.append((task.train_step(step), moved(before, weights(task))))
    return steps


def test_a_question_without_a_positive_makes_no_step(system: TinySystem) -> None:
    steps = single_steps(system, candidates=2, early_loss_candidates=6)
    empty = [(values, parts) for values, parts in steps if "loss" not in values]
    assert empty
    for values, parts in empty:
        assert values == {"answerable_fraction": 0.0, "early_answerable_fraction": 0.0}
        assert not parts
    assert any(parts == {"reader", "query"} for _, parts in steps)


def test_the_early_loss_trains_the_query_tower_alone(system: TinySystem) -> None:
    steps = single_steps(system, candidates=1, early_loss_candidates=EARLY)
    alone = [(v, parts) for v, parts in steps if v["answerable_fraction"] == 0 and "loss" in v]
    assert alone
    for values, parts in alone:
        assert parts == {"query"}
        assert values["loss_reader"] == 0
        assert values["loss"] == values["loss_early"] > 0


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({}, {"reader", "query"}),
        ({"train_reader": False}, {"query"}),
        ({"train_query_tower": False}, {"reader"}),
        ({"train_reader": False, "softmax": "joint"}, {"query"}),
    ],
)
def test_what_does_not_train_keeps_every_bit(system: TinySystem, settings: dict[str, Any], parts: set[str]) -> None:
    task = make_task(system, dropout=0.1, early_loss_candidates=EARLY, **settings)
    before = weights(task)
    values: dict[str, float] = {}
    for step in range(4):
        values |= task.train_step(step)
    assert moved(before, weights(task)) == parts
    rates = {name for name in values if name.startswith("learning_rate")}
    assert rates == {f"learning_rate_{'reader' if part == 'reader' else 'retriever'}" for part in parts}
    assert task.reader.training is ("reader" in parts)  # what is frozen drops nothing out
    assert task.retriever.embedder.training is ("query" in parts)
    for name, module in (("reader", task.reader), ("embedder", task.retriever.embedder)):
        for key, parameter in module.named_parameters():
            trains = "reader" in parts if name == "reader" else key.startswith("query") and "query" in parts
            assert parameter.requires_grad is trains
            assert trains or parameter.grad is None
    moments = {name.split(".")[0] for name in task.tensors() if name.endswith("exp_avg")}
    assert moments == {"reader" if part == "reader" else "retriever" for part in parts}


def test_a_loss_that_is_not_finite_names_its_questions(system: TinySystem) -> None:
    task = make_task(system)
    with torch.no_grad():
        task.reader.span_score.weight.fill_(math.nan)
    before = weights(task)
    with pytest.raises(NonFiniteLoss) as caught:
        task.train_step(0)
    texts = system.corpus.questions("train").texts
    numbers = epoch_order(len(texts), SEED, "finetune-questions").take(0, BATCH)
    assert caught.value.batch == {"questions": [texts[int(number)] for number in numbers]}
    assert moved({k: v for k, v in before.items() if "span_score.weight" not in k}, weights(task)) == set()


@pytest.mark.parametrize("name", ["candidates", "early_loss_candidates"])
def test_more_passages_than_there_are_is_refused(system: TinySystem, name: str) -> None:
    count = len(system.passages)
    settings: dict[str, Any] = {name: count}
    make_task(system, **settings)
    with pytest.raises(UserError, match=rf"'finetune.{name}' is {count + 1}, but .* has only {count} passages"):
        make_task(system, **{**settings, name: count + 1})
