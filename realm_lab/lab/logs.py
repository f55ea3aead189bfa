"""`realm-lab status RUN`: the history of a run, line by line. It is made from the run's folders, with any launcher.

The metrics.jsonl of a stage has its steps, losses, refreshes and evaluations, its status.json the state and the flags.
The output of the run's processes, such as the traceback of a failure, comes last.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from realm_lab.engine.core.durations import duration
from realm_lab.lab.housekeeping import process_logs
from realm_lab.lab.slurm_queue import jobs_of_stages
from realm_lab.lab.status import pace
from realm_lab.records.metrics import CURVES, METRICS
from realm_lab.records.run import Run, StageRun
from realm_lab.records.state import StageState, StageStates
from realm_lab.records.study import Studies

LOOK_AGAIN_SECONDS = 2.0
SHOWN = 6  # values of an evaluation in a line; metrics.jsonl has all


def show_log(root: Path, run: Run, *, follow: bool) -> None:
    """Print a run's log. With `follow`, continue until a stage fails, or all stages that its studies need are done."""
    printed: set[str] = set()
    studies = Studies(Path(root) / "runs")
    known = [part for name in studies.names() for part in studies.read(name).with_trials]
    listing = [study for study in known if any(one.name == run.name for one in study.runs)]
    wanted = {stage for study in listing for stage in run.folders(Path(), study.last_stage)} or {*run.stages}
    while True:
        found = _stages(root, run)
        lines = [line for stage, state in found for line in stage_lines(stage, state)]
        ends = all(state.state == "COMPLETE" for stage, state in found if stage.stage in wanted)
        ends = ends or any(state.state == "FAILED" for _, state in found)
        if ends or not follow:
            for log in process_logs(root, run):
                text = log.read_text(encoding="utf-8", errors="replace").splitlines()
                lines += [f"printed by its processes ({log}):", *text] if text else []
        for line in lines:
            if line not in printed:
                print(line, flush=True)
        printed |= set(lines)
        if ends or not follow:
            return
        time.sleep(LOOK_AGAIN_SECONDS)


def log_as_json(root: Path, run: Run) -> dict[str, Any]:
    """Return each stage with its state, its error, its flags and every row of its metrics."""
    return {
        stage.stage: {
            "state": state.state,
            "error": state.error,
            "flags": [*state.status.flags],
            "metrics": [*stage.metrics.rows()],
        }
        for stage, state in _stages(root, run)
    }


def _stages(root: Path, run: Run) -> list[tuple[StageRun, StageState]]:
    """Return the folder and the state of each stage of a run. UserError: a file of a complete stage was changed."""
    runs = Path(root) / "runs"
    states = StageStates(runs, jobs_of_stages(root))
    found = [(StageRun(path, name), states.stage(name, run.key(name))) for name, path in run.folders(runs).items()]
    for stage, _ in found:
        stage.check()
    return found


def stage_lines(run: StageRun, state: StageState) -> Iterator[str]:
    """Return the lines of one stage: its start, its metrics, its flags, and its end or present step."""
    status, name = state.status, run.stage.replace("_", "-")
    if not status.attempt:
        yield f"{'-':19}  {name}: {state.state.lower()}" + (f", {state.error}" if state.error else "")
        return
    environment = run.environment()
    where = f"process {status.pid} on {status.host}, {environment.get('device', 'cpu')}"
    commit = str(environment.get("git_commit") or "")[:10]
    code = f", commit {commit}{' with changes' * bool(environment.get('git_dirty'))}" if commit else ""
    again = f", attempt {status.attempt}" if status.attempt > 1 else ""
    yield f"{_at(status.started_at)}  {name}: starts as {where}{code}{again}"
    before: Mapping[str, Any] = {}
    for row in run.metrics.rows():
        yield f"{_at(row['time'])}  {name} {_event(row, before, status.total_steps)}"
        before = row if "loss" in row else before
    for flag in status.flags:
        yield f"{_at(status.heartbeat_at)}  {name}: FLAGGED: {flag}"
    if state.state == "COMPLETE":
        yield f"{_at(status.finished_at)}  {name}: complete after {duration(status.wall_seconds)}{_results(run)}"
    elif state.state == "RUNNING" and not before:
        yield f"{_at(status.heartbeat_at)}  {name}: step {status.step} of {status.total_steps}{pace(status)}"
    elif state.state != "RUNNING":
        why = f": {state.error}" if state.error else ""
        yield f"{_at(status.finished_at or status.heartbeat_at)}  {name}: {state.state.lower()}{why}"


def _event(row: Mapping[str, Any], before: Mapping[str, Any], total: int) -> str:
    """Describe a line of metrics.jsonl: a step with its loss, an evaluation, or the watch for a collapse."""
    step = f"step {row['step']} of {total}"
    if "loss" not in row:
        known = [name for name in row if name in CURVES and CURVES[name].split == "dev"]
        known.sort(key=lambda name: (not CURVES[name].headline, [*CURVES].index(name)))
        names = known or [name for name in row if name not in ("step", "time")]
        if not names:  # `evaluate` logs an empty row after each part
            return step
        values = ", ".join(f"{name} {_number(row[name])}" for name in names[:SHOWN])
        return f"{step}: {'evaluation' if known else 'watch'}: {values}"
    steps = row["step"] - before.get("step", row["step"])
    took = f", {duration((row['time'] - before['time']) / steps)} per step" if steps > 0 else ""
    refreshes = int((row.get("refreshes") or 0) - (before.get("refreshes") or 0))
    refreshed = f", index refreshed{f' {refreshes} times' * (refreshes > 1)}" if refreshes > 0 else ""
    return f"{step}: loss {_number(row['loss'])}{took}{refreshed}"


def _results(run: StageRun) -> str:
    """Format the headline results of a complete evaluation."""
    found = run.results() if run.stage == "evaluate" and run.is_complete() else {}
    shown = [(name, found[metric.key]) for name, metric in METRICS.items() if metric.headline and metric.key in found]
    return "".join(f", {name} {_number(value)}" for name, value in shown[:SHOWN])


def _at(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else f"{'-':19}"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
