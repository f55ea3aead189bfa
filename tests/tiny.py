"""The tiny pipeline: parameters, one stage in this process, and the results of a finished stage, without the clocks."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.params.load import load
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.identity import open_stage, plan_run
from realm_lab.lab.worker import run_stage
from realm_lab.records.run import StageRun

PARAMETERS = Path(__file__).with_name("tiny.yaml")
STAGES = ("warm_start", "pretrain", "finetune", "evaluate")
CLOCKS = {"time", "step_seconds", "refresh_share_of_time"}


def params(overrides: dict[str, Any] | None = None) -> Params:
    """The tiny parameters; `overrides` maps dotted keys to values."""
    return load(PARAMETERS, overrides)


def prepare(chosen: Params, root: Path, *stages: str, label: str = "realm", seed: int = 0) -> Path:
    """Prepare the corpus of `chosen` under `root` and do these stages, in this process; returns `root`."""
    for stage in ("prepare", *stages):
        run_stage(stage, label, chosen, seed, root)
    return root


def run(stage: str, chosen: Params, root: Path, label: str = "realm", seed: int = 0) -> StageRun:
    """Do one stage in this process."""
    run_stage(stage, label, chosen, seed, root)
    return stage_run(stage, chosen, root, label, seed)


@contextmanager
def undrawn() -> Iterator[None]:
    """Inside the block, the figures of a report are empty files: drawing takes as long as the whole tiny pipeline. The
    tests of reporting draw, and so do all processes that tests start."""
    from realm_lab.evidence.report import report_files
    from realm_lab.evidence.report.figures import Drawing

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(report_files, "draw", lambda sketch, **how: Drawing(sketch.name, {"png": b""}))
        yield


class Killed(BaseException):
    """Replaces any cause that ends a process."""


@contextmanager
def steps_done(task: type, killed_at: int | None = None) -> Iterator[list[int]]:
    """The steps that tasks of this class do inside; the run is killed when it is about to do `killed_at` (0-based)."""
    original, done = task.train_step, list[int]()  # type: ignore[attr-defined]

    def train_step(self: Any, step: int) -> dict[str, float]:
        if step == killed_at:
            raise Killed
        done.append(step)
        values: dict[str, float] = original(self, step)
        return values

    with pytest.MonkeyPatch.context() as patches, nullcontext() if killed_at is None else pytest.raises(Killed):
        patches.setattr(task, "train_step", train_step)
        yield done


def stage_run(stage: str, chosen: Params, root: Path, label: str = "realm", seed: int = 0) -> StageRun:
    """The folder of one stage."""
    return open_stage(root / "runs", plan_run(chosen, label, seed), stage)


def metrics(run: StageRun) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl without times."""
    return [{name: value for name, value in row.items() if name not in CLOCKS} for row in run.metrics.rows()]


def assert_metrics_alike(one: StageRun, two: StageRun) -> None:
    """Compare metrics up to rounding: sums are taken in another order."""
    alone, together = metrics(one), metrics(two)
    assert [row.keys() for row in alone] == [row.keys() for row in together]
    for row, other in zip(alone, together, strict=True):
        for name, value in row.items():
            relative, absolute = (1e-6, 0.0) if name.startswith("loss") else (2e-5, 1e-5)
            assert other[name] == pytest.approx(value, rel=relative, abs=absolute), (row["step"], name)


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """{metric: {step: value}}; a metric is logged once a step."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        for name, value in row.items():
            if name != "step":
                assert row["step"] not in found[name], f"{name} is there twice at step {row['step']}"
                found[name][row["step"]] = value
    return found


def files(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, by its path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def outcome(run: StageRun) -> tuple[dict[str, bytes], list[dict[str, Any]], dict[str, Any]]:
    """Everything that two equal runs share to the bit: the models, the metrics, and the results with the operations."""
    results = {name: value for name, value in run.results().items() if name not in CLOCKS}
    return files(run.path / "model"), metrics(run), results | {"training_flop": run.status().training_flop}
