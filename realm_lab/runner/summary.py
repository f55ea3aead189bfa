"""reports/metrics.json and reports/curves/*.csv of the default pipeline, computed from the run folders."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from realm_lab.core.files import atomic_write, write_json
from realm_lab.params.parameters import Params
from realm_lab.systems.identity import Plan, open_stage, record_run
from realm_lab.tracking.metric_log import read_metrics

NESTED = ("edition_swap", "bm25")
CURVES = (
    "retrieval_utility",
    "retrieval_utility_top1",
    "retrieval_utility_best",
    "recall_at_1",
    "recall_at_5",
    "recall_at_20",
    "cloze_log_likelihood",
    "cloze_exact_match",
    "candidate_entropy",
    "null_probability",
    "score_spread",
    "gold_among_candidates",
    "index_staleness_steps",
    "index_overlap",
    "index_overlap_sampled",
    "prior_shift",
    "prior_shift_sampled",
    "marginal_log_likelihood",
)


def write_metrics(root: Path, params: Params, plans: list[Plan]) -> None:
    """The mean over the seeds of every measure, and each seed's own, per system."""
    runs = root / "runs"
    by_system: dict[str, dict[str, dict[str, Any]]] = {}
    names = []
    for plan in plans:
        names.append(record_run(runs, plan, params).name)
        results = open_stage(runs, plan, "evaluate", params).results()
        by_system.setdefault(plan.system, {})[str(plan.seed)] = results
    summary: dict[str, Any] = {"preset": params.preset, "seeds": list(params.seeds), "runs": names}
    for system, seeds in by_system.items():
        plain = {seed: {k: v for k, v in values.items() if k not in NESTED} for seed, values in seeds.items()}
        summary[system] = _means(plain)
    for name in NESTED:
        found = {seed: values[name] for seed, values in by_system["realm"].items() if values.get(name)}
        summary[name] = _means(found) if found else None
    write_json(root / "reports" / "metrics.json", summary)


def _means(seeds: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """{measure: mean over seeds, "seeds": {seed: {measure: value}}}; what a seed lacks is left out of the mean."""
    names = sorted({name for values in seeds.values() for name in values})
    means: dict[str, Any] = {}
    for name in names:
        known = [values[name] for values in seeds.values() if values.get(name) is not None]
        means[name] = sum(known) / len(known) if known else None
    return means | {"seeds": seeds}


def write_curves(root: Path, params: Params, plans: list[Plan]) -> None:
    """One CSV file a measure, columns system, seed, step, value."""
    folder = root / "reports" / "curves"
    for name in CURVES:
        rows = []
        for plan in plans:
            if "pretrain" in plan.stages:
                path = open_stage(root / "runs", plan, "pretrain", params).path / "metrics.jsonl"
                points = [row for row in read_metrics(path) if row.get(name) is not None]
                rows += [(plan.system, plan.seed, row["step"], row[name]) for row in points]
        with atomic_write(folder / f"{name}.csv") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("system", "seed", "step", "value"))
            writer.writerows(rows)
