"""`realm-lab status`: how every run of a study stands, or every study."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from realm_lab.errors import UserError
from realm_lab.reporting.values import value_of
from realm_lab.runner.launchers import queued_jobs
from realm_lab.runner.standing import (
    UNDER_WAY,
    WORDS,
    Member,
    Standing,
    members_of_plan,
    members_of_record,
    short_keys,
    standing_of,
)
from realm_lab.runner.state import StageStates
from realm_lab.runner.stopping import sweepers
from realm_lab.tracking.study_record import StudyRecord, read_study_record, study_folder, study_record_paths

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


class Line(NamedTuple):
    """A run and where it stands; `headline` is its first metric of interest once it is complete."""

    member: Member
    standing: Standing
    headline: float | None


@dataclass(frozen=True)
class Picture:
    """A study at one moment."""

    study: str
    metric: str
    lines: tuple[Line, ...]

    @property
    def counts(self) -> dict[str, int]:
        """State -> runs, in the order of WORDS."""
        found = Counter(line.standing.state for line in self.lines)
        return {word: found[word] for word in WORDS if found[word]}

    @property
    def title(self) -> str:
        """The study and its counts in one line."""
        counts = ", ".join(f"{count} {word.lower()}" for word, count in self.counts.items())
        return f"{self.study}: {len(self.lines)} runs, {counts or 'none planned'}"


def show_status(name: str, path: Path | None, root: Path, *, as_json: bool, watch: bool) -> None:
    """Print the table of a study; `watch` repeats that until nothing runs any more.

    `path` is its file, for one that has not been swept yet.
    """
    picture = picture_of(name, path, root)
    if as_json:
        print(json.dumps(as_plain(picture), indent=2))
        return
    console = make_console()
    if not (watch and console.is_terminal):
        while watch and is_alive(picture, root):
            time.sleep(WATCH_SECONDS)
            picture = picture_of(name, path, root)
        console.print(drawn(picture))
        return
    with Live(drawn(picture), console=console, auto_refresh=False) as live:
        while is_alive(picture, root):
            time.sleep(WATCH_SECONDS)
            picture = picture_of(name, path, root)
            live.update(drawn(picture), refresh=True)


def picture_of(name: str, path: Path | None, root: Path) -> Picture:
    """The study as it was swept last, or as it is planned.

    Raises:
        UserError: there is neither.
    """
    recorded = study_folder(Path(root) / "runs", name) / "study.json"
    if recorded.exists():
        record = read_study_record(recorded)
        members, metrics = members_of_record(root, record), record.metrics
    elif path is not None:
        from realm_lab.runner.plan import plan_study

        plan = plan_study(path, root)
        members, metrics = members_of_plan(plan), tuple(plan.study.metrics)
    else:
        raise UserError(f"study '{name}': never swept, and no experiments/{name}.yaml; `realm-lab status` lists all")
    metric = metrics[0] if metrics else HEADLINE
    queued = short_keys(queued_jobs(root))
    states = StageStates(root)
    lines = []
    for member in members:
        where = standing_of(member, states, queued)
        headline = value_of(member.stage_runs(root), metric) if where.state == "COMPLETE" else None
        lines.append(Line(member, where, headline))
    return Picture(name, metric, tuple(lines))


def is_alive(picture: Picture, root: Path) -> bool:
    """Something runs, waits in a queue, or is being swept."""
    return any(word in UNDER_WAY for word in picture.counts) or bool(sweepers(root, picture.study))


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
    table.add_column("where it is", overflow="fold")
    warnings = []
    for line in picture.lines:
        member, where = line.member, line.standing
        state = Text(where.state.lower(), STYLES[where.state])
        table.add_row(Text(member.cell), str(member.seed), state, Text(said_of(line, picture)))
        for flag in where.flags:
            warnings.append(Text(f"{member.cell}, seed {member.seed}: FLAGGED: {flag}", "bold red"))
    return Group(Text(picture.title, "bold"), table, *warnings)


def said_of(line: Line, picture: Picture) -> str:
    """What a run does, or what became of it."""
    where = line.standing
    stage = (where.stage or "").replace("_", "-")
    job = f"job {where.job}" if where.job else ""
    if where.state == "COMPLETE":
        return "" if line.headline is None else f"{picture.metric} {line.headline:.4g}"
    if where.state == "RUNNING":
        rate = f"{where.steps_per_second:.1f} steps/s" if where.steps_per_second else ""
        left = f"{_duration(where.left_seconds)} left" if where.left_seconds is not None else ""
        return ", ".join(part for part in (f"{stage} {_steps(where)}".strip(), rate, left, job) if part)
    if where.state == "PENDING":
        return ""
    steps = f"{stage} {_steps(where)}".strip()
    return ", ".join(part for part in (f"{steps}: {where.error}" if where.error else steps, job) if part)


def _steps(where: Standing) -> str:
    return f"{where.step}/{where.total_steps}" if where.total_steps else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def as_plain(picture: Picture) -> dict[str, Any]:
    """The same for a program."""
    runs = [
        {
            "study": picture.study,
            "cell": line.member.cell,
            "seed": line.member.seed,
            "run_key": line.member.run_key,
            "run": line.member.name,
            **line.standing._asdict(),
            picture.metric: line.headline,
        }
        for line in picture.lines
    ]
    return {"study": picture.study, "counts": picture.counts, "runs": runs}


def show_studies(root: Path, *, as_json: bool) -> None:
    """Print all studies: those that were swept, then the files of those that were not."""
    studies = [(_row(record, root)) for record in map(read_study_record, study_record_paths(Path(root) / "runs"))]
    swept = {study["study"] for study in studies}
    files = sorted((Path(root) / "experiments").glob("*.yaml"))
    unswept = [{"study": file.stem, "counts": {}, "question": ""} for file in files if _is_new(file, swept)]
    if as_json:
        print(json.dumps([*studies, *unswept], indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("study")
    table.add_column("runs", overflow="fold")
    table.add_column("question", overflow="fold")
    for study in [*studies, *unswept]:
        table.add_row(Text(study["study"]), Text(_counts(study["counts"].items())), Text(study["question"]))
    make_console().print(table if studies or unswept else "no studies: none in experiments, and none was swept")


def _is_new(file: Path, swept: set[str]) -> bool:
    """A study that was not swept; DVC's own file lies beside the studies, searches are no studies."""
    return file.stem not in swept and file.stem != "dvc" and not file.stem.startswith("search-")


def _row(record: StudyRecord, root: Path) -> dict[str, Any]:
    return {"study": record.name, "counts": picture_of(record.name, None, root).counts, "question": record.question}


def _counts(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {word.lower()}" for word, count in counts) or "never swept"
