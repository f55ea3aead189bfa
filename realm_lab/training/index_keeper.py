"""The index beside training: refreshed as the plan says, its age and drift measured, its state in the checkpoints."""

# Shapes: N passages, B queries, K candidates, U chosen passages, D embedding size

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm_lab.core.process import on_first_rank
from realm_lab.models.embedder import Embedder
from realm_lab.params.sections import Refresh
from realm_lab.retrieval.index import IndexGeneration
from realm_lab.retrieval.refresh import PartialRefresh, RefreshPlan, StaggeredRound
from realm_lab.retrieval.retriever import Retriever
from realm_lab.retrieval.staleness import Drift, age
from realm_lab.training.builders import Builder, InlineBuilder
from realm_lab.training.checkpoint import load_module, module_tensors
from realm_lab.training.staleness_probe import StalenessProbe


class Snapshot(NamedTuple):
    """Weights of which a generation is to be made. `moved` is false where its vectors are those of the index in use;
    `embedder` is None where nobody needs the weights."""

    embedder: Embedder | None
    moved: bool
    taken_at: float  # on the clock of time.monotonic; NaN: in another process


class IndexKeeper:
    """Keeps the index of a retriever while its embedder trains.

    `cost_N` are the floating-point operations of embedding each passage. The order of calls: `prepare`, then for every
    step `before_step`, the step itself, `after_step`; between steps `metrics` and `measure` may be asked.
    """

    def __init__(
        self,
        settings: Refresh,
        retriever: Retriever,
        probe: StalenessProbe,
        cost_N: np.ndarray,
        builder: Builder | None = None,
    ):
        self._settings, self._retriever, self._probe, self._cost_N = settings, retriever, probe, cost_N
        self._builder = builder or InlineBuilder(retriever)
        self._plan = RefreshPlan(settings)
        self._pending: dict[int, Snapshot] = {}
        passages = len(cost_N)
        self._partial = PartialRefresh(settings, passages) if settings.scope != "all" else None
        self._round = StaggeredRound(settings, cost_N) if settings.policy == "staggered" else None
        self._part_ND = torch.empty(0)  # what the round has embedded
        self._refresh_operations = self._step_operations = 0.0
        self._age_sum, self._steps = 0.0, 0
        self._made_at: float | np.ndarray = np.nan  # when the weights behind the vectors were those of the trainer
        self._started = time.monotonic()
        self._busy_seconds = self._stall_seconds = self._last_seconds = 0.0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has gone wrong with the builder so far."""
        return self._builder.warnings

    def prepare(self) -> None:
        """Build the first index, that of step 0."""
        self._retriever.refresh(0)
        self._made_at = self._all_made_at(time.monotonic())

    def before_step(self, step: int, moved: bool) -> None:
        """Do what is to be done after `step` finished steps; `moved`: whether document vectors have changed since the
        first index."""
        with self._timed():
            self._builder.tend()
            staggered = self._round
            if staggered is not None:
                self._go_on_with_round(staggered)
                self._swap_if_due(step, lambda generation: staggered.is_complete)
            asked = self._plan.asks(step, self._overlap(step, moved))
            if asked and self._partial is not None:
                self._refresh_share(self._partial, step, moved)
            elif asked:
                self._take_snapshot(step, moved)
            if self._round is None:
                self._swap_if_due(step, self._is_built)

    def after_step(self, candidates_BK: np.ndarray, step_operations: float) -> None:
        """What all ranks read in the step, and the floating-point operations it took without refreshing."""
        self._step_operations += step_operations
        if self._partial is not None:
            self._partial.note(candidates_BK)
        if self._round is not None:
            self._round.earn(step_operations)

    def metrics(self, step: int) -> dict[str, float]:
        """Age of the index that step `step` searched, and what refreshing has taken so far; once for every step.

        `index_staleness_steps_mean` is the mean over all steps so far: what is logged now and then may always fall on
        the same place between two refreshes.

        Floating-point operations so far: drift checks are among those of refreshing, measurements in neither. Seconds
        and the share of time are of this process; `index_staleness_seconds` is left out while a vector is from before a
        resumed run began. `trainer_stall_seconds`: in which the trainer embedded, built the search, or waited for the
        builder; `refresh_seconds`: of the last such stop.
        """
        assert self._retriever.index is not None
        now = time.monotonic()
        old = age(self._partial.steps_N if self._partial is not None else self._retriever.index.step, step)
        total = self._refresh_operations + self._step_operations
        self._age_sum += old.mean
        self._steps += 1
        values = {
            "index_staleness_steps": old.mean,
            "index_staleness_steps_max": old.highest,
            "index_staleness_steps_mean": self._age_sum / self._steps,
            "refreshes": float(self._plan.refreshes),
            "refresh_share_of_flops": self._refresh_operations / total if total else 0.0,
            "training_operations": self._step_operations,
            "refresh_operations": self._refresh_operations,
            "refresh_share_of_time": self._busy_seconds / max(now - self._started, 1e-9),
            "refresh_seconds": self._last_seconds,
            "trainer_stall_seconds": self._stall_seconds,
        }
        seconds = age(self._made_at, now).mean
        if np.isfinite(seconds):
            values["index_staleness_seconds"] = seconds
        recall = self._retriever.search_recall_at_8
        if recall is not None:
            values["search_recall_at_8"] = recall
        if self._builder.restarts:
            values["builder_restarts"] = float(self._builder.restarts)
        return values

    def measure(self, fresh: Retriever) -> dict[str, float]:
        """Drift from a fresh index, which the current weights have just made."""
        return _named(self._probe.exact(self._retriever, fresh), "")

    def measure_sample(self) -> dict[str, float]:
        """Drift estimated from few fresh vectors."""
        values: dict[str, float] = on_first_rank(lambda: _named(self._probe.sampled(self._retriever)[0], "_sampled"))
        return values

    def _overlap(self, step: int, moved: bool) -> float | None:
        if not self._plan.checks_drift(step):
            return None
        if not moved:
            return 1.0

        def check() -> list[float]:
            drift, pool_U = self._probe.sampled(self._retriever)
            return [drift.overlap, float(self._cost_N[pool_U].sum())]

        overlap, operations = on_first_rank(check)
        self._refresh_operations += operations
        return float(overlap)

    def _take_snapshot(self, step: int, moved: bool) -> None:
        """Ask for a generation of the current weights; they are copied where they are needed later."""
        self._plan.ask(step)
        current = self._retriever.embedder
        at_once = self._plan.due(step, lambda generation: False) == step
        kept = self._retriever.searches_stale or (moved and not at_once)
        embedder = copy.deepcopy(current).requires_grad_(False).eval() if kept else None
        self._pending[step] = Snapshot(embedder, moved, time.monotonic())
        if self._round is not None:
            self._round.begin()
            self._part_ND = torch.empty(0)
        if not moved:
            return
        if self._round is None:
            self._builder.submit(step, embedder or current)
            self._refresh_operations += float(self._cost_N.sum())

    def _is_built(self, generation: int) -> bool:
        return not self._pending[generation].moved or self._builder.is_built(generation)

    def _swap_if_due(self, step: int, is_built: Callable[[int], bool]) -> None:
        generation = self._plan.due(step, is_built)
        if generation is None:
            return
        snapshot = self._pending[generation]
        index = self._retriever.index
        assert index is not None
        if snapshot.moved and self._round is not None:
            index = self._retriever.generation(self._part_ND, generation)
        elif snapshot.moved:
            embedder = snapshot.embedder or self._retriever.embedder  # none was kept: no step has been since
            with self._stalled():
                index = self._retriever.generation(self._builder.wait(generation, embedder), generation)
        else:
            index = index._replace(step=generation)
        self._adopt(index, snapshot.embedder if self._retriever.searches_stale else None)
        self._made_at = self._all_made_at(snapshot.taken_at)
        self._plan.swap(generation)
        self._pending = {other: kept for other, kept in self._pending.items() if other > generation}
        self._builder.in_use(generation)

    def _adopt(self, index: IndexGeneration, snapshot: Embedder | None) -> None:
        """Search another index; what its search takes to build is time that the trainer waits."""
        assert self._retriever.index is not None
        with self._stalled() if index.embeddings_ND is not self._retriever.index.embeddings_ND else nullcontext():
            self._retriever.adopt(index, snapshot)

    def _refresh_share(self, partial: PartialRefresh, step: int, moved: bool) -> None:
        """Embed some passages with the current weights, and put them in the place of their old vectors."""
        rows_U = partial.choose()
        index = self._retriever.index
        assert index is not None
        embeddings_ND = index.embeddings_ND
        if moved:
            with self._stalled():
                embeddings_ND = embeddings_ND.clone()
                rows = torch.from_numpy(rows_U).to(embeddings_ND.device)
                embeddings_ND[rows] = self._retriever.embed_passages(rows_U)
            self._refresh_operations += float(self._cost_N[rows_U].sum())
        snapshot = copy.deepcopy(self._retriever.embedder) if self._retriever.searches_stale else None
        self._adopt(self._retriever.generation(embeddings_ND, step), snapshot)
        partial.embedded(rows_U, step)
        assert isinstance(self._made_at, np.ndarray)
        self._made_at[rows_U] = time.monotonic()
        self._plan.swap(step)

    def _go_on_with_round(self, staggered: StaggeredRound) -> None:
        """Embed the next passages with the weights of the round's beginning."""
        if not self._pending:
            return
        rows_U = staggered.spend()
        [snapshot] = self._pending.values()
        if not (snapshot.moved and len(rows_U)):
            return
        with self._stalled():
            part_UD = self._retriever.embed_passages(rows_U, snapshot.embedder)
            if not len(self._part_ND):
                self._part_ND = part_UD.new_zeros(len(self._cost_N), part_UD.shape[1])
            self._part_ND[torch.from_numpy(rows_U).to(part_UD.device)] = part_UD
        self._refresh_operations += float(self._cost_N[rows_U].sum())

    def _all_made_at(self, moment: float) -> float | np.ndarray:
        return moment if self._partial is None else np.full(len(self._cost_N), moment)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started, stalled = time.monotonic(), self._stall_seconds
        yield
        self._busy_seconds += time.monotonic() - started
        if self._stall_seconds > stalled:
            self._last_seconds = self._stall_seconds - stalled

    @contextmanager
    def _stalled(self) -> Iterator[None]:
        """Time in which the trainer embeds, or waits for the builder."""
        started = time.monotonic()
        yield
        self._stall_seconds += time.monotonic() - started

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint: the index with the weights behind it, and every generation that is under way."""
        index, snapshot = self._retriever.index, self._retriever.snapshot
        if index is None:
            return {}
        sums = [self._refresh_operations, self._step_operations, self._age_sum, float(self._steps)]
        state = {
            "index.embeddings": index.embeddings_ND,
            "index.step": torch.tensor(index.step),
            "refresh.sums": torch.tensor(sums, dtype=torch.float64),
            "refresh.moved": torch.tensor([kept.moved for kept in self._pending.values()], dtype=torch.bool),
            **self._plan.state(),
        }
        if snapshot is not None:
            state |= module_tensors("snapshot", snapshot)
        for step, kept in self._pending.items():
            if kept.embedder is not None:
                state |= module_tensors(f"pending.{step}", kept.embedder)
        if self._partial is not None:
            state |= self._partial.state()
        if self._round is not None:
            state |= self._round.state() | {"refresh.part": self._part_ND}
        return state

    def load_state(self, tensors: Mapping[str, Tensor]) -> bool:
        """Restore what `state` returned; generations under way are submitted again. Whether there was an index."""
        if "index.embeddings" not in tensors:
            return False
        self._plan.load_state(tensors)
        self._refresh_operations, self._step_operations, self._age_sum, steps = tensors["refresh.sums"].tolist()
        self._steps = int(steps)
        index = self._retriever.generation(tensors["index.embeddings"], int(tensors["index.step"]))
        self._retriever.adopt(index, self._loaded("snapshot", tensors))
        self._made_at = self._all_made_at(np.nan)
        if self._partial is not None:
            self._partial.load_state(tensors)
        if self._round is not None:
            self._round.load_state(tensors)
            self._part_ND = tensors["refresh.part"]
        for step, moved in zip(self._plan.pending, tensors["refresh.moved"].tolist(), strict=True):
            embedder = self._loaded(f"pending.{step}", tensors)
            self._pending[step] = Snapshot(embedder, moved, np.nan)
            if moved and self._round is None:
                assert embedder is not None
                self._builder.submit(step, embedder)
        return True

    def _loaded(self, name: str, tensors: Mapping[str, Tensor]) -> Embedder | None:
        if not any(key.startswith(f"{name}.") for key in tensors):
            return None
        embedder = copy.deepcopy(self._retriever.embedder).requires_grad_(False).eval()
        load_module(name, embedder, dict(tensors), "checkpoint")
        return embedder


def _named(drift: Drift, suffix: str) -> dict[str, float]:
    return {
        f"index_overlap{suffix}": drift.overlap,
        f"prior_shift{suffix}": drift.shift,
        f"prior_divergence{suffix}": drift.divergence,
    }
