"""Every refresh policy: exact ages, the same run when it is killed and resumed, and a builder process that changes
nothing."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from realm_lab.training.builders import InlineBuilder
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
