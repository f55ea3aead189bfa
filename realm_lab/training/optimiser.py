"""AdamW with BERT's schedule: linear warm-up, then linear decay; no weight decay on biases and LayerNorm."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from realm_lab.core.process import ranks, sum_over_ranks_
from realm_lab.params.sections import Optimiser

EPSILON = 1e-6  # BERT's


def rate_factor(step: int, total_steps: int, settings: Optimiser) -> float:
    """The share of the peak rate used in `step` (0-based): up over warmup_steps, then down to final_fraction.

    The way down is a line over all steps (BERT: the rate drops when the warm-up ends) or over those after the warm-up.
    """
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    start = 0 if settings.decay_from == "start" else settings.warmup_steps
    progress = (step - start) / max(1, total_steps - start)
    return 1.0 - (1.0 - settings.final_fraction) * min(1.0, progress)


class ScheduledAdamW:
    """One group of parameters with its own rate, schedule and clipping."""

    def __init__(self, name: str, module: nn.Module, settings: Optimiser, total_steps: int, frozen: set[str]):
        self.name, self._settings, self._total_steps = name, settings, total_steps
        self.named = {key: value for key, value in module.named_parameters() if key not in frozen}
        decayed = [value for value in self.named.values() if value.ndim > 1]
        plain = [value for value in self.named.values() if value.ndim <= 1]
        self._adamw = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=EPSILON,
            fused=True,
        )

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def gradients(self) -> list[Tensor]:
        """The gradients to sum over the ranks before `step`: of every parameter that any rank used, in one order."""
        parameters = list(self.named.values())
        if ranks().size > 1 and parameters:
            used = torch.tensor([float(value.grad is not None) for value in parameters], device=parameters[0].device)
            sum_over_ranks_([used])
            for parameter, count in zip(parameters, used.tolist(), strict=True):
                if count and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    def step(self, step: int, first_step: int = 0) -> dict[str, float]:
        """Clip and update; returns the rate used and the gradient norm before clipping.

        The schedule runs from `first_step`, in which a group that was held back is released, to the last step.
        Where the norm is not finite nothing is updated: the caller sees it in what is returned.
        """
        factor = rate_factor(step - first_step, self._total_steps - first_step, self._settings)
        rate = self._settings.learning_rate * factor
        for group in self._adamw.param_groups:
            group["lr"] = rate
        norm = float(nn.utils.clip_grad_norm_(self.named.values(), self._settings.clip_norm))
        if math.isfinite(norm):
            if not self._settings.bias_correction:
                self._skip_bias_correction()
            self._adamw.step()
        return {f"learning_rate_{self.name}": rate, f"gradient_norm_{self.name}": norm}

    def _skip_bias_correction(self) -> None:
        """BERT's Adam: the corrections 1 - beta^t of the moments are exactly 1 after infinitely many steps."""
        for parameter in self.named.values():
            if parameter.grad is not None and not self._adamw.state[parameter]:
                self._adamw.state[parameter] = {
                    "step": torch.tensor(torch.inf, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }

    def state(self) -> dict[str, Tensor]:
        """Adam's moments by parameter name, for a checkpoint."""
        tensors: dict[str, Tensor] = {}
        for key, parameter in self.named.items():
            for part, value in self._adamw.state.get(parameter, {}).items():
                tensors[f"{self.name}.{key}.{part}"] = value
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for key, parameter in self.named.items():
            prefix = f"{self.name}.{key}."
            parts = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            if parts:
                self._adamw.state[parameter] = {part: value.clone() for part, value in parts.items()}
