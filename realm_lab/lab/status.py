"""`realm-lab status`: the state of every run of a study, and why a run waits or failed; or a list of all studies."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from realm_lab.engine.core.durations import duration
from realm_lab.errors import UserError
from realm_lab.lab.project import studies_of
from realm_lab.lab.slurm_queue import jobs_of_stages
from realm_lab.lab.stopping import sweepers
from realm_lab.records.code_record import CodeStates, StageCode, changes_line
from realm_lab.records.computed import computed_values
from realm_lab.records.files import print_json
from realm_lab.records.run import Run, State, Status
from realm_lab.records.run_values import run_values
from realm_lab.records.state import STATES, StageState, StageStates
from realm_lab.records.study import DEFAULT, StudyRecord
from realm_lab.records.validation import cut
from realm_lab.records.yaml_file import read_yaml

PLAIN_WIDTH = 200  # columns without a terminal
HEADLINE = "exact_match"
LOOK_AGAIN_SECONDS = 2.0
STYLES = {"running": "cyan", "preempted": "yellow", "lost": "yellow", "failed": "bold red", "complete": "green"}


def show_status(name: str, root: Path, *, as_json: bool, follow: bool = False) -> None:
    """Print the table of a study as it was swept last, and a line for each warning of a run. `follow`: repeat until
    nothing runs, is queued or is swept; without a terminal, print only when the number of runs in a state has
    changed."""
    console = make_console()
    if as_json:
        print_json(study_status(name, root))
    elif not follow:
        console.print(_shown(study_status(name, root), console))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live, suppress(KeyboardInterrupt):
            for found in _until_it_ends(name, root):
                live.update(_shown(found, console), refresh=True)
    else:
        counts: Counter[str] | None = None
        for found in _until_it_ends(name, root):
            if found["counts"] != counts:
                console.print(_shown(found, console))
            counts = found["counts"]


def _until_it_ends(name: str, root: Path) -> Iterator[dict[str, Any]]:
    """Yield the status of a study again and again, until no run is running or queued and no process sweeps it."""
    while True:
        yield (found := study_status(name, root))
        if not (found["counts"]["RUNNING"] or found["counts"]["QUEUED"] or sweepers(root, name)):
            return
        time.sleep(LOOK_AGAIN_SECONDS)


def _shown(found: dict[str, Any], console: Console) -> Group:
    """Return the table of a study's status with the lines above and below it."""
    runs, counts = found["runs"], found["counts"]
    rows = [(run["cell"], str(run["seed"]), run["state"].lower(), run["reason"]) for run in runs]
    below = [f"{run['cell']}, seed {run['seed']}: FLAGGED: {flag}" for run in runs for flag in run["flags"]]
    below += [found["other_code"]] if found["other_code"] else []
    parts: list[Any] = [Text(f"{found['study']}: {len(runs)} runs, {in_words(counts)}", "bold")]
    if console.is_terminal:
        parts.append(ProgressBar(total=len(runs), completed=counts["COMPLETE"], width=40))
    parts.append(table_of(("variant", "seed", "state", "what it does, or waits for"), rows))
    parts += [Text(line, "bold red") for line in below]
    return Group(*parts)


def study_status(name: str, root: Path, jobs: Mapping[str, StageState] | None = None) -> dict[str, Any]:
    """Return the output of `--json`: each run with its state, why it does not run, and its value of the study's first
    metric once it is complete. `jobs`: those of `jobs_of_stages`. UserError: the study was never swept."""
    studies = studies_of(root)
    if name != DEFAULT and name not in studies.names():
        raise UserError(
            f"study '{name}': never swept; start with `realm-lab sweep {name}`; `realm-lab status` lists all"
        )
    runs, record = studies.runs, studies.read(name)
    if record.tuning and not record.runs:  # as long as its cells are being tuned
        record = record.trials_as_study()
    metric = record.metrics[0] if record.metrics else HEADLINE
    states = StageStates(runs, jobs_of_stages(root) if jobs is None else jobs)
    sweeping = [str(one.owner) for one in sweepers(root, name)]
    codes = CodeStates(runs)
    changed: dict[str, list[StageCode]] = {}
    found = []
    for run in record.runs:
        others: list[StageCode] = []
        headline, shown = None, ""
        if (runs / run.name / "run.json").exists():  # else the default pipeline has not run yet
            run = states.look(record.read(runs, run))
            if others := [one for one in codes.of_run(run.folders(runs)) if one.changes]:
                changed[run.name] = others
        if run.state == "COMPLETE":
            stages = {stage: run.folder(stage) for stage in run.stages}
            computed, reasons = computed_values((one for one in record.own_metrics if one.name == metric), stages)
            headline = (run_values(stages) | computed).get(metric)
            why = reasons.get(metric, "no value")
            shown = f"{metric} not measured: {why}" if headline is None else f"{metric} {headline:.4g}"
        deciding = run.states.get(run.stage or "")
        found.append(
            {
                "study": name,
                "cell": run.cell,
                "seed": run.seed,
                "run_key": run.run_key,
                "run": run.name,
                "state": run.state,
                "stage": run.stage,
                "step": deciding.status.step if deciding else 0,
                "total_steps": deciding.status.total_steps if deciding else 0,
                "steps_per_second": deciding.status.steps_per_second if deciding else 0.0,
                "left_seconds": left_seconds(deciding.status) if deciding and run.state == "RUNNING" else None,
                "error": deciding.error if deciding else None,
                "why": asdict(deciding.reason) if deciding and deciding.reason else None,
                "reason": shown if run.state == "COMPLETE" else _reason(run, record, sweeping),
                "flags": [f"{stage}: {flag}" for stage, flag in run.flags],
                "job": deciding.job if deciding else "",
                "other_code": {one.stage: list(one.changes) for one in others},
                metric: headline,
            }
        )
    obsolete = [one for others in changed.values() for one in others]
    line = changes_line(obsolete, len(changed)) if obsolete else ""
    return {"study": name, "counts": Counter(str(run["state"]) for run in found), "other_code": line, "runs": found}


def _reason(run: Run, study: StudyRecord, sweeping: Sequence[str]) -> str:
    """Describe the activity of a run, or why it does not run and how to continue it. `sweeping`: the processes that
    sweep the study now."""
    again = f"`{study.command}`"
    if run.stage is None:
        return f"has not started: {again}"
    found, stage = run.states[run.stage], run.stage.replace("_", "-")
    status, job = found.status, f"job {found.job}" if found.job else ""
    steps = f"{stage} {status.step}/{status.total_steps}" if status.total_steps else stage
    if run.state == "RUNNING":
        return f"{steps}{pace(status)}, {job or f'process {status.pid} on {status.host}'}"
    if run.state == "QUEUED":
        return ", ".join(part for part in (f"{stage} waits", job, found.error or "") if part)
    if run.state == "FAILED":
        return f"{steps}: {found.error}; goes on with {'--retry-failed' if study.source else again}"
    if run.state == "PENDING" and sweeping:
        return f"{stage} waits for its turn in the sweep by {sweeping[0]}"
    if run.state == "PENDING":
        return f"{stage} has not started: {again}"
    return f"{steps}: {found.error or run.state.lower()}; {again} goes on from its checkpoint"


def left_seconds(status: Status) -> float | None:
    """Estimate the remaining time of a stage by its speed so far, 0 if it should have ended; None: not known yet."""
    if status.steps_per_second <= 0:
        return None
    since = max(0.0, time.time() - (status.heartbeat_at or time.time()))
    return max(0.0, (status.total_steps - status.step) / status.steps_per_second - since)


def pace(status: Status) -> str:
    """Return `, 2.5 steps/s, 3.0 min left`, or the time per step if one takes over a second; "" if it is not known."""
    left, speed = left_seconds(status), status.steps_per_second
    if left is None:
        return ""
    rate = f"{speed:.1f} steps/s" if speed >= 1 else f"{duration(1 / speed)}/step"
    time_left = f"{duration(left)} left" if left > 0 else "longer than estimated"
    return f", {rate}, {time_left}" if status.step < status.total_steps else f", {rate}"


def in_words(counts: Mapping[State, int]) -> str:
    """Format counts as `1 pending, 2 complete`, in the order of STATES."""
    return ", ".join(f"{counts[state]} {state.lower()}" for state in STATES if counts.get(state))


def make_console() -> Console:
    """Return standard output; wide without a terminal, so that nothing is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, with its title above it."""
    console = make_console()
    if title:
        console.print(Text(title, "bold"))
    console.print(table_of(columns, rows))


def table_of(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without lines; states are coloured."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(value, STYLES.get(value, "")) for value in row))
    return table


def show_studies(root: Path, *, as_json: bool) -> None:
    """Print all studies: those that were swept, then the files of those that were not."""
    studies: list[dict[str, Any]] = []
    known, jobs = studies_of(root), dict[str, StageState]()
    try:
        jobs |= jobs_of_stages(root)
    except UserError as error:  # a broken record of jobs must not hide the studies
        print(error, file=sys.stderr)
    for name in known.names():
        try:
            counts, question = study_status(name, root, jobs)["counts"], known.read(name).question
            studies.append({"study": name, "counts": counts, "question": question})
        except UserError as error:  # a broken record must not hide the other studies
            studies.append({"study": name, "counts": {}, "question": "", "error": str(error)})
    for file in sorted((Path(root) / "experiments").glob("*.yaml")):
        if file.stem not in known.names() and not file.stem.startswith("search-"):
            document: Any = {}
            with suppress(UserError):  # `sweep` explains the error
                document = read_yaml(file)
            studies.append({"study": file.stem, "counts": {}, "question": str(document.get("question", ""))})
    if as_json:
        print_json(studies)
        return
    rows, left = [], [study["study"] for study in studies if not study["counts"] and "error" not in study]
    if 1 < len(left) < len(studies):  # one line for all that were never swept, next to studies with runs
        studies = [study for study in studies if study["study"] not in left]
    else:
        left = []
    for study in studies:
        has_results = (Path(root) / "reports" / "reference" / study["study"]).is_dir()
        not_here = "none here; see reports/reference" if has_results else "never swept"
        broken = study.get("error", "")
        rows.append((study["study"], in_words(study["counts"]) or broken or not_here, study["question"]))
    if not rows:
        raise UserError("no studies and no runs", "go to a project, or make one: `realm-lab init FOLDER`", path=root)
    print_table("", ("study", "runs", "question"), rows)
    if left:
        print(f"{len(left)} more were never swept here: {cut(', '.join(left))}")
