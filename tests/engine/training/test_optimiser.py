"""BERT's optimiser: schedule, decay, clipping, a state that resumes in the same bits, gradients of two processes."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from realm_lab.engine.models.folders import write_tensors
from realm_lab.engine.params.sections import Optimiser
from realm_lab.engine.training.optimiser import CLIP_NORM, EPSILON, ScheduledAdamW, learning_rate_factor
from tests.factories.processes import run_ranks

SETTINGS = Optimiser(learning_rate=0.1, warmup_steps=4, final_fraction=0.1, recipe="short")
BERT = SETTINGS.model_copy(update={"recipe": "bert"})


class Small(nn.Module):
    """A matrix, a bias, a LayerNorm and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.words = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.linear(self.norm(self.words(tokens)))


def make(settings: Optimiser = SETTINGS, total_steps: int = 20, frozen: set[str] | None = None, name: str = "reader"):  # type: ignore[no-untyped-def]
    module = Small()
    return module, ScheduledAdamW(name, module, settings, total_steps, frozen or set())


@pytest.mark.parametrize(
    ("settings", "total", "expected"),
    [
        # 4 steps of warm-up, then 1 - 0.9 * (step - 4) / 16
        (SETTINGS, 20, {0: 0.25, 1: 0.5, 2: 0.75, 3: 1, 4: 1, 5: 0.94375, 12: 0.55, 19: 0.15625, 20: 0.1, 50: 0.1}),
        # up to 1 in 4 steps, then 1 - 0.9 * step / 20: a jump from 1 to 0.82
        (BERT, 20, {0: 0.25, 3: 1, 4: 0.82, 5: 0.775, 10: 0.55, 20: 0.1, 50: 0.1}),
        # a run shorter than its warm-up only rises
        (Optimiser(warmup_steps=10), 3, {0: 0.1, 1: 0.2, 2: 0.3}),
        (Optimiser(warmup_steps=10, recipe="short"), 10, {10: 1}),  # and divides by no zero
    ],
)
def test_the_rate_goes_along_straight_lines(settings: Optimiser, total: int, expected: dict[int, float]) -> None:
    assert {step: learning_rate_factor(step, total, settings) for step in expected} == pytest.approx(expected)


def test_two_steps_are_those_of_adamw_by_hand() -> None:
    module, optimiser = make()
    value = module.linear.weight[0, 0].item()
    first = second = 0.0
    for step, gradient in enumerate((0.3, -0.2)):  # of twelve numbers: a norm of 1.04 is clipped to 1
        module.linear.weight.grad = torch.full((3, 4), gradient)
        values = optimiser.step(step)
        assert values["gradient_norm_reader"] == pytest.approx(abs(gradient) * math.sqrt(12)), "the one before clipping"
        rate = 0.1 * (step + 1) / 4
        gradient *= min(1.0, 1.0 / (abs(gradient) * math.sqrt(12)))
        first = 0.9 * first + 0.1 * gradient
        second = 0.98 * second + 0.02 * gradient**2
        value *= 1 - rate * 0.01
        corrected = math.sqrt(second / (1 - 0.98 ** (step + 1)))
        value -= rate * first / (1 - 0.9 ** (step + 1)) / (corrected + EPSILON)
    assert module.linear.weight[0, 0].item() == pytest.approx(value, abs=1e-6)


class BertAdam:
    """BERT's AdamWeightDecayOptimizer (optimization.py of google-research/bert), in float64."""

    def __init__(self, parameters: dict[str, Tensor]):
        self.values = {name: value.detach().double().numpy().copy() for name, value in parameters.items()}
        self.first = {name: np.zeros_like(value) for name, value in self.values.items()}
        self.second = {name: np.zeros_like(value) for name, value in self.values.items()}

    def step(self, gradients: dict[str, np.ndarray], rate: float) -> None:
        norm = math.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        for name, gradient in gradients.items():
            gradient = gradient * min(1.0, CLIP_NORM / norm)
            self.first[name] = 0.9 * self.first[name] + 0.1 * gradient
            self.second[name] = 0.999 * self.second[name] + 0.001 * gradient**2
            update = self.first[name] / (np.sqrt(self.second[name]) + 1e-6)
            if name in ("words.weight", "linear.weight"):
                update += 0.01 * self.values[name]
            self.values[name] -= rate * update


def test_without_bias_correction_it_is_berts_adam() -> None:
    """Also if a parameter has no gradient in some steps: its moments wait, and its number of steps does not matter."""
    module, optimiser = make(BERT)
    expected = BertAdam(dict(module.named_parameters()))
    generator = np.random.default_rng(0)
    for step in range(20):
        gradients = {}
        for name, parameter in module.named_parameters():
            parameter.grad = None
            if name != "linear.bias" or step % 3 == 1:
                gradients[name] = generator.normal(size=parameter.shape) * 10.0 ** generator.integers(-6, 1)
                parameter.grad = torch.from_numpy(gradients[name]).float()
        rate = optimiser.step(step)["learning_rate_reader"]
        assert rate == pytest.approx(0.1 * ((step + 1) / 4 if step < 4 else 1 - 0.9 * step / 20))
        expected.step(gradients, rate)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), expected.values[name], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_reported_and_moves_nothing(bad: float) -> None:
    for settings in (SETTINGS, BERT):
        module, optimiser = make(settings)
        before = {name: value.detach().clone() for name, value in module.named_parameters()}
        module.linear.bias.grad = torch.tensor([1.0, bad, 1.0])
        assert not math.isfinite(optimiser.step(0)["gradient_norm_reader"])
        assert all(torch.equal(value, before[name]) for name, value in module.named_parameters())
        assert optimiser.state() == {}


def test_frozen_parameters_are_neither_moved_nor_clipped_for() -> None:
    module, optimiser = make(frozen={"words.weight"})
    before = module.words.weight.detach().clone()
    module.words.weight.grad = torch.full((7, 4), 100.0)
    module.linear.bias.grad = torch.full((3,), 0.1)
    assert optimiser.step(0)["gradient_norm_reader"] == pytest.approx(0.1 * math.sqrt(3))
    assert torch.equal(module.words.weight, before)
    assert not any("words" in name for name in optimiser.state())


def train(module: Small, optimiser: ScheduledAdamW, steps: range) -> None:
    for step in steps:
        tokens = torch.randint(0, 7, (5,), generator=torch.Generator().manual_seed(step))
        optimiser.zero_grad()
        module(tokens).square().sum().backward()
        optimiser.step(step)


@pytest.mark.parametrize("settings", [SETTINGS, BERT])
def test_a_restored_state_continues_in_the_same_bits(tmp_path: Path, settings: Optimiser) -> None:
    module, optimiser = make(settings)
    train(module, optimiser, range(6))
    write_tensors(tmp_path / "state.safetensors", optimiser.state())
    weights = {name: value.detach().clone() for name, value in module.state_dict().items()}
    train(module, optimiser, range(6, 12))

    resumed, other = make(settings)
    resumed.load_state_dict(weights)
    other.load_state(load_file(tmp_path / "state.safetensors"))
    train(resumed, other, range(6, 12))
    for name, value in module.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    assert other.state().keys() == optimiser.state().keys()
    for name, value in optimiser.state().items():
        assert torch.equal(other.state()[name], value), name


SUM = """
from torch import nn
from realm_lab.engine.training.optimiser import sum_gradients
torch.manual_seed(0)
first, second = (nn.Parameter(torch.randn(5, 5)) for _ in range(2))
used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
parameters = [unused, used, first, second]
value = torch.full((5,), rank + 1.0) @ first * used.sum()
if rank == 0:  # the other rank does not use the second matrix
    value = value @ second
value.sum().backward()
mine = [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in parameters]
sum_gradients(parameters)
sum_over_ranks_(mine)
say([each.grad is not None for each in parameters])
say([each.grad is None or torch.equal(each.grad, own) for each, own in zip(parameters, mine)])
disconnect()
"""


@pytest.mark.slow
def test_gradients_are_summed_and_what_no_rank_used_has_none() -> None:
    for code, said, errors in run_ranks(SUM):
        assert code == 0, errors
        assert said == [[False, True, True, True], [True] * 4]
