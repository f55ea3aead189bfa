"""What would make a comparison unfair: whatever differs between cells beside what the study says it changes."""

from __future__ import annotations

from typing import Any

from realm_lab.reporting.provenance_sections import flat_parameters
from realm_lab.reporting.table import Collection, Run
from realm_lab.tracking.study_record import StudyRecord


def confounds(study: StudyRecord, collection: Collection) -> list[str]:
    """A sentence for each; empty when cells differ in their declared changes alone."""
    found = []
    engines = sorted({run.record.engine_version for run in collection.runs})
    if len(engines) > 1:
        found.append(f"Confounded: runs of engine versions {', '.join(map(str, engines))} are compared.")
    for label in collection.labels:
        if len({run.record.cell_key for run in collection.of(label)}) > 1:
            found.append(f"Confounded: the seeds of {label} differ in more than the seed.")
    base = {run.record.seed: run for run in collection.of(study.baseline)}
    for cell in study.cells:
        for run in collection.of(cell.name):
            if run.record.seed in base and cell.name != study.baseline:
                found += _against(cell.name, cell.changes, run, base[run.record.seed])
    versions = sorted({_torch(run) for run in collection.runs if _torch(run)})
    if len(versions) > 1:
        found.append(f"Runs were made with torch {' and '.join(versions)}: last digits may differ for that alone.")
    return list(dict.fromkeys(found))


def _against(name: str, changes: dict[str, Any], run: Run, base: Run) -> list[str]:
    ours, theirs = flat_parameters(run.record.params), flat_parameters(base.record.params)
    differing = {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
    found = []
    if undeclared := sorted(differing - changes.keys()):
        found.append(f"Confounded: {name} also differs from the baseline in {', '.join(undeclared)}.")
    if absent := sorted(changes.keys() - differing - {key for key in changes if key.startswith("launch.")}):
        found.append(f"Confounded: {name} says that it changes {', '.join(absent)}, and its runs do not.")
    data = any(key.startswith(("corpus.", "tokenizer.")) for key in changes)
    if not data and run.record.inputs.get("corpus") != base.record.inputs.get("corpus"):
        found.append(f"Confounded: {name}, seed {run.record.seed}, was run on another corpus than the baseline.")
    return found


def _torch(run: Run) -> str:
    versions = set()
    for env in run.environments.values():
        packages = env.get("packages")
        if isinstance(packages, dict) and packages.get("torch"):
            versions.add(str(packages["torch"]))
    return ", ".join(sorted(versions))
