"""The launcher `hyperqueue`: thousands of short runs inside a few allocations, by a server of HyperQueue.

HyperQueue's program `hq` starts the server and its workers; the package `hyperqueue` submits tasks to the server.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from realm_lab.contrib.remote import RemoteLauncher
from realm_lab.engine.params.sections import Section
from realm_lab.errors import UserError, needs
from realm_lab.lab.launchers import LAUNCHERS, LauncherSettings
from realm_lab.lab.tasks import Task
from realm_lab.lab.workers import Outcome
from realm_lab.records.run_lease import LOST_CODE

ASK_SECONDS = 2.0  # between two requests to the server


class HyperQueueOptions(Section):
    """Options of the launcher `hyperqueue`."""

    server: str = ""
    """Folder of the server; empty: that of `hq server start`, ~/.hq-server."""
    at_once: Annotated[int, Field(ge=1)] = 1000
    """Tasks that the server has at a time."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Resources of each process besides its cores (`launch.threads`, or one), such as `{gpus/nvidia: 0.5}`."""


@LAUNCHERS.register("hyperqueue")
class HyperQueueLauncher(RemoteLauncher):
    """Submits each task as a job of HyperQueue."""

    name = "hyperqueue"

    def __init__(self, settings: LauncherSettings, root: Path, study: str, options: HyperQueueOptions):
        super().__init__(settings, root, study)
        self.at_once, self._options = options.at_once, options
        self._client: Any = None
        self._jobs: dict[str, Any] = {}
        self._asked = 0.0

    def check(self, tasks: Sequence[Task]) -> None:
        """Connect to the server. UserError: the package is missing, or no server answers."""
        with needs(f"launcher '{self.name}'", "hyperqueue", "hyperqueue"):
            from hyperqueue import Client
        with self._asking():
            self._client = Client(self._options.server or None)

    def start(self, task: Task, file: Path) -> str:
        """Submit a job."""
        from hyperqueue import Job
        from hyperqueue.ffi.protocol import ResourceRequest

        job = Job(name=f"realm_lab-{task.name}", default_workdir=os.getcwd())
        cpus = task.ranks * (task.run.params.launch.threads or 1)
        further = {name: amount * task.ranks for name, amount in self._options.resources.items()}
        job.program(
            [sys.executable, "-m", "realm_lab.contrib.remote", str(file)],
            env={name: os.environ[name] for name in ("PYTHONPATH", "PYTHONSAFEPATH") if name in os.environ},
            stdout=None,
            stderr=None,
            resources=ResourceRequest(cpus=cpus, resources=further),
            crash_limit=1,  # this launcher restarts a task, with a new task file; HyperQueue does not
        )
        with self._asking():
            self._jobs[task.name] = self._client.submit(job)
        return str(self._jobs[task.name].id)

    def ended(self) -> Iterator[tuple[str, Outcome]]:
        """Yield tasks that have noted their end, and tasks that failed in HyperQueue without noting it."""
        lost = self._lost()
        for name, outcome in super().ended():
            lost.pop(name, None)
            del self._jobs[name]
            yield name, outcome
        for name, reason in lost.items():
            del self._jobs[name]
            yield name, Outcome(LOST_CODE, reason)

    def _lost(self) -> dict[str, str]:
        """Return task -> reason for failed jobs. Some may have noted their end before they failed."""
        now = time.monotonic()
        if not self._jobs or self._client is None or now - self._asked < ASK_SECONDS:
            return {}
        self._asked = now
        jobs = {job.id: name for name, job in self._jobs.items()}
        with self._asking():
            failed = self._client.connection.get_failed_tasks([*jobs])
        return {jobs[number]: found.error for number, tasks in failed.items() for found in tasks.values()}

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn any error inside the block into a UserError, and drop the client: the server does not answer."""
        try:
            yield
        except Exception as error:  # the package has no class for its errors
            self._client = None
            reason, folder = " ".join(str(error).split()), self._options.server or "~/.hq-server"
            remedy = "start one with `hq server start`, then sweep again"
            raise UserError(f"no server of HyperQueue answers ({reason})", remedy, path=folder) from None
