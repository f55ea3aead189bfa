"""A run in words: the tags, the name and the description that a tracker shows of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from realm_lab.core.files import read_json
from realm_lab.tracking.run_dir import RunRecord, StageRun, State, Status
from realm_lab.tracking.view import HEADLINES, MAX_TAG_LENGTH, Place, Row, cut, differences, in_words, show

LATEST_VALUES = 6  # of a stage under way, in the run's description


def display_name(record: RunRecord, place: Place, statuses: Mapping[str, Status]) -> str:
    """Cell and seed; a flagged run says so before anything else, in every list of runs."""
    flags = [flag for status in statuses.values() for flag in status.flags]
    mark = "COLLAPSED " if any(flag.startswith("collapsed") for flag in flags) else "FLAGGED " if flags else ""
    # Without a study, any number of runs may have the same system and seed.
    name = f"{place.cell.name}-s{record.seed}" if place.cell else record.name
    return f"{mark}{name}"


def run_tags(
    record: RunRecord,
    place: Place,
    state: State,
    stages: Mapping[str, StageRun],
    statuses: Mapping[str, Status],
    rows: Mapping[str, list[Row]],
) -> dict[str, str]:
    environments = [read_json(path) for run in stages.values() if (path := run.path / "env.json").exists()]
    # Of the last stage that recorded one: the stages before it may be older and shared.
    source: dict[str, Any] = next((found for found in reversed(environments) if found.get("git_commit")), {})
    jobs = list(dict.fromkeys(str(found["slurm_job_id"]) for found in environments if found.get("slurm_job_id")))
    tags = {
        "realm.kind": "run",
        "realm.run_key": record.run_key,
        "realm.cell_key": record.cell_key,
        "realm.cell": place.cell.name if place.cell else record.system,
        "realm.seed": str(record.seed),
        "realm.study": place.study,
        "realm.system": record.system,
        "realm.preset": record.preset,
        "realm.engine_version": str(record.engine_version),
        "realm.git_commit": source.get("git_commit") or "unknown",
        "realm.git_dirty": show(source.get("git_dirty")),
        "realm.attempt": str(max(status.attempt for status in statuses.values())),
        "realm.progress": _progress_in_short(state, statuses),
        "realm.state": state,
        "mlflow.source.name": "realm_lab",
        "mlflow.runColor": place.color,
        "mlflow.note.content": _note(record, place, state, stages, statuses, rows),
    }
    if place.cell and place.baseline:
        tags["realm.title"] = place.cell.title
        tags["realm.baseline"] = str(place.cell == place.baseline).lower()
        tags["realm.changes"] = in_words(differences(place.cell, place.baseline))
        if place.cell.paper:
            tags["realm.paper"] = place.cell.paper
        if place.tuned:
            tags["realm.tuned"] = place.tuned
    if source:
        tags["mlflow.source.git.commit"] = source["git_commit"]
    if jobs:
        tags["slurm.job_id"] = ", ".join(jobs)
    if flags := [f"{stage}: {flag}" for stage, status in statuses.items() for flag in status.flags]:
        tags["realm.flags"] = "; ".join(flags)
    return {key: cut(value, MAX_TAG_LENGTH) for key, value in tags.items()}


def _note(
    record: RunRecord,
    place: Place,
    state: State,
    stages: Mapping[str, StageRun],
    statuses: Mapping[str, Status],
    rows: Mapping[str, list[Row]],
) -> str:
    """Markdown for the run's page."""
    lines = [f"**Flagged, {stage}:** {_code(flag)}" for stage, status in statuses.items() for flag in status.flags]
    lines += [f"{_place_in_words(record, place)} (preset `{record.preset}`)."]
    if state == "COMPLETE" and "evaluate" in stages:
        results = stages["evaluate"].results()
        scores = [f"{name} **{results[name]:.3f}**" for name in HEADLINES if isinstance(results.get(name), float)]
        lines += [", ".join(scores)] if scores else []
    lines += [f"{stage}: {status.error or 'failed'}" for stage, status in statuses.items() if status.state == "FAILED"]
    lines += [" → ".join(_progress(stage, status) for stage, status in statuses.items())]
    for stage, status in statuses.items():
        if status.state == "RUNNING" and rows.get(stage):
            last = rows[stage][-1]
            values = ", ".join(f"{point.name} {point.value:.4g}" for point in last[:LATEST_VALUES])
            lines += [f"At step {last[0].step}: {values}"] if last else []
    lines += [f"Record: `runs/{record.name}/run.json`"]
    return "\n\n".join(lines)


def _place_in_words(record: RunRecord, place: Place) -> str:
    if place.cell is None or place.baseline is None:
        return f"**{record.system}**, seed {record.seed}, of no study"
    text = f"**{place.cell.name}** ({place.cell.title}), seed {record.seed} of study `{place.study}`"
    if place.cell == place.baseline:
        return f"{text}, the baseline"
    changes = in_words(differences(place.cell, place.baseline))
    if place.tuned:
        return f"{text}: {_code(place.tuned)}; differs from the baseline at that value by {_code(changes)}"
    return f"{text}; differs from the baseline `{place.baseline.name}` by {_code(changes)}"


def _progress_in_short(state: State, statuses: Mapping[str, Status]) -> str:
    """For example: pretrain 120/900 steps, 2.5 steps/s, 5 min left."""
    if state == "COMPLETE":
        return "complete"
    stage, status = next(
        ((stage, status) for stage, status in statuses.items() if status.state == state),
        next((stage, status) for stage, status in statuses.items() if status.state != "COMPLETE"),
    )
    parts = [stage if status.state == "RUNNING" else f"{stage} {status.state.lower()}"]
    if status.total_steps:
        parts[0] += f" {status.step}/{status.total_steps} steps"
    if status.state == "RUNNING" and status.steps_per_second > 0:
        left = (status.total_steps - status.step) / status.steps_per_second
        parts += [f"{status.steps_per_second:.3g} steps/s", f"{left / 60:.0f} min left"]
    return ", ".join(parts)


def _code(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "`" + " ".join(text.split()).replace("`", "'") + "`"


def _progress(stage: str, status: Status) -> str:
    """For example: pretrain running (120/900 steps, 3.2 min, attempt 2)."""
    details = [f"{status.step}/{status.total_steps} steps"] if status.total_steps else []
    details += [f"{status.wall_seconds / 60:.1f} min"] if status.wall_seconds else []
    details += [f"attempt {status.attempt}"] if status.attempt > 1 else []
    return f"{stage} {status.state.lower()}" + (f" ({', '.join(details)})" if details else "")
