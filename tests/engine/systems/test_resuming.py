"""Stages that only some systems have: killed and run again, they end in the same bits."""

import itertools
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from realm_lab.engine.systems.registry import system_of
from realm_lab.engine.training import loop
from realm_lab.records.run import StageRun
from tests import tiny
from tests.whole import OPTIONS

SHORT = {"warm_start.reader.steps": 2, "warm_start.embedder.steps": 2, "finetune.steps": 8}
LINKED = {"path_retriever": {"steps": 8, "batch_size": 4, "negatives": 5, "first": 3}}
STAGES: list[tuple[str, str, dict[str, Any]]] = [
    ("dpr", "dpr", {}),
    ("bm25_dpr_reader", "finetune", {}),
    ("hard_em", "finetune", {}),
    ("closed_book", "span_corruption", {}),
    ("closed_book", "salient_spans", {}),
    ("drqa", "document_reader", {}),
    ("path_retriever", "retriever", {}),
    ("fid", "finetune", {}),
    ("rag", "finetune", {"marginal": "token"}),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project; stages before those that are killed are done in it once."""
    return tiny.prepare(tiny.params(SHORT), tmp_path_factory.mktemp("resuming") / "whole")


def outcome(run: StageRun) -> Any:
    weights = {name: data for name, data in tiny.files(run.path).items() if name.endswith(".safetensors")}
    assert weights
    return weights, *tiny.outcome(run)


@contextmanager
def interrupted_once(at: int) -> Iterator[list[int]]:
    """Collect the steps that stages do inside, whatever their task. The clock ticks once per step, and a stage is
    interrupted the first time that step `at` is done."""
    check, done = loop._check_finite, list[int]()

    def interrupted(values: Mapping[str, float], path: Path, step: int) -> None:
        done.append(step)
        if step == at and done.count(at) == 1:
            raise KeyboardInterrupt
        check(values, path, step)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(loop, "time", SimpleNamespace(monotonic=itertools.count().__next__))
        patches.setattr(loop, "_check_finite", interrupted)
        yield done


@pytest.mark.slow
@pytest.mark.parametrize(("system", "stage", "own"), STAGES)
def test_killed_it_ends_in_the_same_bits(
    whole: Path, tmp_path: Path, system: str, stage: str, own: dict[str, Any]
) -> None:
    options = OPTIONS | LINKED
    options |= {system: options[system] | own}
    often = {"model.dropout": 0.1, "launch.checkpoint_interval_seconds": 2}  # every third step, by that clock
    params = tiny.params(SHORT | often | {"system_options": options})
    for before in itertools.takewhile(lambda name: name != stage, (each.name for each in system_of(system).stages)):
        tiny.run(before, params, whole, system)
    shutil.copytree(whole, tmp_path / "killed", ignore=shutil.ignore_patterns(f"{stage}-*"))
    expected = outcome(tiny.run(stage, params, whole, system))
    with interrupted_once(5) as done:
        with pytest.raises(KeyboardInterrupt):
            tiny.run(stage, params, tmp_path / "killed", system)
        found = outcome(tiny.run(stage, params, tmp_path / "killed", system))
    assert done[:7] == [1, 2, 3, 4, 5, 4, 5]  # from the checkpoint of step 3
    assert found == expected
