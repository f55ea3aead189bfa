"""Two processes (gloo) that share every batch do what one process does, and write what one would write."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from realm_lab.errors import UserError
from realm_lab.lab import pipeline as stages
from realm_lab.records.run import StageRun
from realm_lab.records.state import stage_state
from tests import tiny

TEMPERATE = {"warm_start.reader.optimiser.learning_rate": 5e-4, "warm_start.embedder.optimiser.learning_rate": 5e-4}
EVEN = {"warm_start.reader.batch_size": 16, "warm_start.embedder.batch_size": 8}
UNEVEN = {"warm_start.reader.batch_size": 7, "warm_start.embedder.batch_size": 5}
WEIGHTS = ("reader/model.safetensors", "embedder/model.safetensors", "embedder/projections.safetensors")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.prepare(tiny.params(), tmp_path_factory.mktemp("distributed"))


def assert_alike(one: StageRun, two: StageRun) -> None:
    """Compare losses and weights up to rounding: sums are taken in another order."""
    tiny.assert_metrics_alike(one, two)
    for name in WEIGHTS:
        weights, others = load_file(one.path / "model" / name), load_file(two.path / "model" / name)
        for part, value in weights.items():
            if part.endswith("attention.self.key.bias"):
                continue  # softmax does not see it: its gradient is rounding noise, which Adam turns into full steps
            # Compared as whole tensors: in one element or two Adam amplifies the rounding of a gradient of almost 0.
            assert (others[part] - value).norm() <= 5e-4 * value.norm(), f"{name} {part}"


@pytest.mark.slow
def test_two_processes_do_what_one_does(prepared: Path, tmp_path: Path) -> None:
    one = tiny.run("warm_start", tiny.params(TEMPERATE | UNEVEN), shutil.copytree(prepared, tmp_path / "one"))
    both = tiny.params(TEMPERATE | UNEVEN | {"launch.ranks": 2})
    root = shutil.copytree(prepared, tmp_path / "two")
    stages.run("warm_start", stages.planned(both), root)
    two = tiny.stage_run("warm_start", both, root)
    assert_alike(one, two)
    status = two.status()
    assert (status.state, status.attempt, status.step, status.flags) == ("COMPLETE", 1, 24, one.status().flags)
    assert not (two.path / "checkpoints").exists()
    assert tiny.files(root / "models" / "warm_start" / "s0") == tiny.files(two.path / "model")


@pytest.mark.slow
def test_the_gradient_of_all_ranks_is_that_of_the_batch(prepared: Path, tmp_path: Path) -> None:
    """One step of each phase without Adam's division, which would hide a wrong normaliser or a missing negative."""
    params = tiny.params(UNEVEN | {"warm_start.reader.steps": 1, "warm_start.embedder.steps": 1})
    one = tiny.metrics(tiny.run("warm_start", params, shutil.copytree(prepared, tmp_path / "one")))
    both = tiny.params(params.model_dump(mode="json") | {"launch.ranks": 2})
    root = shutil.copytree(prepared, tmp_path / "two")
    stages.run("warm_start", stages.planned(both), root)
    two = tiny.metrics(tiny.stage_run("warm_start", both, root))
    for name in ("gradient_norm_reader", "gradient_norm_embedder", "accuracy_mlm", "accuracy_ict"):
        values = [[row[name] for row in rows if name in row] for rows in (one, two)]
        assert values[0] == pytest.approx(values[1], rel=2e-6)


REFRESHES: dict[str, dict[str, Any]] = {
    "every fifth step": {},
    "by a builder process": {"interval_steps": 2, "delay_steps": 1},
    "when it drifts": {"policy": {"name": "drift", "overlap": 1.0}, "interval_steps": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "how"),
    [
        *(("pretrain", how) for how in (*REFRESHES, "by a builder process, spread over both")),
        *(("finetune", how) for how in ("every fifth step", "a question a step")),
    ],
)
def test_two_processes_do_the_later_stages_as_one_does(prepared: Path, tmp_path: Path, stage: str, how: str) -> None:
    """The stages have refreshes, whose work is shared too, and batches that cannot be halved."""
    refreshes = REFRESHES.get(how.partition(", spread")[0], {})
    changes: dict[str, Any] = {f"pretrain.refresh.{key}": value for key, value in refreshes.items()}
    changes |= {f"{stage}.batch_size": 5, f"{stage}.steps": 8, f"{stage}.reader.learning_rate": 5e-4}
    if "question" in how:  # one of the ranks has nothing to do while the other one works
        changes["finetune.batch_size"] = 1
    one = shutil.copytree(prepared, tmp_path / "one")
    for before in ("warm_start", "pretrain") if stage == "finetune" else ("warm_start",):
        tiny.run(before, tiny.params(), one)
    two = shutil.copytree(one, tmp_path / "two")
    alone = tiny.run(stage, tiny.params(changes), one)
    builder = "process" if "process" in how else "inline"
    shared = {"launch.ranks": 2, "launch.builder": builder, "launch.spread_index": "spread" in how}
    run_both = tiny.params(changes | shared)
    stages.run(stage, stages.planned(run_both), two)
    assert_alike(alone, tiny.stage_run(stage, run_both, two))


def killer(root: Path, rank: int, signal_name: str, task: str = "WarmStartTask") -> str:
    """Return a PYTHONPATH that makes the given rank send itself a signal in its fifth step of a task."""
    folder = root / "site"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"""
import os, signal, sys
def watch(frame, event, argument):
    if event == "call" and frame.f_code.co_qualname == "{task}.train_step" and frame.f_locals["step"] == 4:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.{signal_name})
if os.environ.get("RANK") == "{rank}" and os.environ.get("WORLD_SIZE") == "2":
    sys.setprofile(watch)
""")
    return f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_is_killed_stops_both_and_they_resume(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any, rank: int
) -> None:
    root = shutil.copytree(prepared, tmp_path / "root")
    with monkeypatch.context() as patches:
        patches.setenv("PYTHONPATH", killer(root, rank, "SIGKILL"))
        with pytest.raises(UserError) as caught:
            stages.run("warm_start", stages.planned(tiny.params(SHARED)), root)
    run = tiny.stage_run("warm_start", tiny.params(SHARED), root)
    assert str(caught.value) == "warm-start, seed 0 (shared by 2 variants): killed by signal 9"
    assert stage_state(run.path).state == "LOST"  # whichever rank it was, the run did not fail
    stages.run("warm_start", stages.planned(tiny.params(SHARED)), root)
    assert run.status().attempt == 2
    assert tiny.outcome(run) == whole


@pytest.mark.slow
def test_an_index_that_is_spread_over_the_ranks_changes_no_bit(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has refreshes, evaluations by all ranks, probes by the first, and a stop between two refreshes."""
    start = shutil.copytree(prepared, tmp_path / "start")
    tiny.run("warm_start", tiny.params(), start)
    changes = {"pretrain.refresh.interval_steps": 3, "evaluate.interval_steps": 4, "launch.ranks": 2}
    outcomes = []
    for spread in (False, True):
        root = shutil.copytree(start, tmp_path / str(spread))
        params = tiny.params(changes | {"launch.spread_index": spread})
        if spread:
            with monkeypatch.context() as patches:
                patches.setenv("PYTHONPATH", killer(root, 1, "SIGTERM", "PretrainTask"))
                with pytest.raises(UserError, match="stopped by a signal"):
                    stages.run("pretrain", stages.planned(params), root)
            run = tiny.stage_run("pretrain", params, root)
            assert run.status().state == "PREEMPTED"
            assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["step-00000005"]
        stages.run("pretrain", stages.planned(params), root)
        outcomes.append(tiny.outcome(tiny.stage_run("pretrain", params, root)))
    assert outcomes[0] == outcomes[1]


SHARED = EVEN | {"model.dropout": 0.1, "launch.ranks": 2}  # no checkpoint by the clock: tiny.yaml has one in 1000 s


@pytest.fixture(scope="module")
def whole(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = shutil.copytree(prepared, tmp_path_factory.mktemp("whole") / "root")
    stages.run("warm_start", stages.planned(tiny.params(SHARED)), root)
    return tiny.outcome(tiny.stage_run("warm_start", tiny.params(SHARED), root))
