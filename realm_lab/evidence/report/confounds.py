"""Confounds of a comparison: differences between runs that the study does not declare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from realm_lab.errors import UserError
from realm_lab.evidence.report.frames import StudyFrames, relative
from realm_lab.records.defaults import defaults
from realm_lab.records.parameters import ROUNDING, flat, is_system_option, measuring, show
from realm_lab.records.run import Run
from realm_lab.records.yaml_file import parse_yaml

NO_METHOD = ("preset", "seeds", "seed", "plugins")  # parameters that are no property of the method
MACHINE = {"Python": "python", "processor": "cpu", "vector instructions": "vectors"}  # words -> field of env.json


def confounds(study: StudyFrames) -> Iterator[str]:
    """Yield a sentence for each confound, some more than once; none if cells differ only in their declared changes."""
    record = study.record
    engines = sorted({run.engine_version for run in study.runs})
    if len(engines) > 1:
        yield f"Confounded: runs of engine versions {', '.join(map(str, engines))} are compared."
    for cell in record.cells:
        if len({run.cell_key for run in study.of(cell.name)}) > 1:
            yield f"Confounded: the seeds of {cell.name} differ in more than the seed."
    bases = {run.seed: run for run in study.of(record.baseline)}
    pairs = [(cell, run) for cell in record.cells if cell.name != record.baseline for run in study.of(cell.name)]
    for cell, run, base in ((cell, run, bases[run.seed]) for cell, run in pairs if run.seed in bases):
        name, changes = cell.name, cell.changes
        ours, theirs = parameters_of(run), parameters_of(base)
        undeclared = differing_parameters(ours, theirs) - changes.keys()
        if run.system != base.system:
            undeclared = {key for key in undeclared - {*run.fixed, *base.fixed} if not is_system_option(key)}
        if undeclared:
            yield f"Confounded: {name} also differs from the baseline in {', '.join(sorted(undeclared))}."
        equal = sorted(key for key in changes if ours.get(key) == theirs.get(key) and not key.startswith("launch."))
        if equal:
            yield f"Confounded: {name} says that it changes {', '.join(equal)}, and its runs do not."
        changes_data = any(key.startswith(("corpus.", "tokenizer.")) for key in changes)
        if not changes_data and run.corpus_key != base.corpus_key:
            yield f"Confounded: {name}, seed {run.seed}, was run on another corpus than the baseline."


def curve_notes(study: StudyFrames) -> list[str]:
    """Return sentences about pre-trainings whose curves and flags were measured with other settings than asked for."""
    found: dict[str, list[str]] = defaultdict(list)
    for run in study.runs:
        path = run.folder("pretrain").path / "config.yaml" if "pretrain" in run.stages else None
        if path is None or not path.is_file():
            continue
        try:  # the text is equal for all seeds of a cell, so it is parsed only once
            params = parse_yaml(path.read_text(encoding="utf-8").partition("\nparams:\n")[2], path)
        except (UserError, OSError, UnicodeDecodeError) as error:
            study.problems.append(relative(error, path.parents[2]))
            continue
        asked = parameters_of(run) | study.record.observes | study.record.cell(run.cell).changes
        had = measuring(flat(params or {}))
        if changed := [name for name, value in had.items() if value != asked.get(name, value)]:
            differing = (f"{name} = {show(had[name])}, not {show(asked[name])}" for name in changed)
            found[f"{run.cell} were measured with {', '.join(differing)}"].append(path.parent.name)
    return [
        f"Curves and flags of {what}; to measure again, delete {', '.join(f'runs/stages/{one}' for one in folders)}."
        for what, folders in found.items()
    ]


def rounding_notes(study: StudyFrames) -> Iterator[str]:
    """Yield a sentence for each difference between runs that changes only rounding: launch settings of a training
    stage, the machine, and the versions of libraries."""
    environments = [(stage, env) for run in study.runs for stage, env in run.environments.items()]
    for name in ROUNDING:
        seen: dict[str, set[str]] = defaultdict(set)
        for stage, env in environments:
            if stage != "evaluate" and name in env.get("launch", {}):
                seen[stage].add(str(env["launch"][name]))
        if differing := sorted({value for values in seen.values() if len(values) > 1 for value in values}):
            what = f"launch.{name} ({', '.join(differing)})"
            yield f"Runs differ in {what}: rounding differs, which training can amplify."
    made_with: dict[str, set[str]] = defaultdict(set)
    for _, env in environments:
        found = {name: env.get(key) for name, key in MACHINE.items()} | (env.get("packages") or {})
        for name, value in found.items():
            if value and name != "realm_lab":  # code_notes.py compares its code
                made_with[name].add(str(value))
    for name, values in made_with.items():
        if len(values) > 1:
            yield f"Runs were made with {name} {' and '.join(sorted(values))}: last digits may differ for that."


def parameters_of(run: Run) -> dict[str, Any]:
    """Return the parameters of a run's method by dotted name. Parameters newer than the run have their defaults.
    Options of other systems, which older records have, are left out."""

    def is_own(name: str) -> bool:
        system = name.partition(".")[2].rpartition(".")[0]
        return not is_system_option(name) or system == run.system or ":" in system

    found = defaults() | flat(run.params)
    return {
        name: value for name, value in found.items()
        if is_own(name) and name not in NO_METHOD and not name.startswith("launch.")
    }  # fmt: skip


def differing_parameters(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> set[str]:
    """Return the names of parameters that two runs differ in."""
    return {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
