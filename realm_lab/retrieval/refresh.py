"""Refresh policies as data: at which step an index is asked for, which one is searched, what is embedded when.

Everything here is a pure decision over small numbers; nothing is embedded, and no clock is read. "At step s" means:
after s finished optimiser steps, before the next. A generation bears the number of the step whose weights made it.
"""

# Shapes: N passages, B queries, K candidates, U chosen passages

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from realm_lab.params.sections import Refresh


class RefreshPlan:
    """Which generations are asked for, and which one is searched. It begins with generation 0."""

    def __init__(self, settings: Refresh):
        self._settings = settings
        self.searched = 0
        self.pending: list[int] = []  # asked for and not searched yet, ascending
        self.refreshes = 0  # generations that came into use after the first

    def checks_drift(self, step: int) -> bool:
        """Whether the overlap of the stale and the fresh index is asked for at `step`."""
        settings = self._settings
        return settings.policy == "drift" and step > 0 and step % settings.drift_interval_steps == 0 and self._is_free

    def asks(self, step: int, overlap: float | None = None) -> bool:
        """Whether a generation of the weights of `step` is wanted; `overlap` is what a drift check found."""
        settings = self._settings
        if step == 0 or settings.policy == "never" or not self._is_free:
            return False
        if settings.policy == "interval":
            return step % settings.interval_steps == 0
        if settings.policy == "schedule":
            start, interval = next(pair for pair in reversed(settings.schedule) if pair[0] <= step)
            return bool(interval) and (step - start) % interval == 0
        if settings.policy == "drift":
            return overlap is not None and overlap < settings.drift_overlap
        return True  # staggered: as soon as the last round has ended

    @property
    def _is_free(self) -> bool:
        """Where one generation follows the other, whether none is under way."""
        settings = self._settings
        one_by_one = settings.policy in ("drift", "staggered") or settings.swap == "ready"
        return not (one_by_one and self.pending)

    def ask(self, step: int) -> None:
        """A generation of `step` is under way from now on."""
        assert not self.pending or self.pending[-1] < step
        self.pending.append(step)

    def due(self, step: int, is_built: Callable[[int], bool] | None = None) -> int | None:
        """The generation to be searched from `step` on, None: as before.

        `is_built` says of a generation whether it is there already; only swap: ready and staggered rounds ask.
        """
        settings = self._settings
        if settings.swap == "ready" or settings.policy == "staggered":
            assert is_built is not None
            there = [generation for generation in self.pending if is_built(generation)]
        else:
            there = [generation for generation in self.pending if generation + settings.delay_steps <= step]
        known = [self.searched, *there]
        wanted = known[max(0, len(known) - 1 - settings.hold_generations)]
        return wanted if wanted != self.searched else None

    def swap(self, generation: int) -> None:
        """`generation` is searched from now on; what is older is forgotten."""
        self.searched = generation
        self.pending = [other for other in self.pending if other > generation]
        self.refreshes += 1

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {"refresh.plan": torch.tensor([self.searched, self.refreshes, *self.pending])}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.searched, self.refreshes, *self.pending = tensors["refresh.plan"].tolist()


class PartialRefresh:
    """Which share of the passages a refresh embeds, and how old each passage's vector is."""

    def __init__(self, settings: Refresh, passages: int):
        self._by_retrieval = settings.scope == "retrieved"
        self._count = math.ceil(settings.scope_fraction * passages)
        self._cursor = 0
        self.steps_N = np.zeros(passages, np.int32)  # the step of the weights behind each vector
        self._retrieved_N = np.zeros(passages, np.int64)  # since it was last embedded

    def choose(self) -> np.ndarray:
        """The passages of the next refresh, ascending: in turn, or those most often retrieved since they were last
        embedded; of equally often retrieved ones the oldest, then the lowest row."""
        if self._by_retrieval:
            rows = np.arange(len(self.steps_N))
            return np.sort(np.lexsort((rows, self.steps_N, -self._retrieved_N))[: self._count])
        return np.sort((self._cursor + np.arange(self._count)) % len(self.steps_N))

    def embedded(self, rows_U: np.ndarray, step: int) -> None:
        """The chosen passages were embedded with the weights of `step`."""
        self.steps_N[rows_U] = step
        self._retrieved_N[rows_U] = 0
        self._cursor = (self._cursor + self._count) % len(self.steps_N)

    def note(self, candidates_BK: np.ndarray) -> None:
        """These were retrieved in a step; negative rows are no passages."""
        np.add.at(self._retrieved_N, candidates_BK[candidates_BK >= 0], 1)

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {
            "index.steps_N": torch.from_numpy(self.steps_N.copy()),
            "refresh.retrieved_N": torch.from_numpy(self._retrieved_N.copy()),
            "refresh.cursor": torch.tensor(self._cursor),
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.steps_N[:] = tensors["index.steps_N"].cpu().numpy()
        self._retrieved_N[:] = tensors["refresh.retrieved_N"].cpu().numpy()
        self._cursor = int(tensors["refresh.cursor"])


class StaggeredRound:
    """How far the staggered embedding of a generation has come, and what it may still spend."""

    def __init__(self, settings: Refresh, cost_N: np.ndarray):
        self._fraction = settings.budget_fraction
        self._spent_N = np.cumsum(cost_N, dtype=np.float64)  # of all passages up to each, floating-point operations
        self._credit = 0.0
        self.done = 0  # passages embedded in this round, in the order of their rows

    @property
    def is_complete(self) -> bool:
        """Whether all passages are embedded."""
        return self.done == len(self._spent_N)

    def begin(self) -> None:
        """A new round; what is left of the credit stays."""
        self.done = 0

    def earn(self, step_operations: float) -> None:
        """The floating-point operations of a step of training allow a share of them for embedding."""
        self._credit += self._fraction * step_operations

    def spend(self) -> np.ndarray:
        """The next passages, as many as the credit pays for."""
        before = float(self._spent_N[self.done - 1]) if self.done else 0.0
        end = int(np.searchsorted(self._spent_N, before + self._credit, side="right"))
        rows_U = np.arange(self.done, end)
        if len(rows_U):
            self._credit -= float(self._spent_N[end - 1]) - before
            self.done = end
        return rows_U

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {
            "refresh.credit": torch.tensor(self._credit, dtype=torch.float64),
            "refresh.done": torch.tensor(self.done),
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._credit, self.done = float(tensors["refresh.credit"]), int(tensors["refresh.done"])
