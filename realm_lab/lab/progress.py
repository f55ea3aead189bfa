"""Wait for the tasks of a sweep, and show their progress: a bar per task on a terminal, elsewhere a line per task about
once a minute; and a line per ended task."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from realm_lab.engine.core.durations import duration
from realm_lab.lab.launchers import InlineLauncher, Launcher
from realm_lab.lab.status import pace
from realm_lab.lab.tasks import Task
from realm_lab.records.metric_log import MetricLog
from realm_lab.records.state import UNFINISHED, Cause, StageState

POLL_SECONDS = 0.2
SECONDS_BETWEEN_LINES = 60.0
SECONDS_TO_FIRST_LINE = 4.0


class SweepProgress(Progress):
    """Progress on standard error. Inside `with self`, call `show` repeatedly with the states of all tasks."""

    def __init__(self, tasks: Sequence[Task], root: Path, *, say_failures: bool = True):
        console = Console(stderr=True, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._root, self._say_failures = root, say_failures
        self.known: dict[str, Task] = {}
        self._states: dict[str, StageState] = {}
        self._whole = self.add_task("tasks", total=0)
        self.add(tasks)
        self._of_task: dict[str, TaskID] = {}
        self._last_line_at = time.monotonic() - max(0.0, SECONDS_BETWEEN_LINES - SECONDS_TO_FIRST_LINE)
        self._one_at_a_time = threading.Lock()

    def add(self, tasks: Sequence[Task]) -> None:
        """Show these tasks, too."""
        self.known |= {task.name: task for task in tasks}
        self.update(self._whole, total=len(self.known))

    @contextmanager
    def watching(self, launcher: Launcher) -> Iterator[None]:
        """Inside, show the states of an inline launcher from a thread, since its `poll` returns only after a task."""
        if not isinstance(launcher, InlineLauncher):
            yield
            return
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(1.0):
                self.show(dict(launcher.states))

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def show(self, states: Mapping[str, StageState]) -> None:
        """Show the states of all tasks."""
        with self._one_at_a_time:
            now = time.monotonic()
            is_time = now - self._last_line_at >= SECONDS_BETWEEN_LINES and not self.console.is_terminal
            for name in [name for name in states if name in self.known]:  # others are tasks of an earlier sweep
                state, before = states[name], self._states.get(name)
                if state.state == "RUNNING" and self.console.is_terminal:
                    self._show_bar(self.known[name])
                elif state.state == "RUNNING" and is_time:
                    self._say_progress(self.known[name])
                    self._last_line_at = now
                if state.state not in UNFINISHED and (before is None or before.state != state.state):
                    if name in self._of_task:
                        self.remove_task(self._of_task.pop(name))
                    self._say_end(self.known[name], state)
            self._states = dict(states)
            done = sum(state.state not in UNFINISHED for name, state in states.items() if name in self.known)
            self.update(self._whole, completed=done)

    def _show_bar(self, task: Task) -> None:
        run = next((run for run in task.runs(self._root) if run.status().state != "COMPLETE"), None)
        if run is not None:
            if task.name not in self._of_task:
                self._of_task[task.name] = self.add_task(task.title, total=None)
            status = run.status()
            about, total = task.at(run.stage) + _loss(run.path, status.step), status.total_steps or None
            self.update(self._of_task[task.name], description=about, completed=status.step, total=total)

    def _say_progress(self, task: Task) -> None:
        """Describe the running stage of the task: step, loss, speed and remaining time."""
        for run in task.runs(self._root):
            status = run.status()
            if status.state == "RUNNING":
                done = f"step {status.step} of {status.total_steps}"
                step = done if status.total_steps else f"{status.step:,} records"
                self._say(f"{task.at(run.stage)}: {step}{_loss(run.path, status.step)}{pace(status)}")
                return
        self._say(f"{task.title}: starting")

    def _say_end(self, task: Task, state: StageState) -> None:
        if state.state == "COMPLETE":
            statuses = [run.status() for run in task.runs(self._root)]
            self._say(f"{task.title}: done in {duration(sum(status.wall_seconds for status in statuses))}")
            for flag in (flag for status in statuses for flag in status.flags):
                self._say(f"{task.title}: FLAGGED: {flag}", "bold red")
        elif self._say_failures:
            is_needed = state.reason is not None and state.reason.cause is Cause.NEEDED
            is_own = state.state == "FAILED" and not is_needed
            why = state.error or state.state.lower()
            self._say(f"{task.title}: {'FAILED: ' * is_own}{why}", "bold red" * is_own)

    def _say(self, line: str, style: str = "") -> None:
        self.console.print(line, markup=False, highlight=False, style=style)


@functools.lru_cache(maxsize=64)  # a log may be long: it is read once per reported step
def _loss(stage: Path, step: int) -> str:
    """Return the last logged loss as `, loss 3.250`; "" before there is one."""
    losses = [row["loss"] for row in MetricLog(stage / "metrics.jsonl").rows() if row.get("loss") is not None]
    return f", loss {losses[-1]:.3f}" if losses else ""


def drive(
    launcher: Launcher,
    tasks: Sequence[Task],
    root: Path,
    pause_seconds: float = POLL_SECONDS,
    *,
    wait_for_others: bool,
    say_failures: bool = True,
    more: Callable[[Mapping[str, StageState]], Sequence[Task]] = lambda states: (),
) -> dict[str, StageState]:
    """Poll the launcher until no task waits or runs; return the last states. Without `wait_for_others`, return also if
    only tasks are left that wait for other processes. `more` gets the states after each poll, may submit further tasks,
    and returns them."""
    before: dict[str, StageState] = {}
    progress = SweepProgress(tasks, root, say_failures=say_failures)
    with progress, progress.watching(launcher):
        while True:
            states = launcher.poll()
            progress.show(states)
            if begun := more(states):
                progress.add(begun)
                continue
            counts = Counter(state.state for state in states.values())
            if not any(counts[state] for state in UNFINISHED):
                return states
            if states == before:
                if not (counts["RUNNING"] or counts["QUEUED"] or wait_for_others):
                    for name, state in states.items():
                        if state.state == "PENDING" and name in progress.known:
                            say(f"left alone: {progress.known[name].title}: {state.error}")
                    return states
                time.sleep(pause_seconds)
            before = states


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
