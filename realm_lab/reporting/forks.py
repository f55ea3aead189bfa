"""Forks of a study in its report: quality against the step of the change, and how tightly a fork is paired."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from realm_lab.metrics import metric
from realm_lab.statistics.wording import number
from realm_lab.tracking.study_record import StudyCell, StudyRecord

FEWEST = 3  # pairs, for a spread


def families(record: StudyRecord) -> dict[str, dict[int, StudyCell]]:
    """Return change -> the cells with it, by the step that they are forked at; 0 is a run with it from the start. Only
    changes with a fork."""
    found: dict[str, dict[int, StudyCell]] = {}
    for cell in record.cells:
        if cell.name != record.baseline:
            key = json.dumps([cell.system, cell.changes], sort_keys=True)
            found.setdefault(key, {})[cell.fork.step if cell.fork else 0] = cell
    forked = (dict(sorted(cells.items())) for cells in found.values() if any(cell.fork for cell in cells.values()))
    return {next(cell.fork.change for cell in cells.values() if cell.fork): cells for cells in forked}


def forks_json(record: StudyRecord, results: pd.DataFrame) -> dict[str, Any]:
    """Return the forks of a study by cell, and for each change the standard deviation over the seeds of the paired
    difference in the first metric, by step; empty without forks."""
    forks = {cell.name: str(cell.fork) for cell in record.cells if cell.fork}
    if not forks or not record.metrics:
        return {}
    name = record.metrics[0]
    spread = {title: _spreads(record, results, name, cells) for title, cells in families(record).items()}
    spread = {title: steps for title, steps in spread.items() if steps}
    return {"cells": forks, "spread": spread, "sentences": [_origins(record), _sentence(spread, name)]}


def _spreads(record: StudyRecord, results: pd.DataFrame, name: str, cells: Mapping[int, StudyCell]) -> dict[int, float]:
    if name not in results:
        return {}
    values = results.pivot_table(index="seed", columns="cell", values=name)
    found = {}
    for step, cell in cells.items():
        base = cell.fork.parent if cell.fork else record.baseline
        if {base, cell.name} <= {*values.columns}:
            differences = (values[cell.name] - values[base]).dropna()
            if len(differences) >= FEWEST:
                found[step] = float(differences.std())
    return found


def _origins(record: StudyRecord) -> str:
    """Name the forks of each change with their steps."""
    titles, found = {cell.name: cell.title for cell in record.cells}, []
    for title, cells in families(record).items():
        forks = [cell.fork for cell in cells.values() if cell.fork]
        parents = ", ".join(dict.fromkeys(titles.get(fork.parent, fork.parent) for fork in forks))
        steps = ", ".join(str(fork.step) for fork in forks)
        found.append(f"{title} (forks of {parents} at step {steps})")
    return f"A fork continues the training state of its parent, of the same seed: {'; '.join(found)}."


def _sentence(spread: Mapping[str, Mapping[int, float]], name: str) -> str:
    """Describe the spread of forks and of runs that share only the seed; "" if there is none."""
    if not spread:
        return ""
    parts = []
    for title, steps in spread.items():
        said = (f"{number(value)} {f'from step {step}' if step else 'from the start'}" for step, value in steps.items())
        parts.append(f"{title} {', '.join(said)}")
    what = f"Standard deviation over the seeds of the paired difference in {metric(name).title}"
    return f"{what} (from the start, pairs share only the seed; forks also share all steps before): {'; '.join(parts)}."
