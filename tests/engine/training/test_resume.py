"""A run that is killed anywhere and started again ends in the same bits as one that was not."""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.stages import ending as train_module
from realm_lab.engine.training.finetune import FinetuneTask
from realm_lab.engine.training.pretrain import PretrainTask
from realm_lab.engine.training.warm_start import WarmStartTask
from tests import tiny

TASKS: dict[str, type] = {"warm_start": WarmStartTask, "pretrain": PretrainTask, "finetune": FinetuneTask}
RANDOM = {"launch.checkpoint_interval_seconds": 2, "model.dropout": 0.1, "pretrain.calibrate_null": True}
# The loop's clock ticks once a step and the interval is 2 s, so that steps 3, 6, 9 ... are saved.
SAVE_EVERY = 3


class Line:
    """A root with an uninterrupted run, and folders for interrupted runs."""

    def __init__(self, folder: Path):
        self.folder, self.root = folder, folder / "whole"
        self.whole: dict[tuple[str, str], Any] = {}
        self._count = itertools.count()

    def expected(self, stage: str, params: Params) -> Any:
        key = (stage, params.model_dump_json())
        if key not in self.whole:
            tiny.prepare(params, self.root)
            stages = list(TASKS)
            for name in stages[: stages.index(stage) + 1]:
                tiny.run(name, params, self.root)
            self.whole[key] = tiny.outcome(tiny.stage_run(stage, params, self.root))
        return self.whole[key]

    def elsewhere(self, stage: str, params: Params) -> Path:
        """A root where everything before `stage` is done, and nothing of `stage`."""
        self.expected(stage, params)
        root = self.folder / f"killed-{next(self._count)}"
        shutil.copytree(self.root, root)
        shutil.rmtree(tiny.stage_run(stage, params, root).path)
        return root


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Line:
    return Line(tmp_path_factory.mktemp("resume"))


@pytest.fixture(autouse=True)
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realm_lab.engine.training.loop.time", SimpleNamespace(monotonic=itertools.count().__next__))


def steps_of(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in sorted(folder.glob("step-*"))]


def assert_resumes(line: Line, stage: str, params: Params, root: Path) -> None:
    torch.manual_seed(777)  # the generator of another process has any state
    run = tiny.run(stage, params, root)
    models, metrics, results = tiny.outcome(run)
    expected_models, expected_metrics, expected_results = line.expected(stage, params)
    assert metrics == expected_metrics
    assert models == expected_models
    assert results == expected_results
    assert not (run.path / "checkpoints").exists()
    pairs = [(row["step"], name) for row in metrics for name in row if name != "step"]
    assert len(pairs) == len(set(pairs))  # each metric once a step


# 12 steps a phase (warm_start has two): before the first checkpoint, right after one, between two, at a refresh, after
# the change of phase, and at the last step.
KILLS = [
    *(("warm_start", step) for step in (2, 3, 13)),
    ("pretrain", 5),
    *(pytest.param("pretrain", step, marks=pytest.mark.slow) for step in (0, 11)),
    pytest.param("finetune", 8, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("stage", "step"), KILLS)
def test_killed_once(line: Line, stage: str, step: int) -> None:
    params = tiny.params(RANDOM)
    root = line.elsewhere(stage, params)
    with tiny.steps_done(TASKS[stage], killed_at=step):
        tiny.run(stage, params, root)
    run = tiny.stage_run(stage, params, root)
    saved = [step - step % SAVE_EVERY - SAVE_EVERY * older for older in (1, 0)]
    assert steps_of(run.path / "checkpoints") == [number for number in saved if number > 0]
    assert run.status().state == "FAILED"
    with tiny.steps_done(TASKS[stage]) as done:
        assert_resumes(line, stage, params, root)
    assert done == list(range(max(0, saved[-1]), 24 if stage == "warm_start" else 12))  # it does not start over
    assert (run.status().attempt, run.status().state) == (2, "COMPLETE")


VARIANTS: dict[str, dict[str, Any]] = {
    "fresh search, separate towers": {"pretrain.search_query": "fresh", "model.share_towers": False},
    "never refreshed, word embeddings frozen": {
        "pretrain.refresh.policy": "never",
        "model.train_word_embeddings": False,
    },
    "approximate search": {
        "pretrain.search.backend": {"name": "ivf_pq", "nbits": 3},
        "pretrain.refresh.interval_steps": 3,
        "pretrain.search_query": "fresh",
    },
    "random masks, reader frozen": {"pretrain.masking": "random_span", "pretrain.train_reader": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_pretraining_resumes(line: Line, variant: str) -> None:
    params = tiny.params(RANDOM | VARIANTS[variant])
    root = line.elsewhere("pretrain", params)
    with tiny.steps_done(TASKS["pretrain"], killed_at=8):
        tiny.run("pretrain", params, root)
    assert_resumes(line, "pretrain", params, root)


@pytest.mark.slow
@pytest.mark.parametrize("step", [20, 26])  # in the second of three attempts of 4 steps, and in the second step after
def test_attempts_of_the_warm_start_resume(line: Line, step: int) -> None:
    params = tiny.params(RANDOM | {"warm_start.embedder.steps": 16, "warm_start.embedder.attempts": 3})
    root = line.elsewhere("warm_start", params)
    with tiny.steps_done(TASKS["warm_start"], killed_at=step):
        tiny.run("warm_start", params, root)
    assert_resumes(line, "warm_start", params, root)


@pytest.mark.slow
@pytest.mark.parametrize("stage", TASKS)
def test_killed_after_the_last_step_before_the_models_are_written(line: Line, stage: str) -> None:
    params = tiny.params(RANDOM | {"launch.checkpoint_interval_seconds": 10_000})
    root = line.elsewhere(stage, params)

    def write(*arguments: Any) -> None:
        raise tiny.Killed

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(train_module, "write_embedder", write)
        with pytest.raises(tiny.Killed):
            tiny.run(stage, params, root)
    run = tiny.stage_run(stage, params, root)
    assert not (run.path / "model").exists()
    assert not run.is_complete()
    assert steps_of(run.path / "checkpoints") == [run.status().total_steps]  # the last step is always saved
    assert_resumes(line, stage, params, root)
