"""The study of index staleness: its arms load, its tables are what the runs say, its report is made from its tables."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from realm_lab.cli import build_parser
from realm_lab.errors import UserError
from realm_lab.params.load import load, parse_override
from realm_lab.systems.identity import open_stage, plan_run

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "reports" / "staleness-anatomy"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository's root first, so that `experiments` is ours."""
    monkeypatch.syspath_prepend(str(ROOT))
    for name in [name for name in sys.modules if name.split(".")[0] == "experiments"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def design() -> ModuleType:
    from experiments.staleness_anatomy import design as module

    return module


def test_the_committed_report_is_made_from_the_committed_tables(design: ModuleType, tmp_path: Path) -> None:
    from experiments.staleness_anatomy.report import main

    assert main(["--output", str(tmp_path)]) == 0
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")}
    assert {path.suffix for path in made} == {".md", ".json", ".svg", ".png"}
    for path in made:
        if path.suffix == ".png":  # the same drawing as its .svg, compressed by a library that may be another
            assert (REPORT / path).exists()
        else:
            assert (tmp_path / path).read_text("utf-8") == (REPORT / path).read_text("utf-8"), path


def test_every_arm_is_a_run_of_its_own_whose_parameters_load(design: ModuleType) -> None:
    read = design.read_design()
    assert len(read.arms) >= 6
    keys = set()
    for arm in read.arms:
        params = load(ROOT / "params.yaml", read.overrides(arm))
        assert params.pretrain.watch.interval_steps == read.shared["pretrain.watch.interval_steps"]
        stretch = arm.steps / read.arm(read.reference).steps  # of the warm-ups, as of the run
        assert abs(params.pretrain.retriever.warmup_steps - 200 * stretch) <= 0.5 + 1e-6
        assert abs(params.pretrain.reader.warmup_steps - 28 * stretch) <= 0.5 + 1e-6
        keys.add(plan_run(params, "realm", 0).stages["pretrain"])
    assert len(keys) == len(read.arms)


def test_every_arm_has_all_seeds_and_the_compute_of_the_reference(design: ModuleType) -> None:
    read, results = design.read_design(), pd.read_csv(REPORT / "results.csv")
    found = list(zip(results["arm"], results["seed"], strict=True))
    assert found == [(arm.name, seed) for arm in read.arms for seed in read.seeds]
    reference = results[results["arm"] == read.reference].set_index("seed")["total_gflop"]
    work = results["total_gflop"] / results["seed"].map(reference)
    assert work.between(0.975, 1.025).all()
    assert work.groupby(results["arm"]).mean().between(0.98, 1.02).all()
    assert np.allclose(results["training_gflop"] + results["refresh_gflop"], results["total_gflop"], atol=0.11)


def test_what_is_said_of_a_run_follows_from_its_curves() -> None:
    results: Any = pd.read_csv(REPORT / "results.csv").set_index(["arm", "seed"])
    steps, evaluations = pd.read_csv(REPORT / "steps.csv"), pd.read_csv(REPORT / "evaluations.csv")
    for who, rows in steps.groupby(["arm", "seed"]):
        regular = rows[(rows["step"] > 0) & (rows["step"] % 7 == 0)]
        assert results.loc[who, "mean_age_steps"] == pytest.approx(regular["age_steps"].mean(), abs=0.01)
        assert results.loc[who, "mean_overlap"] == pytest.approx(regular["overlap"].mean(), abs=1e-4)
        assert results.loc[who, "refreshes"] == rows["refreshes"].max()
        assert results.loc[who, "refresh_gflop"] == pytest.approx(rows["refresh_gflop"].max(), abs=0.06)
    for who, rows in evaluations.groupby(["arm", "seed"]):
        assert results.loc[who, "recall_at_5_late"] == pytest.approx(rows["recall_at_5"].tail(3).mean(), abs=1e-4)
        assert results.loc[who, "mean_overlap_exact"] == pytest.approx(rows["overlap_exact"].iloc[1:].mean(), abs=1e-4)
        assert results.loc[who, "utility_end"] == rows.sort_values("step")["utility"].iloc[-1]


def test_the_reports_commands_are_understood(design: ModuleType) -> None:
    text = (REPORT / "report.md").read_text("utf-8")
    block = text[text.index("```sh") :].splitlines()[1:-1]
    commands = [shlex.split(line) for line in block if line.startswith("realm-lab ")]
    assert len(commands) == 2 + len(design.read_design().arms)
    for command in commands:
        options = build_parser().parse_args(command[1:])
        load(ROOT / "params.yaml", dict(parse_override(text) for text in options.overrides))


@pytest.fixture
def one_arm(design: ModuleType, tmp_path: Path) -> tuple[Any, Path]:
    """A design of one arm and one seed, and a project folder."""
    path = tmp_path / "arms.json"
    arm = {"title": "every 2", "family": "fixed", "overrides": {"pretrain.steps": 5}}
    shared = {"pretrain.watch.interval_steps": 2, "launch.log_interval_steps": 2}
    path.write_text(json.dumps({"seeds": [3], "reference": "one", "shared": shared, "arms": {"one": arm}}))
    (tmp_path / "params.yaml").write_text("preset: toy\n")
    return design.read_design(path), tmp_path


def test_a_run_that_is_not_finished_is_named_with_its_command(one_arm: tuple[Any, Path]) -> None:
    from experiments.staleness_anatomy.collect import write_tables

    read, root = one_arm
    with pytest.raises(UserError, match=r"one, seed 3 is not finished; run: realm-lab pretrain .*pretrain\.steps=5"):
        write_tables(read, root, root / "out")


def test_a_runs_metrics_become_tables(one_arm: tuple[Any, Path]) -> None:
    from experiments.staleness_anatomy.collect import write_tables

    read, root = one_arm
    params = load(root / "params.yaml", {"pretrain.steps": 5, "pretrain.watch.interval_steps": 2, "seeds": [3]})
    run = open_stage(root / "runs", plan_run(params, "realm", 3), "pretrain", params)
    run.start(5)
    for step in range(6):
        if step in (2, 4, 5):
            age = {"index_staleness_steps": 10.0 * step, "index_staleness_steps_max": 10.0 * step}
            spent = {"training_operations": step * 2e9, "refresh_operations": step * 1e9, "refreshes": float(step)}
            shares = {"refresh_share_of_flops": 1 / 3, "refresh_share_of_time": 0.25, "trainer_stall_seconds": 1.0}
            run.metrics.log(step, age | spent | shares | {"index_staleness_seconds": 0.5})
        drift = {"prior_shift": 0.1, "prior_divergence": 0.2}
        if step in (0, 4, 5):
            quality = {"retrieval_utility": float(step), "recall_at_5": step / 10, "cloze_log_likelihood": -1.0 * step}
            others = {"retrieval_utility_top1": 0.0, "recall_at_1": 0.0, "recall_at_20": 1.0, "cloze_exact_match": 0.0}
            run.metrics.log(step, quality | others | {"index_overlap": 0.5} | drift)
        if step in (0, 2, 4, 5):
            sampled = {f"{name}_sampled": value for name, value in drift.items()}
            run.metrics.log(step, sampled | {"index_overlap_sampled": 1 - step / 10})
    run.finish({})
    write_tables(read, root, root / "out")
    [row] = pd.read_csv(root / "out" / "results.csv").to_dict("records")
    assert row["mean_age_steps"] == 30.0  # steps 2 and 4: equal distances
    assert row["mean_overlap"] == pytest.approx(0.7)
    assert (row["training_gflop"], row["refresh_gflop"], row["total_gflop"]) == (10.0, 5.0, 15.0)
    assert (row["utility_start"], row["utility_end"], row["utility_late"]) == (0.0, 5.0, 3.0)
    assert pd.read_csv(root / "out" / "steps.csv")["step"].tolist() == [0, 2, 4, 5]
    evaluations = pd.read_csv(root / "out" / "evaluations.csv")
    assert evaluations["step"].tolist() == [0, 4, 5]
    assert evaluations["overlap"].tolist() == pytest.approx([1.0, 0.6, 0.5])  # estimated where it was exact, too


@pytest.mark.parametrize(
    ("differences", "says"),
    [
        ([0.1, 0.2, 0.3], "higher in all 3"),
        ([-0.1, -0.2, -0.3], "lower in all 3"),
        ([0.1, -0.2, 0.3], "not distinguishable"),
        ([0.1, 0.0, 0.3], "not distinguishable"),
    ],
)
def test_only_one_direction_in_all_seeds_is_called_one(differences: list[float], says: str) -> None:
    from experiments.staleness_anatomy.report import difference

    reference = pd.Series([1.0, 2.0, 3.0])
    found = difference(reference + pd.Series(differences), reference)
    assert found["says"] == says
    assert found["mean"] == pytest.approx(sum(differences) / 3, abs=1e-4)
    assert (found["low"], found["high"]) == pytest.approx((min(differences), max(differences)))


def test_refreshes_are_read_from_ages() -> None:
    from experiments.staleness_anatomy.drawings import generations

    rows = [(7, 6.0), (14, 3.0), (21, 10.0), (28, 7.0)]  # generations 0, 10, 10, 20
    steps = pd.DataFrame([("a", 0, step, age) for step, age in rows], columns=["arm", "seed", "step", "age_steps"])
    assert generations(steps, "a", 0) == [10, 20]
