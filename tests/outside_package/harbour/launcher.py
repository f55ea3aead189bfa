"""A launcher with an option: a command for each task."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from realm_lab import LauncherSettings, Outcome, RemoteLauncher, Section, Task, register_launcher


class Before(Section):
    before: list[str] = []
    """Words in front of each command."""


@register_launcher("commands")
class Commands(RemoteLauncher):
    """Runs two commands at a time."""

    name = "commands"
    at_once = 2

    def __init__(self, settings: LauncherSettings, root: Path, study: str, options: Before):
        super().__init__(settings, root, study)
        self.before = options.before
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, task: Task, file: Path) -> str:
        command = [*self.before, sys.executable, "-m", "realm_lab.contrib.remote", str(file)]
        self.running[task.name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        return str(self.running[task.name].pid)

    def ended(self) -> Iterator[tuple[str, Outcome]]:
        for name, process in [*self.running.items()]:
            if process.poll() is not None:
                del self.running[name]
                assert process.stderr is not None
                yield name, Outcome(process.returncode, process.stderr.read())
