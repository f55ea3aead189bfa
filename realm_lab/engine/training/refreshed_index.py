"""The index during training: refreshed when the policy asks, its age and drift measured, its state in checkpoints."""

# Shapes: N passages, D embedding size

from __future__ import annotations

import copy
import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.flop import uncounted
from realm_lab.engine.core.process import on_first_rank
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.params.sections import Refresh
from realm_lab.engine.retrieval.index_map import fitted
from realm_lab.engine.retrieval.refresh_policies import Mapped, Progress, refresh_policy
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.search import IndexGeneration
from realm_lab.engine.training.builder import ProcessBuilder
from realm_lab.engine.training.checkpoint import load_module, module_tensors
from realm_lab.engine.training.probes import StalenessProbe


class RefreshedIndex:
    """The retriever's index while its embedder trains.

    The index of a refresh that the policy asks for at step s is searched from step s + delay_steps on, not sooner and
    not later: the trainer embeds then, or waits for the `builder`, so that runs do not depend on the speed of a
    machine. `moves` is false if the document tower is not trained: the vectors stay, and a refresh costs nothing.
    `cost_N` are the floating-point operations of embedding each passage. The retriever must have an index. Call
    `before_step` before every step and `metrics` after it; `measure` may be called between steps.
    """

    def __init__(
        self,
        settings: Refresh,
        retriever: Retriever,
        probe: StalenessProbe,
        cost_N: np.ndarray,
        moves: bool = True,
        builder: ProcessBuilder | None = None,
    ):
        self._policy, self._delay_steps = refresh_policy(settings), settings.delay_steps
        self._retriever, self._probe, self._cost_N = retriever, probe, cost_N
        self._moves, self._builder = moves, builder
        self._pending: dict[int, Embedder | None] = {}  # step -> its weights, if they are needed later; ascending
        self._fresh: IndexGeneration | None = None  # index of the current weights, kept until the next step
        self._refreshes = 0  # indexes that came into use after the first
        self.refresh_flops = 0.0  # floating-point operations so far: refreshing, mapping queries, checking for drift
        self._age_sum, self._steps = 0.0, 0
        self._started = time.monotonic()
        self._busy_seconds = 0.0

    def before_step(self, step: int) -> None:
        """Refresh as the policy decides after `step` finished steps."""
        started = time.monotonic()
        with uncounted():  # `refresh_flops` counts these operations, whichever process does them
            if step > 0:
                now = Progress(step, len(self._pending), self._overlap)
                wanted = self._policy.wants_refresh(now)
                if isinstance(wanted, Mapped):
                    self._map(wanted)
                elif wanted:
                    self._ask(step)
            due = [asked for asked in self._pending if asked + self._delay_steps <= step]
            if due:
                self._use(due[-1], step)
            self._fresh = None
        self._busy_seconds += time.monotonic() - started

    def _overlap(self) -> float:
        """Estimate the share of the fresh top k that the index finds, from few fresh vectors, and count their cost."""
        if not self._moves:
            return 1.0

        def check() -> list[float]:
            drift, pool_U = self._probe.sampled(self._retriever)
            return [drift["index_overlap_sampled"], float(self._cost_N[pool_U].sum())]

        overlap, flops = on_first_rank(check)
        self.refresh_flops += flops
        return float(overlap)

    def _map(self, options: Mapped) -> None:
        """Fit the map that takes current queries to the index, on evenly spaced passages."""
        index, count = self._retriever.index, len(self._cost_N)
        assert index is not None
        if not self._moves:
            return
        rows_S = np.unique(np.linspace(0, count - 1, max(1, round(options.sample * count))).round().astype(np.int64))
        new_SD = self._retriever.embed_passages(rows_S)
        old_SD = index.embeddings_ND[torch.from_numpy(rows_S)].to(new_SD)
        self._retriever.query_map_DD = fitted(old_SD, new_SD, options.kind)
        self.refresh_flops += float(self._cost_N[rows_S].sum())

    def _ask(self, step: int) -> None:
        """Note a refresh, with a copy of the current weights if they are needed after this step."""
        current = self._retriever.embedder
        kept = self._retriever.stale_queries or (self._moves and self._delay_steps > 0)
        embedder = copy.deepcopy(current).requires_grad_(False).eval() if kept else None
        self._pending[step] = embedder
        if self._moves:
            self.refresh_flops += float(self._cost_N.sum())
            if self._builder is not None:
                self._builder.submit(step, embedder or current)

    def fresh(self, step: int) -> IndexGeneration:
        """Return the index of the current weights, after `step` finished steps. It is made once, for an evaluation and
        a refresh after the same step, and not at all if nothing moves."""
        index = self._retriever.index
        assert index is not None
        if index.step == step or not self._moves:
            return index._replace(step=step)
        if self._fresh is None:
            self._fresh = IndexGeneration(self._retriever.embed_index(), step)
        return self._fresh

    def _use(self, step: int, now: int) -> None:
        """Search the index of the weights of `step` from now on; older refreshes are forgotten."""
        embedder, index = self._pending[step], self._retriever.index
        assert index is not None
        if not self._moves:
            index = index._replace(step=step)
        elif self._builder is not None:
            index = IndexGeneration(self._retriever.held(self._builder.wait(step)), step)
        elif step == now:
            index = self.fresh(step)
        else:
            index = IndexGeneration(self._retriever.embed_index(embedder), step)
        self._retriever.adopt(index, embedder if self._retriever.stale_queries else None)
        self._refreshes += 1
        self._pending = {other: kept for other, kept in self._pending.items() if other > step}

    def metrics(self, step: int) -> dict[str, float]:
        """Return the age of the index that step `step` searched, and the cost of refreshing so far; call it every step.

        `index_staleness_steps_mean` is the mean over all steps so far: logging at intervals could always hit the same
        point between two refreshes. `refresh_share_of_time` is measured in this process.
        """
        assert self._retriever.index is not None
        age = float(step - self._retriever.index.step)
        self._age_sum += age
        self._steps += 1
        values = {
            "index_staleness_steps": age,
            "index_staleness_steps_mean": self._age_sum / self._steps,
            "refreshes": float(self._refreshes),
            "refresh_operations": self.refresh_flops,
            "refresh_share_of_time": self._busy_seconds / max(time.monotonic() - self._started, 1e-9),
        }
        recall = self._retriever.search_recall_at_8
        return values if recall is None else values | {"search_recall_at_8": recall}

    def measure(self, fresh: Retriever) -> dict[str, float]:
        """Measure drift from a fresh index, which the current weights have just made."""
        return self._probe.exact(self._retriever, fresh)

    def measure_sample(self) -> dict[str, float]:
        """Estimate drift from few fresh vectors."""
        values: dict[str, float] = on_first_rank(lambda: self._probe.sampled(self._retriever)[0])
        return values

    def state(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint: the index, its weights if queries are stale, and refreshes under way."""
        index, snapshot = self._retriever.index, self._retriever.snapshot
        assert index is not None
        sums = [self.refresh_flops, self._age_sum, self._steps, self._refreshes]
        state = {
            "index.embeddings": index.embeddings_ND[:],
            "index.step": torch.tensor(index.step),
            "refresh.sums": torch.tensor(sums, dtype=torch.float64),
            "refresh.pending": torch.tensor(list(self._pending), dtype=torch.int64),
        }
        if snapshot is not None:
            state |= module_tensors("snapshot", snapshot)
        if self._retriever.query_map_DD is not None:
            state["index.query_map"] = self._retriever.query_map_DD
        for step, embedder in self._pending.items():
            if embedder is not None:
                state |= module_tensors(f"pending.{step}", embedder)
        return state

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of `state`; refreshes under way are submitted to the builder again."""
        self.refresh_flops, self._age_sum, steps, refreshes = tensors["refresh.sums"].tolist()
        self._steps, self._refreshes = int(steps), int(refreshes)
        index = IndexGeneration(self._retriever.held(tensors["index.embeddings"]), int(tensors["index.step"]))
        self._retriever.adopt(index, self._loaded("snapshot", tensors))
        if "index.query_map" in tensors:
            self._retriever.query_map_DD = tensors["index.query_map"].to(self._retriever.device)
        for step in tensors["refresh.pending"].tolist():
            embedder = self._pending[step] = self._loaded(f"pending.{step}", tensors)
            if self._builder is not None:
                assert embedder is not None
                self._builder.submit(step, embedder)

    def _loaded(self, name: str, tensors: Mapping[str, Tensor]) -> Embedder | None:
        if not any(key.startswith(f"{name}.") for key in tensors):
            return None
        embedder = copy.deepcopy(self._retriever.embedder).requires_grad_(False).eval()
        load_module(name, embedder, tensors)
        return embedder
