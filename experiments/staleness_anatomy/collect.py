"""Run folders -> the tables of the study. `python -m experiments.staleness_anatomy.collect --root FOLDER`

Needs the finished runs of every arm and seed; report.py needs nothing but the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.staleness_anatomy.design import REPORT, STAGE, Arm, Design, read_design
from realm_lab import ENGINE_VERSION
from realm_lab.core.files import write_text
from realm_lab.errors import UserError
from realm_lab.params.load import load
from realm_lab.systems.identity import open_stage, plan_run
from realm_lab.tracking.metric_log import read_metrics

GIGA = 1e9
LATE_EVALUATIONS = 3  # the last ones, whose mean is steadier than the last alone
# Column of steps.csv -> metric, number of decimals.
STEPS = {
    "age_steps": ("index_staleness_steps", 2),
    "age_steps_max": ("index_staleness_steps_max", 0),
    "age_seconds": ("index_staleness_seconds", 2),
    "overlap": ("index_overlap_sampled", 4),
    "shift": ("prior_shift_sampled", 4),
    "divergence": ("prior_divergence_sampled", 4),
    "refreshes": ("refreshes", 0),
    "training_gflop": ("training_operations", 2),
    "refresh_gflop": ("refresh_operations", 2),
}
EVALUATIONS = {
    "overlap_exact": ("index_overlap", 4),
    "shift_exact": ("prior_shift", 4),
    "utility": ("retrieval_utility", 3),
    "utility_top1": ("retrieval_utility_top1", 3),
    "recall_at_1": ("recall_at_1", 4),
    "recall_at_5": ("recall_at_5", 4),
    "recall_at_20": ("recall_at_20", 4),
    "likelihood": ("cloze_log_likelihood", 4),
    "cloze_exact_match": ("cloze_exact_match", 4),
}
QUALITY = ("utility", "recall_at_5", "recall_at_1", "likelihood", "cloze_exact_match")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read every run and write results.csv, steps.csv and evaluations.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("."), help="project folder with params.yaml and runs/")
    parser.add_argument("--output", type=Path, default=REPORT, help="where the tables go")
    options = parser.parse_args(arguments)
    try:
        write_tables(read_design(), options.root, options.output)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def write_tables(design: Design, root: Path, output: Path) -> None:
    """The three tables, arms in the order of the design.

    Raises:
        UserError: a run is not complete; the command that makes it is named.
    """
    found = [_read(design, arm, seed, root) for arm in design.arms for seed in design.seeds]
    for name, place in (("results.csv", 0), ("steps.csv", 1), ("evaluations.csv", 2)):
        table = pd.concat([tables[place] for tables in found], ignore_index=True)
        write_text(output / name, table.to_csv(index=False, lineterminator="\n"))


def _read(design: Design, arm: Arm, seed: int, root: Path) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    params = load(root / "params.yaml", design.overrides(arm) | {"seeds": [seed]})
    run = open_stage(root / "runs", plan_run(params, "realm", seed), STAGE, params)
    if not run.is_complete():
        raise UserError(f"{run.path}: {arm.name}, seed {seed} is not finished; run: {design.command(arm)}")
    points = pd.DataFrame(read_metrics(run.path / "metrics.jsonl"))
    steps, evaluations = _table(points, STEPS), _table(points, EVALUATIONS)
    evaluations = evaluations.merge(steps[["step", "overlap", "age_steps"]], on="step", how="left")
    status, exact = run.status(), evaluations[evaluations["step"] > 0]["overlap_exact"]
    row: dict[str, Any] = {
        "arm": arm.name,
        "seed": seed,
        "steps": arm.steps,
        "stage_key": run.key,
        "engine_version": ENGINE_VERSION,
        **_totals(points),
        **_means(steps, params.pretrain.watch.interval_steps),
        "mean_overlap_exact": round(float(exact.mean()), 4),
    }
    for name in QUALITY:
        values = evaluations[name].tolist()
        row |= {f"{name}_start": values[0], f"{name}_end": values[-1]}
        row[f"{name}_late"] = round(sum(values[-LATE_EVALUATIONS:]) / LATE_EVALUATIONS, 4)
    row |= {"wall_seconds": round(status.wall_seconds, 1), "flags": " ".join(status.flags)}
    who = {"arm": arm.name, "seed": seed}
    return pd.DataFrame([row]), _named(steps, who), _named(evaluations, who)


def _table(points: pd.DataFrame, columns: dict[str, tuple[str, int]]) -> pd.DataFrame:
    """A row for each step at which one of the metrics was written; those of one step come in several lines."""
    chosen = pd.DataFrame({"step": points["step"]})
    for column, (metric, decimals) in columns.items():
        scale = GIGA if column.endswith("_gflop") else 1.0
        chosen[column] = (pd.to_numeric(points[metric]) / scale).round(decimals)
    kept = chosen.dropna(how="all", subset=list(columns))
    return kept.groupby("step", as_index=False).last()


def _totals(points: pd.DataFrame) -> dict[str, float]:
    last = {name: points[name].dropna().iloc[-1] for name in (*_SPENT, "refreshes")}
    training, refreshing = last["training_operations"] / GIGA, last["refresh_operations"] / GIGA
    return {
        "refreshes": int(last["refreshes"]),
        "training_gflop": round(training, 1),
        "refresh_gflop": round(refreshing, 1),
        "total_gflop": round(training + refreshing, 1),
        "refresh_share_of_flops": round(last["refresh_share_of_flops"], 5),
        "refresh_share_of_time": round(last["refresh_share_of_time"], 5),
        "trainer_stall_seconds": round(last["trainer_stall_seconds"], 2),
    }


_SPENT = (
    "training_operations",
    "refresh_operations",
    "refresh_share_of_flops",
    "refresh_share_of_time",
    "trainer_stall_seconds",
)


def _means(steps: pd.DataFrame, interval: int) -> dict[str, float]:
    """Over the steps that are measured in equal distances, without the beginning, where the index is fresh."""
    regular = steps[(steps["step"] > 0) & (steps["step"] % interval == 0)]
    names = {"age_steps": "mean_age_steps", "age_seconds": "mean_age_seconds", "overlap": "mean_overlap"}
    names |= {"shift": "mean_shift", "divergence": "mean_divergence"}
    means = {name: round(float(regular[column].mean()), 4) for column, name in names.items()}
    return means | {"highest_age_steps": int(regular["age_steps_max"].max())}


def _named(table: pd.DataFrame, who: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame({name: [value] * len(table) for name, value in who.items()}).join(table)


if __name__ == "__main__":
    raise SystemExit(main())
