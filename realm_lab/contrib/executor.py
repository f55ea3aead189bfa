"""The launcher `executor`: tasks by any `concurrent.futures.Executor`, such as those of Ray, Parsl or Dask.

The executor gets the function `do_file` of realm_lab and the path of a task file. Its workers must see the folder of
the project, and import realm_lab.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Annotated

from pydantic import Field

from realm_lab.contrib.remote import RemoteLauncher, do_file
from realm_lab.engine.params.sections import Section
from realm_lab.errors import UserError
from realm_lab.lab.launchers import LAUNCHERS, LauncherSettings
from realm_lab.lab.tasks import Task
from realm_lab.lab.workers import Outcome
from realm_lab.records.plugins import calling, check_takes, own_code
from realm_lab.records.run_lease import LOST_CODE

FACTORY = "launcher.factory"


class ExecutorOptions(Section):
    """Options of the launcher `executor`."""

    factory: str
    """`package.module:function` that returns the executor; it is called without arguments."""
    at_once: Annotated[int, Field(ge=1)] = 64
    """Tasks that the executor has at a time."""


@LAUNCHERS.register("executor")
class ExecutorLauncher(RemoteLauncher):
    """Runs tasks by an executor of `concurrent.futures`. A broken executor is replaced by a new one."""

    name = "executor"

    def __init__(self, settings: LauncherSettings, root: Path, study: str, options: ExecutorOptions):
        super().__init__(settings, root, study)
        self.at_once, self._factory = options.at_once, options.factory
        check_takes(FACTORY, self._factory, own_code(FACTORY, self._factory), "")
        self._executor: Executor | None = None
        self._futures: dict[str, Future[tuple[int, str]]] = {}

    def start(self, task: Task, file: Path) -> str:
        """Give the path of the task's file to the executor."""
        if self._executor is None:
            self._executor = self._made()
        try:
            self._futures[task.name] = self._executor.submit(do_file, str(file))
        except BrokenExecutor as error:  # it broke after its last task was submitted
            self._futures[task.name] = Future()
            self._futures[task.name].set_exception(error)
        return type(self._executor).__name__

    def ended(self) -> Iterator[tuple[str, Outcome]]:
        """Yield tasks whose future is done. A future's exception comes from the executor: `do_file` returns errors."""
        for name, future in [*self._futures.items()]:
            if future.done():
                del self._futures[name]
                yield name, self._outcome(future)

    def close(self) -> None:
        """Stop running tasks after a checkpoint, and shut the executor down."""
        super().close()
        if self._executor is not None:
            self._executor.shutdown()

    def _outcome(self, future: Future[tuple[int, str]]) -> Outcome:
        try:
            return Outcome(*future.result())
        except Exception as error:
            if isinstance(error, BrokenExecutor):
                self._executor = None
            return Outcome(LOST_CODE, f"{type(error).__name__}: {' '.join(str(error).split())}")

    def _made(self) -> Executor:
        """Call the factory. UserError: the factory fails, or returns no executor."""
        with calling(FACTORY, self._factory, self._factory):
            made = own_code(FACTORY, self._factory)()
        if not callable(getattr(made, "submit", None)):
            kind = type(made).__name__
            raise UserError(f"{FACTORY}: '{self._factory}' returns {kind}; return a concurrent.futures.Executor")
        executor: Executor = made
        return executor
