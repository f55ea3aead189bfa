"""One step of pre-training and of fine-tuning under every objective: the parts of the model that learn differently."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from realm_lab.engine.models.objectives import OBJECTIVES
from realm_lab.engine.training.finetune import FinetuneTask
from realm_lab.engine.training.optimiser import ScheduledAdamW
from realm_lab.engine.training.pretrain import PretrainTask
from realm_lab.engine.training.watch import QUANTITIES
from realm_lab.records.plugins import Choice
from tests.tiny_system import TinySystem

SEED, STAGES = 5, ("pretrain", "finetune")
# Enough candidates in fine-tuning that several hold the answer: with one, all objectives teach the retriever the same.
SHORT: dict[str, dict[str, Any]] = {
    "pretrain": {"steps": 3, "batch_size": 6, "candidates": 8},
    "finetune": {"steps": 3, "batch_size": 6, "candidates": 80, "early_loss_candidates": 0},
}


def make_task(system: TinySystem, stage: str, settings: dict[str, Any]) -> Any:
    section = getattr(system.params, stage).model_copy(update=SHORT[stage] | settings)
    params = system.params.model_copy(update={stage: section})
    retriever = system.retriever(copy.deepcopy(system.embedder))
    retriever.refresh(0)
    reader = copy.deepcopy(system.reader)
    if stage == "finetune":
        questions = system.corpus.questions("train")
        return FinetuneTask(params, SEED, retriever, reader, questions, system.tokenizer, system.special)
    vocabulary = [str(token) for token in range(system.tokenizer.get_vocab_size())]
    sentences = system.corpus.sentences()
    return PretrainTask(params, SEED, retriever, reader, sentences, system.special, vocabulary, lambda *_: {})


def taught(system: TinySystem, stage: str, **settings: Any) -> tuple[dict[str, float], Tensor, Tensor]:
    """The values of the first step with the gradients of reader and retriever, each as one vector."""
    task = make_task(system, stage, settings)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(ScheduledAdamW, "step", lambda self, step: {})
        values = task.train_step(0)
    modules = task.reader, task.retriever.embedder
    return values, *(
        torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]) for module in modules
    )


def alike(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).norm() < 1e-3 * one.norm())


@pytest.mark.parametrize("stage", STAGES)
def test_every_objective_teaches_what_its_source_says(system: TinySystem, stage: str) -> None:
    gate = {"gated"} if stage == "pretrain" else set()  # the value, and the reader's gradient, of Eq. 1
    names = OBJECTIVES.keys() - ({"gated"} - gate) - {"reinforce", "jsa"}  # random: contrib/test_exact_gradient.py
    found = {name: taught(system, stage, objective=Choice(name)) for name in names}
    assert len({values["loss"] for values, _, _ in found.values()}) == len(names - gate)
    assert len({values["marginal_log_likelihood"] for values, _, _ in found.values()}) == 1  # no weight has moved yet
    _, reader, retriever = found.pop("marginal")
    same_reader = {name for name, (_, gradient, _) in found.items() if alike(reader, gradient)}
    same_retriever = {name for name, (_, _, gradient) in found.items() if alike(retriever, gradient)}
    assert same_reader == gate
    assert same_retriever == {"emdr2"}
    for name in ("perplexity_distillation", "leave_one_out"):  # the reader learns from all passages alike
        assert alike(found["emdr2"][1], found[name][1])
    assert not alike(found["perplexity_distillation"][2], found["leave_one_out"][2])


@pytest.mark.parametrize("null", ["encoded", "off"])
def test_the_gate_is_open_or_shut_with_and_without_a_null_document(system: TinySystem, null: str) -> None:
    """A gate that nothing passes leaves the retriever without a gradient; one that all pass is Eq. 1."""
    eq_1, reader, retriever = taught(system, "pretrain", null_document=null)
    gate = {at: Choice("gated", {"threshold": at}) for at in (0.0, 1000.0)}
    shut_values, shut_reader, shut_retriever = taught(system, "pretrain", null_document=null, objective=gate[1000.0])
    torch.testing.assert_close(shut_reader, reader)
    assert not shut_retriever.any()
    assert retriever.any()
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("realm_lab.engine.models.objectives.is_helped", lambda prior_BK, *_: prior_BK[:, 0] < torch.inf)
        values, open_reader, open_retriever = taught(system, "pretrain", null_document=null, objective=gate[0.0])
    torch.testing.assert_close(open_retriever, retriever)
    torch.testing.assert_close(open_reader, reader)
    # The health of the candidates does not depend on a document that is read for comparison.
    assert ("null_probability" in values) == (null == "encoded")
    for name in eq_1.keys() & set(QUANTITIES):
        assert values[name] == pytest.approx(eq_1[name], rel=1e-5), name
        assert shut_values[name] == pytest.approx(eq_1[name], rel=1e-5), name
