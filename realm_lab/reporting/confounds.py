"""What would make a comparison unfair: whatever differs between cells beside what the study says it changes."""

from __future__ import annotations

from typing import Any

from realm_lab.params.parameters import Params
from realm_lab.reporting.provenance_sections import flat_parameters
from realm_lab.reporting.table import Collection, Run
from realm_lab.tracking.study_record import StudyRecord

DEFAULTS = flat_parameters(Params().model_dump(mode="json"))


def confounds(study: StudyRecord, collection: Collection) -> list[str]:
    """A sentence for each; empty when cells differ in their declared changes alone."""
    found = []
    engines = sorted({run.record.engine_version for run in collection.runs})
    if len(engines) > 1:
        found.append(f"Confounded: runs of engine versions {', '.join(map(str, engines))} are compared.")
    for label in collection.labels:
        if _seeds_differ(collection.of(label)):
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


def grid_confounds(study: StudyRecord, collection: Collection, grid: Collection) -> list[str]:
    """The same of the runs of a study's grid: each must differ from its own cell in the tuned parameter alone.

    So it differs from the baseline at the same value in what its cell changes, and in nothing else.
    """
    if study.tuning is None:
        return []
    found = []
    engines = {run.record.engine_version for run in collection.runs}
    own = {(run.label, run.record.seed): run for run in collection.runs}
    for tuned in study.tuning.cells:
        runs = grid.of(tuned.name)
        if _seeds_differ(runs):
            found.append(f"Confounded: the seeds of {tuned.name} differ in more than the seed.")
        for run in runs:
            if run.record.engine_version not in engines:
                found.append(f"Confounded: {tuned.name} was run by engine version {run.record.engine_version}.")
            if (tuned.of, run.record.seed) in own:
                changes = {study.tuning.parameter: tuned.value}
                found += _against(tuned.name, changes, run, own[tuned.of, run.record.seed], tuned.of)
    return list(dict.fromkeys(found))


def _against(name: str, changes: dict[str, Any], run: Run, base: Run, what: str = "the baseline") -> list[str]:
    ours, theirs = _parameters(run), _parameters(base)
    differing = {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
    found = []
    if undeclared := sorted(differing - changes.keys()):
        found.append(f"Confounded: {name} also differs from {what} in {', '.join(undeclared)}.")
    if absent := sorted(changes.keys() - differing - {key for key in changes if key.startswith("launch.")}):
        found.append(f"Confounded: {name} says that it changes {', '.join(absent)}, and its runs do not.")
    data = any(key.startswith(("corpus.", "tokenizer.")) for key in changes)
    if not data and run.record.inputs.get("corpus") != base.record.inputs.get("corpus"):
        found.append(f"Confounded: {name}, seed {run.record.seed}, was run on another corpus than {what}.")
    return found


def _seeds_differ(runs: list[Run]) -> bool:
    """Whether runs of one cell differ in more than the seed; parameters that one record lacks have their default."""
    if len({run.record.cell_key for run in runs}) < 2:
        return False
    known = [frozenset(flat_parameters(run.record.params)) for run in runs]
    if len(set(known)) < 2:  # recorded by one version: the keys see more, such as the content of a checkpoint
        return True
    parts = [(_parameters(run), run.record.system, run.record.engine_version) for run in runs]
    return any(part != parts[0] for part in parts)


def _parameters(run: Run) -> dict[str, Any]:
    """Of a record made before a parameter was there, with that parameter's default, which changes no result."""
    return DEFAULTS | flat_parameters(run.record.params)


def _torch(run: Run) -> str:
    versions = set()
    for env in run.environments.values():
        packages = env.get("packages")
        if isinstance(packages, dict) and packages.get("torch"):
            versions.add(str(packages["torch"]))
    return ", ".join(sorted(versions))
