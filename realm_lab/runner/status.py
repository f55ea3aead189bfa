"""`realm-lab status`: in which state every run of a study is, and why it does not run; or every study."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from realm_lab.errors import UserError
from realm_lab.reporting.values import run_values
from realm_lab.runner.slurm_queue import jobs_of_stages
from realm_lab.runner.stopping import sweepers
from realm_lab.systems.identity import Plan
from realm_lab.tracking.run_dir import KEY_LENGTH, StageRun, read_run_record, stage_folder
from realm_lab.tracking.state import STATES, UNDER_WAY, RunState, StageStates, State
from realm_lab.tracking.study_record import read_study_record, study_folder, study_record_paths

WATCH_SECONDS = 2.0
PLAIN_WIDTH = 200  # columns where there is no terminal
HEADLINE = "exact_match"
STYLES = {
    "RUNNING": "cyan",
    "QUEUED": "blue",
    "PREEMPTED": "yellow",
    "LOST": "yellow",
    "CANCELLED": "yellow",
    "FAILED": "bold red",
    "PENDING": "dim",
    "COMPLETE": "green",
}


@dataclass(frozen=True)
class RunLine:
    """One run of a study; `stages` are the keys of its stages as far as the study asks for them."""

    cell: str
    seed: int
    run_key: str
    run: str
    stages: dict[str, str]
    corpus_key: str
    state: RunState
    headline: float | None  # its first metric of interest once it is complete

    @property
    def node(self) -> str:
        """The stage that decides, with its key: what runs may share."""
        stage = self.state.stage or ""
        return f"{stage}-{(self.corpus_key if stage == 'prepare' else self.stages.get(stage, ''))[:KEY_LENGTH]}"


@dataclass(frozen=True)
class Picture:
    """A study at one moment. `sweeping`: the processes that sweep it now, in words."""

    study: str
    metric: str
    runs: tuple[RunLine, ...]
    sweeping: tuple[str, ...]

    @property
    def counts(self) -> Counter[State]:
        return Counter(run.state.state for run in self.runs)

    @property
    def verb(self) -> str:
        """What makes it go on."""
        return "search" if self.study.startswith("search-") else "sweep"

    @property
    def title(self) -> str:
        return f"{self.study}: {len(self.runs)} runs, {in_words(self.counts) or 'none planned'}"

    @property
    def is_alive(self) -> bool:
        """Something runs, waits in a queue, or is being swept."""
        return bool(self.sweeping) or any(state in UNDER_WAY for state in self.counts)

    def reason(self, run: RunLine) -> str:
        """What a run does, or why it does not run and what would make it go on."""
        stage, again = (run.state.stage or "").replace("_", "-"), f"`realm-lab {self.verb} {self.study}`"
        if run.state.state == "COMPLETE":
            return "" if run.headline is None else f"{self.metric} {run.headline:.4g}"
        found = run.state.stages[run.state.stage or ""]
        status = found.status
        steps = f"{stage} {status.step}/{status.total_steps}" if status.total_steps else stage
        job = f"job {found.job}" if found.job else ""
        if run.state.state == "RUNNING":
            rate = f"{status.steps_per_second:.1f} steps/s" if status.steps_per_second else ""
            left = f"{duration(seconds)} left" if (seconds := left_seconds(run.state)) is not None else ""
            sharing = sum(other.node == run.node for other in self.runs) - 1
            shared = f"shared with {sharing} other{'s' * (sharing > 1)}" if sharing else ""
            who = f"process {status.pid} on {status.host}"
            return ", ".join(part for part in (steps, rate, left, shared, job or who) if part)
        if run.state.state == "QUEUED":
            return ", ".join(part for part in (f"{stage} waits", job, found.error or "") if part)
        if run.state.state == "FAILED":
            return f"{steps}: {found.error}; goes on with --retry-failed"
        if run.state.state == "PENDING" and self.sweeping:
            return f"{stage} waits for its turn in the sweep by {self.sweeping[0]}"
        if run.state.state == "PENDING":
            return f"{stage} has not begun: {again}"
        return f"{steps}: {found.error or run.state.state.lower()}; {again} goes on from its checkpoint"


def show_status(name: str, path: Path | None, root: Path, *, as_json: bool, watch: bool) -> None:
    """Print the table of a study; `watch` repeats that until nothing runs any more. `path` is its file, for one that
    has not been swept yet."""
    picture = picture_of(name, path, root)
    if as_json:
        print(json.dumps(as_plain(picture), indent=2))
        return
    # Where there is no terminal, the table is printed once, at the end.
    with Live(drawn(picture), console=make_console(), auto_refresh=False) as live:
        while watch and picture.is_alive:
            time.sleep(WATCH_SECONDS)
            picture = picture_of(name, path, root)
            live.update(drawn(picture), refresh=True)


def picture_of(name: str, path: Path | None, root: Path) -> Picture:
    """The study as it was swept last, or as it is planned. UserError: there is neither."""
    runs = Path(root) / "runs"
    recorded = study_folder(runs, name) / "study.json"
    members: list[tuple[str, str, str, Plan]] = []  # cell, run's key and folder, plan
    if recorded.exists():
        record = read_study_record(recorded)
        metrics = record.metrics
        for run in record.everything().runs:
            described = read_run_record(runs / run.run / "run.json")
            keys = {stage: folder.rpartition("-")[2] for stage, folder in record.cut(described.stages).items()}
            plan = Plan(described.system, described.seed, described.inputs["corpus"], keys)
            members.append((run.cell, run.run_key, run.run, plan))
    elif path is not None:
        from realm_lab.runner.plan import plan_study

        planned = plan_study(path, root)
        metrics = planned.metrics
        members = [(run.cell, run.run_key, run.name, run.plan) for run in planned.runs]
    else:
        raise UserError(f"study '{name}': never swept, and no experiments/{name}.yaml; `realm-lab status` lists all")
    metric = metrics[0] if metrics else HEADLINE
    states = StageStates(runs, jobs_of_stages(root))
    lines = []
    for cell, run_key, folder, plan in members:
        state = states.run(plan.stages, plan.corpus_key)
        headline = None
        if state.state == "COMPLETE":
            stages = {stage: StageRun(stage_folder(runs, stage, key), stage) for stage, key in plan.stages.items()}
            headline = run_values(stages).get(metric)
        lines.append(RunLine(cell, plan.seed, run_key, folder, plan.stages, plan.corpus_key, state, headline))
    who = tuple(f"process {one.owner.pid} on {one.owner.host}" for one in sweepers(root, name))
    return Picture(name, metric, tuple(lines), who)


def left_seconds(run: RunState) -> float | None:
    """How long the running stage may still take; None where its speed is not known yet."""
    if run.state != "RUNNING":
        return None
    status = run.stages[run.stage or ""].status
    if status.steps_per_second <= 0:
        return None
    since = max(0.0, time.time() - (status.heartbeat_at or time.time()))
    return max(0.0, (status.total_steps - status.step) / status.steps_per_second - since)


def in_words(counts: Mapping[State, int]) -> str:
    """`1 pending, 2 complete`, in the order of STATES."""
    return ", ".join(f"{counts[state]} {state.lower()}" for state in STATES if counts.get(state))


def make_console() -> Console:
    """Standard output; wide where it is no terminal, so that nothing is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def drawn(picture: Picture) -> Group:
    """The table, and a line for each warning of a run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("cell", overflow="fold")
    table.add_column("seed", justify="right")
    table.add_column("state")
    table.add_column("what it does, or waits for", overflow="fold")
    warnings = []
    for run in picture.runs:
        state = Text(run.state.state.lower(), STYLES[run.state.state])
        table.add_row(Text(run.cell), str(run.seed), state, Text(picture.reason(run)))
        for stage, flags in run.state.flags.items():
            for flag in flags:
                warnings.append(Text(f"{run.cell}, seed {run.seed}: FLAGGED: {stage}: {flag}", "bold red"))
    return Group(Text(picture.title, "bold"), table, *warnings)


def duration(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def as_plain(picture: Picture) -> dict[str, Any]:
    runs = []
    for run in picture.runs:
        found = run.state.stages.get(run.state.stage or "")
        runs.append(
            {
                "study": picture.study,
                "cell": run.cell,
                "seed": run.seed,
                "run_key": run.run_key,
                "run": run.run,
                "state": run.state.state,
                "stage": run.state.stage,
                "step": found.status.step if found else 0,
                "total_steps": found.status.total_steps if found else 0,
                "steps_per_second": found.status.steps_per_second if found else 0.0,
                "left_seconds": left_seconds(run.state),
                "error": found.error if found else None,
                "reason": picture.reason(run),
                "flags": [f"{stage}: {flag}" for stage, flags in run.state.flags.items() for flag in flags],
                "job": found.job if found else "",
                picture.metric: run.headline,
            }
        )
    return {"study": picture.study, "counts": picture.counts, "runs": runs}


def show_studies(root: Path, *, as_json: bool) -> None:
    """Print all studies: those that were swept, then the files of those that were not."""
    studies: list[dict[str, Any]] = []
    for record in map(read_study_record, study_record_paths(Path(root) / "runs")):
        counts = picture_of(record.name, None, root).counts
        studies.append({"study": record.name, "counts": counts, "question": record.question})
    known = {study["study"] for study in studies} | {"dvc"}  # DVC's own file lies beside the studies
    for file in sorted((Path(root) / "experiments").glob("*.yaml")):
        if file.stem not in known and not file.stem.startswith("search-"):
            studies.append({"study": file.stem, "counts": {}, "question": ""})
    if as_json:
        print(json.dumps(studies, indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("study")
    table.add_column("runs", overflow="fold")
    table.add_column("question", overflow="fold")
    for study in studies:
        table.add_row(Text(study["study"]), Text(in_words(study["counts"]) or "never swept"), Text(study["question"]))
    make_console().print(table if studies else "no studies: none in experiments, and none was swept")
