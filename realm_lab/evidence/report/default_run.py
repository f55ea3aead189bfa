"""Files of the default run besides its report: reports/metrics.json, its excerpt reports/headline.json for
`dvc metrics show`, and reports/curves/*.csv."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.evidence.report.frames import (
    UPDATES,
    StudyFrames,
    frame,
    metric_columns,
    ordered_cells,
    read_results,
    results_text,
)
from realm_lab.evidence.report.report_data import plain
from realm_lab.records.files import atomic_write, write_json
from realm_lab.records.metrics import CURVES
from realm_lab.records.study import StudyRecord

if TYPE_CHECKING:
    import pandas as pd

HEADLINE = {"exact_match": "EM", "recall_at_5": "R@5", "retrieval_utility": "utility"}
SHARED = ("corpus_update", "bm25")  # groups of results that are listed once, next to the cells: `bm25.recall_at_5`


def write_default_outputs(study: StudyFrames, reports: Path) -> None:
    """Write all outputs of the default run; the same runs give the same bytes."""
    presets = sorted({run.preset for run in study.runs})
    found = metrics_of(study.record, read_results(results_text(study.results)), presets)
    write_json(reports / "metrics.json", found)
    write_json(reports / "headline.json", headline(found))
    points = study.curves.rename(columns={"cell": "system"})
    for name in CURVES:
        rows = points[points["metric"] == name][["system", "seed", "step", "value"]]
        with atomic_write(reports / "curves" / f"{name}.csv") as file:
            rows.to_csv(file, index=False, lineterminator="\n")


def metrics_of(record: StudyRecord, results: pd.DataFrame, presets: Sequence[str]) -> dict[str, Any]:
    """Return preset, seeds and runs, and for each cell and group {metric: mean, "seeds": {seed: {metric: value}}}."""
    found: dict[str, Any] = {
        "preset": ", ".join(presets),
        "seeds": list(record.seeds),
        "runs": [run.name for run in record.runs],
    }
    names = metric_columns(results)
    for cell, _ in ordered_cells(record):
        mine = results[results["cell"] == cell]
        found[cell] = _means(mine, {name: name for name in names if name.partition(".")[0] not in (*SHARED, UPDATES)})
    for group in SHARED:
        columns = {name.partition(".")[2]: name for name in names if name.startswith(f"{group}.")}
        measured = [results[results["cell"] == cell] for cell, _ in reversed(ordered_cells(record))]
        rows = next((rows for rows in measured if columns and rows[[*columns.values()]].notna().any(axis=None)), None)
        found[group] = None if rows is None else _means(rows, columns)
    return dict(plain(found))


def headline(found: dict[str, Any]) -> dict[str, Any]:
    """Return {group: {metric: mean over the seeds}} of a few metrics, whose table fits 120 columns of a terminal."""
    groups = {name: found[name] for name in ("realm", "warm_start", "bm25") if found.get(name)}
    table: dict[str, Any] = {
        group: {short: round(values[name], 4) for name, short in HEADLINE.items() if name in values}
        for group, values in groups.items()
    }
    table.get("warm_start", {}).pop("utility", None)  # its value is from before pre-training
    if "follows" in (update := found.get("corpus_update") or {}):
        table["follows"] = round(update["follows"], 4)
    return table


def _means(rows: pd.DataFrame, columns: dict[str, str]) -> dict[str, Any]:
    """Return the mean of each column over the seeds with a value, and each seed's values; `columns`: name -> column."""
    table = frame({name: rows[columns[name]] for name in sorted(columns)}).set_index(rows["seed"].astype(str))
    means: dict[str, Any] = {str(name): float(mean) for name, mean in table.mean().dropna().items()}
    seeds = {seed: {name: float(value) for name, value in row.dropna().items()} for seed, row in table.iterrows()}
    return means | {"seeds": {seed: values for seed, values in seeds.items() if values}}
