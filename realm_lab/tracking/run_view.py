"""What a tracker should show of one run: parameters, points, tags, times and files, read from its folder."""

from __future__ import annotations

import colorsys
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.config import flatten
from realm_lab.core.files import digest_file, read_json
from realm_lab.errors import UserError
from realm_lab.tracking.run_dir import RunRecord, StageRun, State, Status, stage_of, stage_statuses, state_of

# Limits of MLflow 3 (mlflow/utils/validation.py); longer values are cut with an ellipsis.
MAX_NAME_LENGTH = 250
MAX_PARAM_LENGTH = 6000
MAX_TAG_LENGTH = 5000

FLAGS_TAG = "realm.flags"
HEADLINES = ("exact_match", "f1", "recall_at_1", "recall_at_5", "retrieval_utility_start", "retrieval_utility_end")


class Point(NamedTuple):
    """One value of one metric; `time_ms` is unix time."""

    name: str
    value: float
    time_ms: int
    step: int


Row = tuple[Point, ...]  # the points of one line of metrics.jsonl


@dataclass(frozen=True)
class RunView:
    """One run as a tracker shows it. `rows`: stage -> its lines in order, the final scalars (at step 0) last."""

    record: RunRecord
    name: str
    state: State
    started_ms: int | None
    ended_ms: int | None
    params: dict[str, str]
    tags: dict[str, str]
    rows: dict[str, list[Row]]
    files: dict[str, Path]  # artifact path -> file

    def files_digest(self) -> str:
        """Changes when a file comes, goes or changes."""
        parts = [f"{name}:{digest_file(path)}" for name, path in sorted(self.files.items())]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def run_color(label_rank: int, seed_rank: int) -> str:
    """#rrggbb: a hue for each label of a study, a shade for each seed."""
    hue = (0.6 + 0.618034 * label_rank) % 1.0  # steps of the golden ratio stay far apart
    red, green, blue = colorsys.hls_to_rgb(hue, 0.36 + 0.13 * (seed_rank % 3), 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def read_run(runs: Path, record: RunRecord, color: str | None = None) -> RunView:
    """Read everything of one run; `color` is the tracker's for its curves.

    Raises:
        UserError: a file of the run is broken; the message names it.
    """
    statuses = stage_statuses(runs, record)
    stages = {stage: run for stage in record.stages if (run := stage_of(runs, record, stage))}
    state = state_of(statuses)
    started = [status.started_at for status in statuses.values() if status.started_at]
    return RunView(
        record=record,
        name=_display_name(record, statuses),
        state=state,
        started_ms=_ms(min(started)) if started else None,
        ended_ms=_ended_ms(state, statuses),
        params={_name(key): _cut(_show(value), MAX_PARAM_LENGTH) for key, value in flatten(record.params).items()},
        tags=_tags(record, state, stages, statuses) | ({"mlflow.runColor": color} if color else {}),
        rows={stage: _rows(run, statuses[stage]) for stage, run in stages.items()},
        files=_files(runs, record, stages),
    )


def _display_name(record: RunRecord, statuses: Mapping[str, Status]) -> str:
    """Label and seed; a flagged run says so before anything else, in every list of runs."""
    flags = [flag for status in statuses.values() for flag in status.flags]
    mark = "COLLAPSED " if any(flag.startswith("collapsed") for flag in flags) else "FLAGGED " if flags else ""
    return f"{mark}{record.label}-s{record.seed}"


def rows_digest(rows: list[Row]) -> str:
    """Equal for equal points in equal order."""
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def _rows(run: StageRun, status: Status) -> list[Row]:
    rows = [
        tuple(
            Point(f"{run.stage}/{_name(name)}", number, _ms(row["time"]), row["step"])
            for name, value in row.items()
            if name not in ("step", "time") and (number := _number(value, name, run.metrics.path)) is not None
        )
        for row in run.metrics.rows()
    ]
    if status.state == "COMPLETE" and status.finished_at:
        curves = {point.name for row in rows for point in row}
        finals = []
        for name, value in _scalars(run.results()):
            # A final score must not become one more point of the curve with its name.
            full = f"{run.stage}/{name}" if f"{run.stage}/{name}" not in curves else f"{run.stage}/final_{name}"
            # Step 0, at which MLflow draws bars to compare; at any other step, an empty plot with one dot.
            finals.append(Point(full, value, _ms(status.finished_at), 0))
        rows.append(tuple(finals))
    return rows


def _scalars(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        name = f"{prefix}{_name(key)}"
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, float(value)


def _number(value: Any, name: str, path: Path) -> float | None:
    """None for what cannot be drawn: null, NaN and infinities (MLflow stores those as 1.8e308)."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{path}: metric '{name}' has the value {value!r}, not a number; delete that line")
    return float(value) if math.isfinite(value) else None


def _tags(
    record: RunRecord, state: State, stages: Mapping[str, StageRun], statuses: Mapping[str, Status]
) -> dict[str, str]:
    commit, dirty = _commit(stages)
    tags = {
        "realm.run_key": record.run_key,
        "realm.cell_key": record.cell_key,
        "realm.label": record.label,
        "realm.seed": str(record.seed),
        "realm.study": record.study,
        "realm.baseline": str(record.baseline).lower(),
        "realm.preset": record.preset,
        "realm.engine_version": str(record.engine_version),
        "realm.git_commit": f"{commit}{'-dirty' if dirty else ''}" if commit else "unknown",
        "realm.state": state,
        "mlflow.source.name": "realm_lab",
        "mlflow.note.content": _note(record, state, stages, statuses),
    }
    if commit:
        tags["mlflow.source.git.commit"] = commit
    if flags := [f"{stage}: {flag}" for stage, status in statuses.items() for flag in status.flags]:
        tags[FLAGS_TAG] = "; ".join(flags)
    return {key: _cut(value, MAX_TAG_LENGTH) for key, value in tags.items()}


def _commit(stages: Mapping[str, StageRun]) -> tuple[str | None, bool]:
    """Of the last stage that recorded one: the stages before it may be older and shared."""
    for run in reversed(list(stages.values())):
        path = run.path / "env.json"
        if path.exists() and (environment := read_json(path)).get("git_commit"):
            return environment["git_commit"], bool(environment.get("git_dirty"))
    return None, False


def _note(record: RunRecord, state: State, stages: Mapping[str, StageRun], statuses: Mapping[str, Status]) -> str:
    """Markdown for the run's page."""
    role = ", the baseline" if record.baseline else ""
    lines = [f"**Flagged, {stage}:** {_code(flag)}" for stage, status in statuses.items() for flag in status.flags]
    lines += [f"**{record.label}**, seed {record.seed} of study `{record.study}` (preset `{record.preset}`{role})."]
    if state == "COMPLETE" and "evaluate" in stages:
        results = stages["evaluate"].results()
        scores = [f"{name} **{results[name]:.3f}**" for name in HEADLINES if isinstance(results.get(name), float)]
        lines += [", ".join(scores)] if scores else []
    lines += [f"{stage}: {status.error or 'failed'}" for stage, status in statuses.items() if status.state == "FAILED"]
    lines += [" → ".join(_progress(stage, status) for stage, status in statuses.items())]
    lines += [f"Record: `runs/{record.name}/run.json`"]
    return "\n\n".join(lines)


def _code(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "`" + " ".join(text.split()).replace("`", "'") + "`"


def _progress(stage: str, status: Status) -> str:
    """For example: pretrain running (120/900 steps, 3.2 min, attempt 2)."""
    details = [f"{status.step}/{status.total_steps} steps"] if status.total_steps else []
    details += [f"{status.wall_seconds / 60:.1f} min"] if status.wall_seconds else []
    details += [f"attempt {status.attempt}"] if status.attempt > 1 else []
    return f"{stage} {status.state.lower()}" + (f" ({', '.join(details)})" if details else "")


def _files(runs: Path, record: RunRecord, stages: Mapping[str, StageRun]) -> dict[str, Path]:
    files = {"run.json": runs / record.name / "run.json"}
    for stage, run in stages.items():
        files[f"config/{stage}.yaml"] = run.path / "config.yaml"
        for name in ("env.json", "results.json"):
            files[f"{name.removesuffix('.json')}/{stage}.json"] = run.path / name
        if stage == "evaluate" and run.is_complete():
            files["eval/predictions.jsonl"] = run.path / "eval" / "predictions.jsonl"
    reports = runs.parent / "reports"
    folder = reports / "figures" if record.study == "default" else reports / record.study / "figures"
    files |= {f"figures/{path.name}": path for path in sorted(folder.glob("*.png"))}
    return {name: path for name, path in files.items() if path.exists()}


def _ended_ms(state: State, statuses: Mapping[str, Status]) -> int | None:
    """End of the last stage in a state that ends the run; a lost process ended with its last heartbeat."""
    if state not in ("COMPLETE", "FAILED", "PREEMPTED"):
        return None
    ends = [
        status.finished_at or status.heartbeat_at or status.started_at
        for status in statuses.values()
        if status.state == state
    ]
    return _ms(max(end or 0.0 for end in ends))


def _name(name: str) -> str:
    """A name MLflow takes: letters, digits and _ - . / : blank; recall@5 becomes recall_at_5."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_").replace("%", "percent"))[:MAX_NAME_LENGTH].strip("/")


def _show(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
