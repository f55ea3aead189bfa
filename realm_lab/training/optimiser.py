"""AdamW with BERT's schedule: linear warm-up, then linear decay; no weight decay on biases and LayerNorm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from realm_lab.config import Optimiser

EPSILON = 1e-6  # BERT's


def rate_factor(step: int, total_steps: int, settings: Optimiser) -> float:
    """The share of the peak rate used in `step` (0-based): up over warmup_steps, then down to final_fraction."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps)
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

    def step(self, step: int) -> dict[str, float]:
        """Clip and update; returns the rate used and the gradient norm before clipping."""
        rate = self._settings.learning_rate * rate_factor(step, self._total_steps, self._settings)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        norm = nn.utils.clip_grad_norm_(self.named.values(), self._settings.clip_norm, error_if_nonfinite=False)
        self._adamw.step()
        return {f"learning_rate_{self.name}": rate, f"gradient_norm_{self.name}": float(norm)}

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
