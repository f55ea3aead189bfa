"""What would make a comparison unfair: whatever differs between runs beside what the study says it changes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from realm_lab.params import load as config
from realm_lab.params.parameters import Params
from realm_lab.reporting.frames import Run, StudyFrames
from realm_lab.tracking.study_record import StudyRecord

ROUNDING = ("ranks", "micro_batch", "token_budget", "compile", "device")
"""Settings of `launch` that change no result in exact arithmetic, and move the last digits of a real one."""


def confounds(study: StudyFrames) -> list[str]:
    """A sentence for each; empty when cells differ in their declared changes alone."""
    record, found = study.record, []
    engines = sorted({run.record.engine_version for run in study.own_runs})
    if len(engines) > 1:
        found.append(f"Confounded: runs of engine versions {', '.join(map(str, engines))} are compared.")
    for cell in record.everything().cells:
        if _seeds_differ(study.of(cell.name)):
            found.append(f"Confounded: the seeds of {cell.name} differ in more than the seed.")
    base = {run.seed: run for run in study.of(record.baseline)}
    for cell in record.cells:
        for run in study.of(cell.name):
            if run.seed in base and cell.name != record.baseline:
                found += _against(cell.name, cell.changes, run, base[run.seed], "the baseline")
    found += _grid(study, record, set(engines))
    found += _rounding(study.runs)
    packages = [env.get("packages") for run in study.runs for env in run.environments.values()]
    versions = {str(one["torch"]) for one in packages if isinstance(one, dict) and one.get("torch")}
    if len(versions) > 1:
        found.append(f"Runs were made with torch {' and '.join(sorted(versions))}: last digits may differ for that.")
    return list(dict.fromkeys(found))


def flat_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted parameters without those that are no property of the method."""
    own = config.flatten(dict(params)).items()
    return {name: v for name, v in own if name not in ("preset", "seeds", "seed") and not name.startswith("launch.")}


@functools.cache
def paper_parameters() -> dict[str, Any]:
    """The defaults, which are the paper's values."""
    return flat_parameters(Params().model_dump(mode="json"))


def _grid(study: StudyFrames, record: StudyRecord, engines: set[int]) -> Iterable[str]:
    """Each run of the tuning grid must differ from its own cell in the tuned parameter alone."""
    own = {(run.cell, run.seed): run for run in study.own_runs}
    tuning = record.tuning
    for tuned in tuning.cells if tuning else ():
        for run in study.of(tuned.name):
            if run.record.engine_version not in engines:
                yield f"Confounded: {tuned.name} was run by engine version {run.record.engine_version}."
            if tuning and (tuned.of, run.seed) in own:
                changes = {tuning.parameter: tuned.value}
                yield from _against(tuned.name, changes, run, own[tuned.of, run.seed], tuned.of)


def _against(name: str, changes: Mapping[str, Any], run: Run, base: Run, what: str) -> Iterable[str]:
    ours, theirs = _parameters(run), _parameters(base)
    differing = {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
    if undeclared := sorted(differing - changes.keys()):
        yield f"Confounded: {name} also differs from {what} in {', '.join(undeclared)}."
    if absent := sorted(changes.keys() - differing - {key for key in changes if key.startswith("launch.")}):
        yield f"Confounded: {name} says that it changes {', '.join(absent)}, and its runs do not."
    changes_data = any(key.startswith(("corpus.", "tokenizer.")) for key in changes)
    if not changes_data and run.record.inputs.get("corpus") != base.record.inputs.get("corpus"):
        yield f"Confounded: {name}, seed {run.seed}, was run on another corpus than {what}."


def _rounding(runs: Sequence[Run]) -> Iterable[str]:
    """Launch settings that differ between runs in a stage that trains; what env.json does not record is the same."""
    for name in ROUNDING:
        seen: dict[str, set[str]] = {}
        for stage, env in ((stage, env) for run in runs for stage, env in run.environments.items()):
            launch = env["launch"] if isinstance(env.get("launch"), dict) else {}
            value = launch.get(name, env.get({"ranks": "processes"}.get(name, name)))
            if value is not None and stage != "evaluate":
                seen.setdefault(stage, set()).add(str(value))
        differing = sorted({value for values in seen.values() if len(values) > 1 for value in values})
        if differing:
            yield (
                f"Runs differ in launch.{name} ({', '.join(differing)}): rounding differs, which training can amplify."
            )


def _seeds_differ(runs: Sequence[Run]) -> bool:
    """Whether runs of one cell differ in more than the seed; parameters that one record lacks have their default."""
    if len({run.record.cell_key for run in runs}) < 2:
        return False
    known = [frozenset(flat_parameters(run.record.params)) for run in runs]
    if len(set(known)) < 2:  # recorded by one version: the keys see more, such as the content of a checkpoint
        return True
    parts = [(_parameters(run), run.record.system, run.record.engine_version) for run in runs]
    return any(part != parts[0] for part in parts)


def _parameters(run: Run) -> dict[str, Any]:
    """With the defaults of parameters that were not there when the run was made, which change no result."""
    return paper_parameters() | flat_parameters(run.record.params)
