"""AdamW with BERT's schedule: linear warm-up, then linear decay; no weight decay on biases and LayerNorm."""

# Shapes: U parameters

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from realm_lab.engine.core.process import ranks, sum_over_ranks_, to_device
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.initial import frozen_names, tower_names
from realm_lab.engine.params.parameters import Finetune, Params, Pretrain
from realm_lab.engine.params.sections import Optimiser
from realm_lab.engine.training.checkpoint import load_module, module_tensors

BETA1, EPSILON, WEIGHT_DECAY, CLIP_NORM = 0.9, 1e-6, 0.01, 1.0  # BERT's


class Recipe(NamedTuple):
    """Settings that a value of the parameter `recipe` chooses."""

    beta2: float
    bias_correction: bool  # of Adam's moments; BERT's optimiser has none, so its first steps are larger
    decays_from_start: bool  # the decay counts from step 0, so that the rate drops when the warm-up ends


RECIPES = {"bert": Recipe(0.999, False, True), "short": Recipe(0.98, True, False)}


def learning_rate_factor(step: int, total_steps: int, settings: Optimiser) -> float:
    """Return the share of the peak learning rate used in `step` (0-based): up over warmup_steps, then linearly down to
    final_fraction at `total_steps`. The first step of the warm-up has 1/warmup_steps; BERT's has 0."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    start = 0 if RECIPES[settings.recipe].decays_from_start else settings.warmup_steps
    progress = (step - start) / max(1, total_steps - start)
    return 1.0 - (1.0 - settings.final_fraction) * min(1.0, progress)


class ScheduledAdamW:
    """AdamW for the parameters of a module that are not frozen, with schedule and gradient clipping."""

    def __init__(self, name: str, module: nn.Module, settings: Optimiser, total_steps: int, frozen: set[str]):
        self.name, self._settings, self._total_steps = name, settings, total_steps
        self._recipe = RECIPES[settings.recipe]
        self.named = {key: value for key, value in module.named_parameters() if key not in frozen}
        decayed = [value for value in self.named.values() if value.ndim > 1]
        plain = [value for value in self.named.values() if value.ndim <= 1]
        self._groups = (decayed, WEIGHT_DECAY), (plain, 0.0)
        self._moments: dict[nn.Parameter, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.named.values():
            parameter.grad = None

    def step(self, step: int) -> dict[str, float]:
        """Clip and update; returns the learning rate used and the gradient norm before clipping.

        If the norm is not finite nothing is updated: the caller checks the returned norm.
        """
        rate = self._settings.learning_rate * learning_rate_factor(step, self._total_steps, self._settings)
        norm = float(nn.utils.clip_grad_norm_(self.named.values(), CLIP_NORM))
        if math.isfinite(norm):
            for parameters, decay in self._groups:
                self._update({one: one.grad for one in parameters if one.grad is not None}, rate, decay)
        return {f"learning_rate_{self.name}": rate, f"gradient_norm_{self.name}": norm}

    @torch.no_grad()
    def _update(self, gradients: dict[nn.Parameter, Tensor], rate: float, decay: float) -> None:
        """Update these parameters as torch.optim.AdamW does. That class would import the compiler of torch first, which
        takes as long as torch itself."""
        for parameter in gradients.keys() - self._moments.keys():
            self._moments[parameter] = self._first_moments(parameter)
        moments = [self._moments[parameter] for parameter in gradients]
        if gradients:
            adamw(
                [*gradients],
                [*gradients.values()],
                [one["exp_avg"] for one in moments],
                [one["exp_avg_sq"] for one in moments],
                [],
                [one["step"] for one in moments],
                fused=True,
                amsgrad=False,
                beta1=BETA1,
                beta2=self._recipe.beta2,
                lr=rate,
                weight_decay=decay,
                eps=EPSILON,
                maximize=False,
            )

    def _first_moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return zero moments, and the step count: 0, or infinity without bias correction (as in BERT's optimiser), so
        that 1 - beta^t is exactly 1."""
        steps = torch.tensor(0.0 if self._recipe.bias_correction else torch.inf, device=parameter.device)
        return {"step": steps, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}

    def state(self) -> dict[str, Tensor]:
        """Return Adam's moments and step counts by parameter name, for a checkpoint."""
        return {
            f"{self.name}.{key}.{part}": value
            for key, parameter in self.named.items()
            for part, value in self._moments.get(parameter, {}).items()
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore the result of `state`."""
        for key, parameter in self.named.items():
            prefix = f"{self.name}.{key}."
            parts = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            if parts:
                self._moments[parameter] = {
                    part: value.to(parameter.device, copy=True) for part, value in parts.items()
                }


def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by its sum over the ranks; a parameter that no rank used has none."""
    if ranks().size == 1 or not parameters:
        return
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    used_U = to_device(np.array([each.grad is not None for each in parameters], np.float32), parameters[0].device)
    sum_over_ranks_([*gradients, used_U])
    for parameter, gradient, used in zip(parameters, gradients, used_U.tolist(), strict=True):
        parameter.grad = gradient if used else None


class TrainedModels:
    """A reader and an embedder, with an optimiser for each of the two that is trained."""

    @classmethod
    def of(
        cls,
        params: Params,
        settings: Pretrain | Finetune,
        reader: nn.Module,
        embedder: Embedder,
        trains_reader: bool,
        *towers: bool,
    ) -> TrainedModels:
        """Train the reader if `trains_reader`. `towers`: two flags, to train the query tower and the document tower."""
        models = cls(reader, embedder)
        frozen = frozen_names(reader, params)
        models.train("reader", reader, settings.reader, settings.steps, frozen, trains_reader)
        frozen = frozen_names(embedder, params) | tower_names(embedder, *towers)
        models.train("retriever", embedder, settings.retriever, settings.steps, frozen, any(towers))
        return models

    def __init__(self, reader: nn.Module, embedder: nn.Module):
        self._reader, self._embedder = reader, embedder
        self.optimisers: list[ScheduledAdamW] = []

    def train(
        self, name: str, module: nn.Module, settings: Optimiser, total_steps: int, frozen: set[str], trains: bool = True
    ) -> None:
        """Train the reader or the embedder from now on, if `trains`; otherwise it gets no gradient."""
        for key, parameter in module.named_parameters():
            parameter.requires_grad_(trains and key not in frozen)
        if trains:
            self.optimisers.append(ScheduledAdamW(name, module, settings, total_steps, frozen))

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for optimiser in self.optimisers:
            optimiser.zero_grad()

    def step(self, step: int) -> dict[str, float]:
        """Sum the gradients over the ranks, update, and return the results of the optimisers."""
        values: dict[str, float] = {}
        sum_gradients([each for optimiser in self.optimisers for each in optimiser.named.values()])
        for optimiser in self.optimisers:
            values |= optimiser.step(step)
        return values

    def tensors(self) -> dict[str, Tensor]:
        """Return weights and moments, for a checkpoint."""
        state = module_tensors("reader", self._reader) | module_tensors("embedder", self._embedder)
        for optimiser in self.optimisers:
            state |= optimiser.state()
        return state

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the result of `tensors`."""
        load_module("reader", self._reader, tensors)
        load_module("embedder", self._embedder, tensors)
        for optimiser in self.optimisers:
            optimiser.load_state(tensors)


class ModelsTask:
    """A task of the loop with no state besides its models."""

    _models: TrainedModels

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments."""
        return self._models.tensors()

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore the result of `tensors`."""
        self._models.load(tensors)
