"""What a sweep shows while it runs: a bar for each task on a terminal, a line for each that has ended anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from realm_lab.runner.board import stage_run
from realm_lab.runner.jobs import UNFINISHED, JobState

if TYPE_CHECKING:
    from realm_lab.runner.tasks import Task


class SweepProgress:
    """On standard error; `update` is told the states of all tasks again and again."""

    def __init__(self, tasks: Sequence[Task], root: Path):
        self.console = Console(stderr=True, soft_wrap=True)
        self._root = root
        self._tasks = {task.name: task for task in tasks}
        self._states: dict[str, JobState] = {}
        self._bars: dict[str, TaskID] = {}
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)

    def __enter__(self) -> SweepProgress:
        self._progress.start()
        self._whole = self._progress.add_task("tasks", total=len(self._tasks), rate="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, states: Mapping[str, JobState]) -> None:
        """Show what has changed."""
        for name, state in states.items():
            before = self._states.get(name)
            if state.state == "running" and self.console.is_terminal:
                self._show_bar(name)
            if before is not None and before.state == state.state:
                continue
            if state.state not in UNFINISHED:
                if name in self._bars:
                    self._progress.remove_task(self._bars.pop(name))
                self._say_end(name, state)
        self._states = dict(states)
        done = sum(state.state not in UNFINISHED for state in states.values())
        self._progress.update(self._whole, completed=done)

    def title(self, name: str) -> str:
        """What people call the task."""
        return self._tasks[name].title if name in self._tasks else name

    def _show_bar(self, name: str) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(self.title(name), total=None, rate="")
        task = self._tasks[name]
        for stage in task.stages:
            status = stage_run(task, stage, self._root).status()
            if status.state != "COMPLETE":
                rate = f"{status.steps_per_second:.1f} steps/s" if status.steps_per_second else ""
                title = f"{', '.join(task.cells[:1])} seed {task.seed}: {stage.replace('_', '-')}"
                bar, total = self._bars[name], status.total_steps or None
                self._progress.update(bar, description=title, completed=status.step, total=total, rate=rate)
                return

    def _say_end(self, name: str, state: JobState) -> None:
        task = self._tasks.get(name)
        if task is None:  # of an earlier submission
            return
        title = task.title
        if state.state == "ended":
            statuses = [stage_run(task, stage, self._root).status() for stage in task.stages]
            self._say(f"{title}: done in {sum(status.wall_seconds for status in statuses):.0f} s")
            for flag in (flag for status in statuses for flag in status.flags):
                self._say(f"{title}: FLAGGED: {flag}", "bold red")
        elif state.error is not None and state.error.startswith("not run: "):
            self._say(f"{title}: {state.error}")
        elif state.state == "failed":
            self._say(f"{title}: FAILED: {state.error}", "bold red")
        else:
            self._say(f"{title}: {state.error or state.state}")

    def _say(self, line: str, style: str | None = None) -> None:
        self.console.print(line, markup=False, highlight=False, style=style)
