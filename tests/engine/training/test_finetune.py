"""Fine-tuning against the enumeration of every span and passage, and the effect of each of its switches."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.corpus.vocabulary import answer_wordpieces
from realm_lab.engine.models.inputs import join
from realm_lab.engine.training.finetune import FinetuneTask
from realm_lab.engine.training.optimiser import ScheduledAdamW
from realm_lab.errors import UserError
from tests.tiny_system import TinySystem

SEED, BATCH, PASSAGES, EARLY, WIDTH = 5, 8, 12, 40, 3


def make_task(system: TinySystem, dropout: float = 0.0, launch: dict[str, Any] | None = None, **finetune: Any) -> Any:
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
    """Return the parts of reader, query_* and document_* that changed in some bit."""
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    return {name.split(".")[1].split("_")[0] if name.startswith("embedder") else "reader" for name in changed}


def gradients(task: FinetuneTask, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, float], dict[str, Tensor]]:
    with monkeypatch.context() as patches:
        patches.setattr(ScheduledAdamW, "step", lambda self, step: {})
        torch.manual_seed(0)
        values = task.train_step(0)
    found: dict[str, Tensor] = {}
    for name, module in (("reader", task.reader), ("embedder", task.retriever.embedder)):
        found |= {f"{name}.{key}": p.grad for key, p in module.named_parameters() if p.grad is not None}
    return values, found


def log_share(held: list[Tensor], every: list[Tensor]) -> Tensor | None:
    """Log of the softmax's share of some of the scores; None for none of them."""
    return torch.stack(held).logsumexp(0) - torch.stack(every).logsumexp(0) if held else None


def enumerated(
    task: FinetuneTask, system: TinySystem, softmax: str, early: int
) -> list[tuple[Tensor | None, Tensor | None]]:
    """log p(y|x) and log p_early of the batch's questions, each passage and each span by itself; None for none.

    On the task's own weights, with their graph. Passages are searched as text for the early term.
    """
    questions, index = system.corpus.questions("train"), task.retriever.index
    terms: list[tuple[Tensor | None, Tensor | None]] = []
    assert index is not None
    assert isinstance(index.embeddings_ND, Tensor)
    for number in EpochOrder(len(questions), SEED, "finetune-questions").take(0, BATCH).tolist():
        query = questions.tokens[number]
        answers = [system.tokenizer.encode(text, add_special_tokens=False).ids for text in questions.answers[number]]
        batch = join([query], None, system.special, system.params.corpus.sentence_length)
        score_N = index.embeddings_ND @ task.retriever.embedder.embed_queries(batch)[0]
        order = score_N.argsort(descending=True).tolist()
        held, every, factored = [], [], []  # f(x, z) + S(z, s) of the answer's spans and of all; each passage's share
        for row in order[:PASSAGES]:
            body = system.passages.bodies[row]
            logits_LW = task.reader.span_logits(join([query], [body], system.special, 1000), WIDTH)[0]
            spans = [(s, w) for s in range(len(body)) for w in range(WIDTH) if s + w < len(body)]
            logits = {(s, w): logits_LW[len(query) + 2 + s, w] for s, w in spans}
            gold = [(s, w) for s, w in spans if body[s : s + w + 1].tolist() in answers]
            share = log_share([logits[span] for span in gold], list(logits.values()))
            factored += [] if share is None else [score_N[row] + share]
            every += [score_N[row] + logit for logit in logits.values()]
            held += [score_N[row] + logits[span] for span in gold]
        texts = [" ".join(["", *map(str, answer), ""]) for answer in answers]
        bodies = {row: " ".join(["", *map(str, system.passages.bodies[row].tolist()), ""]) for row in order[:early]}
        early_held = [score_N[row] for row, body in bodies.items() if any(text in body for text in texts)]
        passages = [score_N[row] for row in order[:PASSAGES]]
        reader = log_share(factored, passages) if softmax == "factored" else log_share(held, every)
        terms.append((reader, log_share(early_held, [score_N[row] for row in bodies])))
    return terms


@pytest.mark.parametrize("early", [0, EARLY])
@pytest.mark.parametrize("softmax", ["factored", "joint"])
def test_loss_and_gradient_are_those_of_every_span_and_passage(
    system: TinySystem, monkeypatch: pytest.MonkeyPatch, softmax: str, early: int
) -> None:
    task = make_task(system, softmax=softmax, early_loss_candidates=early)
    values, found = gradients(task, monkeypatch)
    task.reader.zero_grad()
    task.retriever.embedder.zero_grad()
    terms = enumerated(task, system, softmax, early)
    known, known_early = [one for one, _ in terms if one is not None], [two for _, two in terms if two is not None]
    useful = sum(one is not None or two is not None for one, two in terms)
    assert 0 < len(known) < useful or not early  # some have one positive, some both
    assert useful < BATCH or early  # some have none
    loss = -torch.stack([*known, *known_early]).sum() / useful
    read = torch.stack(known).sum().item()
    expected = {"loss": loss.item(), "loss_reader": -read / useful, "marginal_log_likelihood": read / len(known)}
    expected["answerable_fraction"] = len(known) / BATCH
    if early:
        expected |= {"loss_early": loss.item() + read / useful, "early_answerable_fraction": len(known_early) / BATCH}
    for name, value in expected.items():
        assert values[name] == pytest.approx(value, rel=1e-4), name
    assert ("loss_early" in values) == ("early_answerable_fraction" in values) == bool(early)
    loss.backward()
    for name, module in (("reader", task.reader), ("embedder", task.retriever.embedder)):
        own = {f"{name}.{key}": p.grad for key, p in module.named_parameters() if p.grad is not None}
        assert own.keys() == {key for key in found if key.startswith(name)}
        assert len(own) > 5
        for key, gradient in own.items():
            torch.testing.assert_close(found[key], gradient, atol=2e-5, rtol=2e-3)


@pytest.mark.parametrize("softmax", ["factored", "joint"])
def test_a_micro_batch_changes_no_gradient(system: TinySystem, monkeypatch: pytest.MonkeyPatch, softmax: str) -> None:
    settings: dict[str, Any] = {"softmax": softmax, "early_loss_candidates": EARLY, "batch_size": 32}
    whole, expected = gradients(make_task(system, **settings), monkeypatch)
    task = make_task(system, launch={"micro_batch": 3}, **settings)
    reads: list[int] = []
    original = task._read

    def read(found: Any) -> Any:
        reads.append(len(found.queries))
        return original(found)

    task._read = read
    values, found = gradients(task, monkeypatch)
    assert max(reads) <= 3 < sum(reads)
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


def test_a_question_trains_what_its_positives_reach(system: TinySystem) -> None:
    """One question per step: its answer is read, or only an early passage has it, or neither, and no weight moves."""
    task, seen = make_task(system, batch_size=1, candidates=2, early_loss_candidates=6), list[set[str]]()
    for step in range(30):
        before = weights(task)
        values = task.train_step(step)
        seen.append(moved(before, weights(task)))
        if "loss" not in values:
            assert values == {"answerable_fraction": 0.0, "early_answerable_fraction": 0.0}
            assert not seen[-1]
        elif not values["answerable_fraction"]:
            assert seen[-1] == {"query"}
            assert values["loss_reader"] == 0
            assert values["loss"] == values["loss_early"] > 0
        else:
            assert seen[-1] == {"reader", "query"}
    assert all(parts in seen for parts in (set(), {"query"}, {"reader", "query"}))


def test_an_unknown_word_is_no_answer(system: TinySystem) -> None:
    """The same piece stands for every unknown word of a passage."""
    known = system.corpus.questions("train").answers[0][0]
    [found] = answer_wordpieces(system.tokenizer, system.special, [["\U000131a3", known]])
    assert [system.tokenizer.decode(ids.tolist()) for ids in found] == [known]


@pytest.mark.parametrize("name", ["candidates", "early_loss_candidates"])
def test_more_passages_than_there_are_is_refused(system: TinySystem, name: str) -> None:
    count = len(system.passages)
    settings: dict[str, Any] = {name: count}
    make_task(system, **settings)
    with pytest.raises(UserError, match=rf"'finetune.{name}' is {count + 1}, but .* has only {count} passages"):
        make_task(system, **{**settings, name: count + 1})
