"""Every refresh policy: exact ages, the same run when it is killed and resumed, and a builder process that changes
nothing."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from realm_lab.systems.supervisor import ProcessBuilder
from realm_lab.training.builders import InlineBuilder
from realm_lab.training.objective import RealmObjective
from realm_lab.training.pretrain import PretrainTask

STEPS = 12
# The retriever moves fast, so that every vector shows of which step it is.
BASE: dict[str, Any] = {
    "pretrain.steps": STEPS,
    "pretrain.retriever.learning_rate": 0.05,
    "pretrain.retriever.warmup_steps": 0,
    "evaluate.interval_steps": 6,
    "evaluate.cloze_sentences": 2,
    "evaluate.questions": 2,
    "launch.checkpoint_interval_seconds": 1000,
}
POLICIES: dict[str, dict[str, Any]] = {
    "interval": {"interval_steps": 5},
    "never": {"policy": "never"},
    "delayed": {"interval_steps": 3, "delay_steps": 2},
    "exactly two behind": {"interval_steps": 1, "delay_steps": 2},
    "delayed beyond the next": {"interval_steps": 2, "delay_steps": 5},
    "held": {"interval_steps": 2, "hold_generations": 2},
    "held and delayed": {"interval_steps": 2, "hold_generations": 1, "delay_steps": 1},
    "schedule": {"policy": "schedule", "schedule": [[0, 1], [3, 4], [8, 0]]},
    "round robin": {"scope": "round_robin", "interval_steps": 2, "scope_fraction": 0.3},
    "retrieved": {"scope": "retrieved", "interval_steps": 2, "scope_fraction": 0.1},
    "drift": {"policy": "drift", "drift_interval_steps": 2, "drift_overlap": 0.9},
    "drift, delayed": {"policy": "drift", "drift_interval_steps": 2, "drift_overlap": 1.0, "delay_steps": 3},
    "staggered": {"policy": "staggered", "budget_fraction": 0.6},
}
# Ages of the index that the steps 0 to 11 search.
AGES = {
    "interval": [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1],
    "never": list(range(12)),
    "delayed": [0, 1, 2, 3, 4, 2, 3, 4, 2, 3, 4, 2],
    "exactly two behind": [0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2],
    "delayed beyond the next": [0, 1, 2, 3, 4, 5, 6, 5, 6, 5, 6, 5],
    "held": [0, 1, 2, 3, 4, 5, 4, 5, 4, 5, 4, 5],
    "held and delayed": [0, 1, 2, 3, 4, 3, 4, 3, 4, 3, 4, 3],
    "schedule": [0, 0, 0, 0, 1, 2, 3, 0, 1, 2, 3, 4],
}


class Killed(BaseException):
    """Stands in for whatever ends a process."""


@pytest.fixture(scope="module")
def start(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root where the warm start is done."""
    root: Path = tiny.prepare(tiny.params(BASE), tmp_path_factory.mktemp("refreshing") / "start")
    tiny.run("warm_start", tiny.params(BASE), root)
    return root


def settings(tiny: ModuleType, policy: str, **more: Any) -> Any:
    return tiny.params(BASE | {f"pretrain.refresh.{key}": value for key, value in POLICIES[policy].items()} | more)


def by_name(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """{metric: values in the order of the steps}."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            found[name].append(value)
    return found


@pytest.mark.parametrize("policy", AGES)
def test_the_age_of_the_index_is_what_the_policy_says(tiny: ModuleType, start: Path, policy: str) -> None:
    found = by_name(tiny.metrics(tiny.run("pretrain", settings(tiny, policy), start)))
    assert found["index_staleness_steps"] == found["index_staleness_steps_max"] == AGES[policy]
    means = [sum(AGES[policy][: step + 1]) / (step + 1) for step in range(len(AGES[policy]))]
    assert found["index_staleness_steps_mean"] == pytest.approx(means)
    swaps = sum(now < before + 1 for before, now in zip(AGES[policy], AGES[policy][1:], strict=False))
    assert found["refreshes"][-1] == swaps


def test_a_round_robin_refresh_ages_each_passage_by_itself(tiny: ModuleType, start: Path) -> None:
    found = by_name(tiny.metrics(tiny.run("pretrain", settings(tiny, "round robin"), start)))
    passages, share = 320, 96  # 0.3 of them
    made = [0] * passages
    cursor = 0
    for step in range(STEPS):
        if step and step % 2 == 0:
            for place in range(share):
                made[(cursor + place) % passages] = step
            cursor += share
        assert found["index_staleness_steps"][step] == pytest.approx(step - sum(made) / passages)
        assert found["index_staleness_steps_max"][step] == step - min(made)


@pytest.mark.parametrize("bound", [0.3, 0.6, 1.0])
def test_drift_refreshes_when_the_overlap_falls_below_the_bound(tiny: ModuleType, start: Path, bound: float) -> None:
    """The watch looks at the index before the check does, and writes down what it sees."""
    gently = {"pretrain.refresh.drift_overlap": bound, "pretrain.watch.interval_steps": 2}
    gently |= {"pretrain.retriever.learning_rate": 0.003}
    found = by_name(tiny.metrics(tiny.run("pretrain", settings(tiny, "drift", **gently), start)))
    overlaps = dict(zip(range(0, STEPS + 1, 2), found["index_overlap_sampled"], strict=True))
    made, expected = 0, []
    for step in range(STEPS):
        if step and step % 2 == 0 and overlaps[step] < bound:
            made = step
        expected.append(step - made)
    assert found["index_staleness_steps"] == expected
    assert min(overlaps.values()) < 1
    assert found["refresh_share_of_flops"][-1] > 0  # the checks alone


def test_staggered_spends_its_share_and_begins_anew(tiny: ModuleType, start: Path) -> None:
    found = by_name(tiny.metrics(tiny.run("pretrain", settings(tiny, "staggered"), start)))
    ages = found["index_staleness_steps"]
    swaps = [step for step in range(1, STEPS) if ages[step] != ages[step - 1] + 1]
    assert len(swaps) >= 2
    born = [1, *swaps]  # a round begins where the last one ended, the first one after the first step
    assert [step - ages[step] for step in swaps] == born[: len(swaps)]
    share = found["refresh_share_of_flops"][-1]
    assert 0.3 < share / (1 - share) <= 0.6  # of the training
    spent, trained = found["refresh_operations"], found["training_operations"]
    assert share == pytest.approx(spent[-1] / (spent[-1] + trained[-1]))
    assert all(after > before > 0 for before, after in pairwise(trained))


@pytest.mark.parametrize(
    ("policy", "builder", "kills"),
    [*((policy, "inline", (1, 4, 7, 10)) for policy in POLICIES), ("delayed beyond the next", "process", (5, 8))],
)
def test_a_killed_run_resumes_to_the_same_bits(
    tiny: ModuleType,
    start: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    builder: str,
    kills: tuple[int, ...],
) -> None:
    chosen = settings(tiny, policy)
    expected = tiny.outcome(tiny.run("pretrain", chosen, start))
    root = Path(shutil.copytree(start, tmp_path / "killed"))
    shutil.rmtree(tiny.stage_run("pretrain", chosen, root).path)
    often = settings(tiny, policy, **{"launch.checkpoint_interval_seconds": 1, "launch.builder": builder})
    monkeypatch.setattr("realm_lab.training.loop.time.monotonic", iter(range(0, 100_000, 2)).__next__)  # every step
    original = PretrainTask.train_step
    for last in kills:

        def dies(self: PretrainTask, step: int, last: int = last) -> dict[str, float]:
            if step == last:
                raise Killed
            return original(self, step)

        monkeypatch.setattr(PretrainTask, "train_step", dies)
        with pytest.raises(Killed):
            tiny.run("pretrain", often, root)
    monkeypatch.setattr(PretrainTask, "train_step", original)
    assert tiny.outcome(tiny.run("pretrain", often, root)) == expected


@pytest.mark.parametrize("policy", ["interval", "delayed", "held", "round robin", "retrieved", "drift", "staggered"])
def test_a_backend_is_built_anew_whenever_vectors_change(tiny: ModuleType, start: Path, policy: str) -> None:
    """FAISS Flat finds what exact search finds, so that a run differs where it searches vectors of before."""
    models, metrics, _ = tiny.outcome(tiny.run("pretrain", settings(tiny, policy), start))
    flat = settings(tiny, policy, **{"pretrain.search.backend": "faiss_flat"})
    flat_models, flat_metrics, _ = tiny.outcome(tiny.run("pretrain", flat, start))
    assert models.pop("manifest.json") != flat_models.pop("manifest.json")  # another key
    assert flat_models == models
    recalls = [row.pop("search_recall_at_8") for row in flat_metrics if "loss" in row]
    assert recalls == [1.0] * STEPS
    assert flat_metrics == metrics
    assert max(by_name(metrics)["refreshes"]) > 0


def test_an_approximate_search_is_measured_and_evaluation_is_exact(tiny: ModuleType, start: Path) -> None:
    change = {"pretrain.search.backend": "ivf_flat", "pretrain.search.options": "nlist=64,nprobe=1"}
    change |= {"evaluate.questions": 12, "evaluate.cloze_sentences": 8}
    frozen = change | {"pretrain.train_query_tower": False, "pretrain.train_document_tower": False}
    exact = frozen | {"pretrain.search.backend": "exact", "pretrain.search.options": ""}
    frozen |= {"pretrain.train_reader": True}
    found, expected = (
        by_name(tiny.metrics(tiny.run("pretrain", settings(tiny, "interval", **part), start)))
        for part in (frozen, exact)
    )
    assert 0.1 < found["search_recall_at_8"][0] < 0.95
    assert len(set(found["search_recall_at_8"])) == 1  # the same vectors, the same seed
    assert found["loss"] != expected["loss"]
    assert "search_recall_at_8" not in expected
    recalls = [name for name in expected if "recall_at" in name]
    assert recalls
    for name in (*recalls, "index_overlap", "index_overlap_sampled"):
        assert found[name] == expected[name], name  # what an approximate search misses is no staleness


@pytest.mark.parametrize("search", ["stale", "fresh"])
@pytest.mark.parametrize("policy", ["interval", "delayed beyond the next", "held and delayed"])
def test_a_builder_process_changes_no_bit(
    tiny: ModuleType, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, search: str
) -> None:
    query = {"pretrain.search_query": search}
    expected = tiny.outcome(tiny.run("pretrain", settings(tiny, policy, **query), start))
    root = Path(shutil.copytree(start, tmp_path / "process", ignore=shutil.ignore_patterns("pretrain-*")))
    monkeypatch.delattr(InlineBuilder, "wait")  # the trainer itself embeds nothing
    run = tiny.run("pretrain", settings(tiny, policy, **query, **{"launch.builder": "process"}), root)
    assert tiny.outcome(run) == expected
    assert not (run.path / "index").exists()  # it served its purpose, as the checkpoints did
    assert run.status().flags == ()


READY = {"pretrain.refresh.swap": "ready", "pretrain.refresh.interval_steps": 2, "launch.builder": "process"}


class TimedBuilder(InlineBuilder):
    """A builder that is ready with the next generation when `steps` more have begun, or when it is told to be."""

    steps = 3

    def __init__(self, retriever: Any):
        super().__init__(retriever)
        self.submitted: dict[int, int] = {}
        self.begun = 0
        self.waits: list[int] = []

    def tend(self) -> None:
        self.begun += 1

    def submit(self, step: int, embedder: Any) -> None:
        self.submitted[step] = self.begun

    def is_built(self, step: int) -> bool:
        return self.begun - self.submitted[step] >= self.steps

    def wait(self, step: int, embedder: Any) -> Any:
        assert self.is_built(step), "the trainer waits"
        self.waits.append(step)
        return super().wait(step, embedder)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[TimedBuilder]:
    """The builders that were made; no process is."""
    made: list[TimedBuilder] = []

    def keep(retriever: Any) -> TimedBuilder:
        made.append(TimedBuilder(retriever))
        return made[-1]

    monkeypatch.setattr("realm_lab.systems.stages._builder", lambda context, run: nullcontext())
    monkeypatch.setattr("realm_lab.training.index_keeper.InlineBuilder", keep)
    return made


@pytest.mark.parametrize(
    ("steps", "ages"),
    [
        (1, [0, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1]),
        (3, [0, 1, 2, 3, 4, 3, 4, 5, 6, 3, 4, 5]),  # asked for at 2, ready at 5; at 4 it is busy, the next is of 6
        (100, list(range(12))),
    ],
)
def test_an_index_is_searched_from_the_first_step_that_begins_when_it_is_there(
    tiny: ModuleType,
    start: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    timed: list[TimedBuilder],
    steps: int,
    ages: list[int],
) -> None:
    """With swap: ready; no step is waited for, and one index follows the other."""
    root = Path(shutil.copytree(start, tmp_path / "ready", ignore=shutil.ignore_patterns("pretrain-*")))
    monkeypatch.setattr(TimedBuilder, "steps", steps)
    found = by_name(tiny.metrics(tiny.run("pretrain", settings(tiny, "interval", **READY), root)))
    assert found["index_staleness_steps"] == found["index_staleness_steps_max"] == ages
    [builder] = timed
    assert builder.waits == sorted({step - age for step, age in enumerate(ages)} - {0})
    assert found["refreshes"][-1] == len(builder.waits)


def test_a_builder_that_takes_n_steps_is_a_delay_of_n_steps(
    tiny: ModuleType, start: Path, tmp_path: Path, timed: list[TimedBuilder]
) -> None:
    """What `ready` does depends on nothing but when the index is there."""
    root = Path(shutil.copytree(start, tmp_path / "ready", ignore=shutil.ignore_patterns("pretrain-*")))
    ready = settings(tiny, "interval", **READY | {"pretrain.refresh.interval_steps": 4})
    found = tiny.run("pretrain", ready, root)
    assert timed[0].waits == [4, 8]
    delay = {"pretrain.refresh.interval_steps": 4, "pretrain.refresh.delay_steps": 3}
    fixed = tiny.run("pretrain", settings(tiny, "interval", **delay), start)
    assert tiny.metrics(found) == tiny.metrics(fixed)
    for part in ("reader", "embedder"):
        assert tiny.files(found.path / "model" / part) == tiny.files(fixed.path / "model" / part)


def test_an_index_that_is_ready_in_the_middle_of_a_step_waits_for_its_end(
    tiny: ModuleType, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: list[TimedBuilder]
) -> None:
    root = Path(shutil.copytree(start, tmp_path / "ready", ignore=shutil.ignore_patterns("pretrain-*")))
    original = RealmObjective.__call__
    searched: list[int] = []

    def becomes_ready(self: RealmObjective, *arguments: Any, **named: Any) -> Any:
        before = self._retriever.index
        assert before is not None
        monkeypatch.setattr(TimedBuilder, "steps", 0 if len(searched) == 5 else 100)
        read = original(self, *arguments, **named)
        assert self._retriever.index is before
        searched.append(before.step)
        return read

    monkeypatch.setattr(RealmObjective, "__call__", becomes_ready)
    found = by_name(tiny.metrics(tiny.run("pretrain", settings(tiny, "interval", **READY), root)))
    assert searched == [0] * 6 + [2] * 6
    assert found["index_staleness_steps"] == [step - made for step, made in enumerate(searched)]


def test_a_killed_run_asks_again_for_an_index_that_was_not_ready(
    tiny: ModuleType, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: list[TimedBuilder]
) -> None:
    """Asked for at 2; killed in step 3; after resuming it takes its time again, and nothing else has changed."""
    root = Path(shutil.copytree(start, tmp_path / "ready", ignore=shutil.ignore_patterns("pretrain-*")))
    chosen = settings(tiny, "interval", **READY, **{"launch.checkpoint_interval_seconds": 1})
    monkeypatch.setattr("realm_lab.training.loop.time.monotonic", iter(range(0, 100_000, 2)).__next__)  # every step
    original = PretrainTask.train_step

    def dies(self: PretrainTask, step: int) -> dict[str, float]:
        if step == 3:
            raise Killed
        return original(self, step)

    monkeypatch.setattr(PretrainTask, "train_step", dies)
    with pytest.raises(Killed):
        tiny.run("pretrain", chosen, root)
    monkeypatch.setattr(PretrainTask, "train_step", original)
    found = by_name(tiny.metrics(tiny.run("pretrain", chosen, root)))
    # Submitted before step 3 is begun again: there when 3 more steps have begun, 3, 4 and 5.
    assert found["index_staleness_steps"] == [0, 1, 2, 3, 4, 3, 4, 5, 6, 3, 4, 5]
    assert [builder.waits for builder in timed] == [[], [2, 6]]


def test_a_process_that_is_ready_is_never_waited_for(
    tiny: ModuleType, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test waits before step 7 until a generation lies there; that step searches it."""
    root = Path(shutil.copytree(start, tmp_path / "ready", ignore=shutil.ignore_patterns("pretrain-*")))
    chosen = settings(tiny, "interval", **READY | {"pretrain.refresh.interval_steps": 5})
    folder = tiny.stage_run("pretrain", chosen, root).path / "index"
    original, sleep = PretrainTask.train_step, time.sleep
    deadline = time.monotonic() + 120

    def patient(self: PretrainTask, step: int) -> dict[str, float]:
        while step == 7 and not list(folder.glob("gen-*")):
            assert time.monotonic() < deadline
            sleep(0.05)
        return original(self, step)

    def never(self: ProcessBuilder, step: int) -> str:
        assert self._is_published(step), "the trainer waits"
        return self._wanted[step].generation

    monkeypatch.setattr(PretrainTask, "train_step", patient)
    monkeypatch.setattr(ProcessBuilder, "_waited", never)
    found = by_name(tiny.metrics(tiny.run("pretrain", chosen, root)))
    ages = found["index_staleness_steps"]
    assert ages[:6] == [0, 1, 2, 3, 4, 5]
    assert ages[6] in (6, 1)
    assert ages[7] == 2
