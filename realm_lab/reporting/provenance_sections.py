"""The chapters on where the numbers come from: coverage, identity, parameters, how to reproduce, other studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from realm_lab.errors import UserError
from realm_lab.params import load as config
from realm_lab.params.parameters import Params
from realm_lab.reporting.document import NOTHING, Block, Code, Section, Table, Text, number
from realm_lab.reporting.table import STAGES, Collection, coverage_table, gaps

DIGEST_CHARACTERS = 12
HEADING_CHARACTERS = 300


def coverage_section(collection: Collection, unfair: list[str]) -> Section:
    """States, identity and wall-clock of every run, what the parameters change, what is `unfair` between systems."""
    blocks: list[Block] = []
    if not collection.runs:
        return Section("coverage", "Coverage and provenance", [Text("There is no run record.", missing=True)])
    found = gaps(collection)
    blocks.extend(Text(gap, missing=True) for gap in found)
    if not found:
        blocks.append(Text(f"Complete: {len(collection.runs)} runs, every stage of every seed."))
    blocks.extend(Text(text, missing=True) for text in unfair)
    blocks.append(Table("State of every stage.", coverage_table(collection).astype(str)))
    blocks.append(_identity(collection))
    blocks.append(_wall_clock(collection))
    blocks.extend(_parameters(collection))
    return Section("coverage", "Coverage and provenance", blocks)


def mismatches(collection: Collection) -> list[str]:
    """Differences that would make a comparison unfair: corpus or engine between systems, parameters between seeds."""
    found = []
    engines = {run.record.engine_version for run in collection.runs}
    if len(engines) > 1:
        found.append(f"The runs were made by different engine versions ({', '.join(map(str, sorted(engines)))}).")
    for seed in collection.seeds:
        digests = {run.record.inputs.get("corpus") for run in collection.runs if run.record.seed == seed}
        if len(digests) > 1:
            found.append(f"Seed {seed}: the systems were run on different corpora.")
    for label in collection.labels:
        if len({run.record.cell_key for run in collection.of(label)}) > 1:
            found.append(f"{label}: the seeds differ in more than the seed (different cell keys).")
    return found


def reproduce_section(collection: Collection) -> Section:
    """The commands that make these numbers again, and the machine they were made on."""
    commits = sorted(
        {
            str(env["git_commit"])
            for run in collection.runs
            for env in run.environments.values()
            if env.get("git_commit")
        }
    )
    dirty = any(env.get("git_dirty") for run in collection.runs for env in run.environments.values())
    presets = sorted({run.record.preset for run in collection.runs})
    lines = [f"git checkout {commits[0]}"] if len(commits) == 1 else []
    lines += [
        "make setup      # .venv with the pinned dependencies",
        "make repro      # dvc repro: every stage, then this report",
    ]
    lines += ["realm-lab report  # only this report, from the run folders"]
    blocks: list[Block] = []
    if presets:
        seeds = ", ".join(map(str, collection.seeds))
        blocks.append(
            Text(f"In params.yaml: preset {', '.join(presets)}; seeds: [{seeds}]. Runs that exist are not run again.")
        )
    blocks.append(Code("\n".join(lines)))
    if len(commits) > 1:
        blocks.append(
            Text(f"The stages were run at {len(commits)} different commits; see the table of runs.", missing=True)
        )
    if dirty:
        blocks.append(
            Text("Some stages ran with uncommitted changes: the commit alone does not reproduce them.", missing=True)
        )
    machines = _machines(collection)
    if machines:
        blocks.append(
            Text("Made on: " + "; ".join(machines) + ". Other library versions or processors can move the last digits.")
        )
    return Section("reproduce", "How to reproduce", blocks)


def _identity(collection: Collection) -> Table:
    rows = []
    for run in collection.runs:
        commits = {
            str(env.get("git_commit"))[:DIGEST_CHARACTERS] for env in run.environments.values() if env.get("git_commit")
        }
        dirty = " + changes" if any(env.get("git_dirty") for env in run.environments.values()) else ""
        flags = [flag for flags in run.flags.values() for flag in flags]
        rows.append(
            {
                "run": run.record.name,
                "preset": run.record.preset,
                "engine": str(run.record.engine_version),
                "commit": (", ".join(sorted(commits)) + dirty) if commits else NOTHING,
                "corpus": str(run.record.inputs.get("corpus", NOTHING))[:DIGEST_CHARACTERS],
                "flags": "; ".join(flags) or NOTHING,
            }
        )
    return Table("Identity of every run.", pd.DataFrame(rows))


def _wall_clock(collection: Collection) -> Table:
    rows = []
    for run in collection.runs:
        minutes = {stage: run.statuses[stage].wall_seconds / 60 if stage in run.statuses else None for stage in STAGES}
        rows.append(
            {"run": run.record.name}
            | {stage: number(value, 1) for stage, value in minutes.items()}
            | {"all": number(run.wall_seconds / 60, 1)}
        )
    note = "A stage that runs share is run once and appears in each of them."
    return Table("Wall-clock per stage, minutes.", pd.DataFrame(rows), notes=(note,))


def _parameters(collection: Collection) -> list[Block]:
    """What differs from the paper, by preset or by hand; and what differs between the labels."""
    by_label = {label: flat_parameters(collection.of(label)[0].record.params) for label in collection.labels}
    first = collection.treatment or collection.labels[0]
    here = by_label[first]
    paper = flat_parameters(Params().model_dump(mode="json"))
    preset = _preset_parameters(collection.of(first)[0].record.preset)
    rows = []
    for key, value in sorted(here.items()):
        if key in paper and value != paper[key]:
            origin = "by hand" if preset is not None and preset.get(key) != value else "preset"
            rows.append({"parameter": key, first: _show(value), "paper": _show(paper[key]), "set by": origin})
    blocks: list[Block] = []
    if rows:
        blocks.append(Table("Parameters that differ from the paper's.", pd.DataFrame(rows)))
    else:
        blocks.append(Text("Every parameter has the paper's value."))
    differing = sorted(
        key for key in set().union(*by_label.values()) if len({_show(flat.get(key)) for flat in by_label.values()}) > 1
    )
    if differing:
        rows = [
            {"parameter": key} | {label: _show(flat.get(key)) for label, flat in by_label.items()} for key in differing
        ]
        blocks.append(Table("Parameters that differ between the systems.", pd.DataFrame(rows)))
    elif len(by_label) > 1:
        blocks.append(Text("The systems have the same parameters; they differ in the stages they run."))
    return blocks


def flat_parameters(params: dict[str, Any]) -> dict[str, Any]:
    """Dotted parameters without those that are no property of the method."""
    flat = config.flatten(params)
    return {
        key: value
        for key, value in flat.items()
        if key not in ("preset", "seeds", "seed") and not key.startswith("launch.")
    }


def _preset_parameters(name: str) -> dict[str, Any] | None:
    try:
        return flat_parameters(Params(**config.preset_values(name) | {"preset": name}).model_dump(mode="json"))
    except (UserError, ValueError):
        return None  # A preset of another version of the project: nothing to compare with.


def _show(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _machines(collection: Collection) -> list[str]:
    found = set()
    for run in collection.runs:
        for env in run.environments.values():
            packages = env.get("packages")
            torch = packages.get("torch") if isinstance(packages, dict) else None
            parts = [f"Python {env['python']}" if env.get("python") else "", f"torch {torch}" if torch else ""]
            cores = f" ({env['cores']} cores)" if env.get("cores") else ""
            parts.append(f"{env.get('cpu') or env.get('device')}{cores}" if env.get("cpu") or env.get("device") else "")
            found.add(", ".join(part for part in parts if part))
    return sorted(found - {""})


def first_words(folder: Path) -> tuple[str, str]:
    """(heading, verdict) of a study: from summary.json where it has them, else from report.md."""
    title = text = ""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        summary = {}
    if isinstance(summary, dict):
        title = next((summary[key] for key in ("title", "study") if isinstance(summary.get(key), str)), "")
        text = next((summary[key] for key in ("verdict", "headline") if isinstance(summary.get(key), str)), "")
    try:
        lines = (folder / "report.md").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    heading = next((line.lstrip("#").strip() for line in lines if line.startswith("#")), "")
    body = next((line.strip().strip("*>").strip() for line in lines if line.strip() and line[0] not in "#|!<-"), "")
    return (heading or title)[:HEADING_CHARACTERS], (text or body)[:HEADING_CHARACTERS]
