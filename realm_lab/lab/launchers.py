"""The interface of a launcher, and the launchers of this machine, with their choice of the next task.

A launcher gets tasks by `submit`. Its caller then calls `poll` until nothing waits or runs: each call collects
ended tasks and starts ready ones. The run folders decide: a task is complete without a start if another process has
done its stages meanwhile, and waits while another process works on one of its stages. So two sweeps of one
study share the work, and repeat no finished or failed task; a killed sweep continues when it is run again.

Settings come from a study's file, a profile of your cluster, and the command line. Options of sbatch that realm_lab has
settings for, or sets itself, may not be set a second time.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from realm_lab.errors import UserError, as_written, nearest
from realm_lab.lab.tasks import Task
from realm_lab.lab.workers import Outcome, Workers
from realm_lab.records.environment import bfloat16_units
from realm_lab.records.files import write_text
from realm_lab.records.launched import cores, visible_gpus
from realm_lab.records.lease import Taken
from realm_lab.records.plugins import Choice, ChoiceAsWritten, ChoiceField, Kind, import_plugins
from realm_lab.records.run import Status
from realm_lab.records.run_lease import LOST_CODE, TAKEN_CODE, writer_of
from realm_lab.records.state import UNFINISHED, Cause, Reason, StageState, error_of
from realm_lab.records.study import study_folder
from realm_lab.records.validation import validation_line
from realm_lab.records.yaml_file import parse_yaml

# option of sbatch -> setting of launcher.slurm
SETTINGS = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "nodes": "nodes",
    "gpus-per-node": "gpus_per_node",
    "cpus-per-task": "cpus_per_task",
    "mem": "mem_gb",
    "time": "timeout_min",
    "signal": "signal_delay_s",
    "requeue": "requeue",
    "no-requeue": "requeue",
    "array": "array_parallelism",
}
RANKS = {"ntasks", "ntasks-per-node", "tasks-per-node"}  # launch.ranks is used instead
# Options that realm_lab and submitit set, and options that make sbatch submit nothing, wait, or print another text.
OURS = {"dependency", "job-name", "output", "error", "open-mode", "wrap", "test-only", "parsable", "quiet", "wait"}
SHORT = {
    "p": "partition", "A": "account", "q": "qos", "C": "constraint", "N": "nodes", "c": "cpus-per-task", "t": "time",
    "a": "array", "n": "ntasks", "d": "dependency", "J": "job-name", "o": "output", "e": "error", "Q": "quiet",
    "W": "wait",
}  # fmt: skip


class Part(BaseModel):
    """A group of keys in a file, frozen. Its values know their line, for errors. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _keep_lines(cls, value: Any, check: Callable[[Any], Any]) -> Any:
        return as_written(check(value), value)


class LocalOptions(Part):
    """Settings of the launcher `local`: tasks in processes of this machine."""

    processes: Annotated[int, Field(ge=1)] | None = None
    """Number of tasks at a time; empty: `launch.processes`, else as many as there are cores or GPUs for them."""


class SlurmOptions(Part):
    """Settings of the launcher `slurm`: resources of each job, and its queue. Empty keys are left to the cluster."""

    partition: str | None = None
    """Partition, or several with commas."""
    account: str | None = None
    """Account that pays."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Features that a node must have, as sbatch spells them."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Machines of a job; its launch.ranks processes are divided among them."""
    gpus_per_node: Annotated[int, Field(ge=0)] = 0
    """GPUs per node, one per process there."""
    cpus_per_task: Annotated[int, Field(ge=1)] = 1
    """Cores, and threads, of each process."""
    mem_gb: Annotated[float, Field(ge=0.001)] | None = None
    """Memory of a job on each machine."""
    timeout_min: Annotated[int, Field(ge=1)] = 240
    """Time limit of a job. A run that needs more goes on in the same job, queued again."""
    signal_delay_s: Annotated[int, Field(ge=1)] = 120
    """Time before the limit at which a job is asked to stop; it then finishes a step and writes a checkpoint."""
    requeue: bool = True
    """Requeue a job that is asked to stop. If a cluster never requeues: false, and run `sweep` again, which
    `--follow` does."""
    array_parallelism: Annotated[int, Field(ge=1)] = 64
    """Jobs of the study that run at once."""
    setup: list[str] = []
    """Shell lines before a job starts, such as `module load cuda`."""
    python: str | None = None
    """Command that starts Python in a job, such as one inside a container; empty: the interpreter of `sweep`."""
    additional: dict[str, str | int | float | bool] = {}
    """Any other option of sbatch, without its dashes: `{reservation: mine, exclusive: true}`."""

    @model_validator(mode="after")
    def _consistent(self) -> SlurmOptions:
        if self.signal_delay_s >= 60 * self.timeout_min:
            raise ValueError(f"timeout_min: {self.timeout_min} is over before signal_delay_s ({self.signal_delay_s})")
        for option in self.additional:
            if instead := instead_of(option):
                raise ValueError(f"additional: '{option}': {instead}")
        return self


class LauncherSettings(Part):
    default: ChoiceField = Choice("local")
    """The launcher that is used unless the command line names another: `inline`, `local`, `slurm`, one of a plug-in or
    `package.module:Class`, with options as `{name: NAME, OPTION: VALUE}`."""
    local: LocalOptions = LocalOptions()
    """Settings for processes of this machine."""
    slurm: SlurmOptions = SlurmOptions()
    """Settings for SLURM jobs."""


def on_cluster(
    settings: LauncherSettings, root: Path, profile: str | None, given: Mapping[str, Any]
) -> LauncherSettings:
    """Override a study's settings of SLURM by a profile, and both by those `given`. A profile is a file, or a name in
    ROOT/profiles or ~/.config/realm_lab. UserError: no such file, or no such setting."""
    values, where = settings.slurm.model_dump(exclude_unset=True), "--slurm"
    if profile is not None:
        folders = (Path(root) / "profiles", Path.home() / ".config" / "realm_lab")
        places = [Path(profile), *(folder / f"{profile}.yaml" for folder in folders)]
        path = next((place for place in places if place.suffix == ".yaml" and place.is_file()), None)
        if path is None:
            remedy = f"write {places[1]} with lines such as `partition: gpu`"
            raise UserError("no such file", remedy, path=f"--profile {profile}")
        where = f"{path} or --slurm" if given else str(path)
        found = parse_yaml(path.read_text(encoding="utf-8"), path) or {}
        if not isinstance(found, dict):
            raise UserError("no settings", "write lines such as `partition: gpu`", path=path)
        values |= found
    try:
        slurm = SlurmOptions(**(values | dict(given)))
    except ValidationError as error:
        problem = error.errors()[0]
        keys = ", ".join(SlurmOptions.model_fields)
        if problem["type"] == "extra_forbidden":
            key = str(problem["loc"][0])
            remedy = f"{no_setting(key, SlurmOptions.model_fields)}; the settings are {keys}"
            raise UserError(f"{key}: no such setting", remedy, path=where) from None
        raise UserError(validation_line(error), path=where) from None
    return settings.model_copy(update={"slurm": slurm})


def instead_of(option: str) -> str:
    """Return the setting to use instead of this option of sbatch; "" if the option may be used."""
    bare = option.lstrip("-").replace("_", "-")
    name = SHORT.get(bare, bare)
    if name in SETTINGS:
        return f"use the setting {SETTINGS[name]}"
    if name in RANKS:
        return "use launch.ranks in the study's set"
    return "leave it out: realm_lab sets it" if name in OURS else ""


def no_setting(key: str, settings: Iterable[str]) -> str:
    """Return the remedy for an unknown setting of SLURM."""
    near = nearest(key, settings)
    guess = f"did you mean '{near}'?" if near else f"an option of sbatch goes under additional: {{{key}: ...}}"
    return instead_of(key) or guess


LOOK_AGAIN_SECONDS = 1.0  # between two looks at a task that waits for another process


class PartlySubmitted(UserError):
    """Raised if a queue refuses tasks after it took others."""


LAUNCHERS: Kind[Callable[..., Launcher]] = Kind("launcher", "Class", "settings, root, study")
register_launcher = LAUNCHERS.register  # makes a launcher selectable as `--launcher NAME`
LAUNCHERS.declare("inline", "realm_lab.lab.launchers:InlineLauncher")
LAUNCHERS.declare("local", "realm_lab.lab.launchers:LocalLauncher")
LAUNCHERS.declare("slurm", "realm_lab.lab.slurm:SlurmLauncher")


def launcher_of(
    study: str,
    root: Path,
    settings: LauncherSettings,
    chosen: ChoiceAsWritten | None = None,
    profile: str | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Launcher:
    """Return a launcher for the tasks of a study: the `chosen` one; else SLURM's if a `profile` or settings of SLURM
    are `given`; else the one that the study's settings name. UserError: no such launcher, profile or setting."""
    on_queue = profile is not None or bool(given)
    if on_queue:
        settings = on_cluster(settings, root, profile, given)
    choice = Choice.read(chosen or ("slurm" if on_queue else settings.default))
    if on_queue and choice.name in ("inline", "local"):
        raise UserError(f"--slurm and --profile: the launcher '{choice.name}' has no such settings", "leave out one")
    made: Launcher = LAUNCHERS.choose("launcher", choice)(settings, root, study)
    return made


def detached_launchers(study: str, root: Path) -> Iterator[Launcher]:
    """Yield the launchers whose jobs of a study may go on without any process here, with their default options. A
    launcher that cannot be made with these is named on standard error."""
    import_plugins()
    for name, plugin in LAUNCHERS.items():
        try:
            if getattr(plugin.load(), "detached", False):
                yield launcher_of(study, root, LauncherSettings(), name)
        except UserError as error:
            print(f"jobs of the launcher '{name}' are not looked for: {error}", file=sys.stderr)


class Launcher:
    """Base class of launchers, which run tasks. It keeps the tasks with their states, in order, and chooses the next
    task for this machine. A subclass defines `poll`."""

    name: str
    detached = False  # True: jobs go on when this process ends
    at_once: int | None = None  # tasks at a time; None: launch.processes or the size of this machine decides

    def __init__(self, settings: LauncherSettings, root: Path, study: str):
        self._root = Path(root)
        self._logs = study_folder(self._root / "runs", study) / "logs"
        self.tasks: dict[str, Task] = {}
        self.states: dict[str, StageState] = {}
        self._looked_at: dict[str, float] = {}
        self._failed: dict[str, list[Status]] = {}  # task -> statuses of its failed stages when it was accepted

    def check(self, tasks: Sequence[Task]) -> None:
        """Raise a UserError for tasks that could not be started; called before anything is written."""

    def preview(self, tasks: Sequence[Task]) -> Iterable[str]:
        """Return lines of `--dry-run` about how tasks are started; nothing is started. UserError: the settings do not
        fit the tasks, or a queue would refuse them; a program that is missing here is no error."""
        return []

    def free(self, tasks: Sequence[Task]) -> tuple[list[Task], list[str]]:
        """Return the tasks to submit, and a line for each task left out: a queue has it, or a process works on it. With
        a `detached` launcher, `sweep --follow` asks again until no task is left out. Launchers of this machine submit
        all tasks, since `poll` looks for other processes."""
        return list(tasks), []

    def submit(self, tasks: Sequence[Task]) -> None:
        """Accept tasks and return at once; a task that ended without being complete starts again. A task's `after`
        names tasks of this or an earlier submission; a named task that was never submitted is complete already.
        PartlySubmitted: a queue took some tasks, and refuses the others."""
        params = [task.run.params for task in tasks if not self.tasks]  # once
        slow = (one for one in params if one.model.precision == "bfloat16" and not visible_gpus(one.launch.device))
        if any(slow) and not bfloat16_units():
            print(
                "note: this processor has no instructions for bfloat16, and computes it tens of times slower than "
                "float32; stop, and add --set model.precision=float32",
                file=sys.stderr,
                flush=True,
            )
        for task in tasks:
            known = self.states.get(task.name)
            if known is None or known.state not in (*UNFINISHED, "COMPLETE"):
                self.tasks[task.name] = task
                self.states[task.name] = StageState("PENDING")
                self._failed[task.name] = task.failures(self._root)

    def poll(self) -> dict[str, StageState]:
        """Return the state of every accepted task, by name; without a queue, also start the ready ones."""
        raise NotImplementedError

    def next_ready(self) -> Task | None:
        """Return the first task that may start now. Tasks before it get the reason for waiting; tasks that can never
        run are ended."""
        for name, state in self.states.items():
            if state.state == "PENDING":
                found = self._why_not(self.tasks[name])
                if found is None:
                    return self.tasks[name]
                self.states[name] = found
        return None

    def _why_not(self, task: Task) -> StageState | None:
        """Return the state that keeps a task from starting; None if nothing does."""
        before = [(self.tasks[name], self.states[name]) for name in task.after if name in self.states]
        for needed, state in before:
            if state.state in UNFINISHED:
                return StageState("PENDING", reason=Reason(Cause.WAITS, needed.title))
            if state.state == "COMPLETE":
                continue
            if state.reason is not None and state.reason.cause is Cause.NEEDED:
                return StageState(state.state, reason=state.reason)
            has_failed = state.state == "FAILED"
            why = Reason(Cause.NEEDED, needed.title, state.state, (state.error or "") * has_failed)
            return StageState("FAILED" if has_failed else "CANCELLED", reason=why)
        now = time.monotonic()
        if now - self._looked_at.get(task.name, -LOOK_AGAIN_SECONDS) < LOOK_AGAIN_SECONDS:
            return self.states[task.name]
        if task.is_done(self._root):
            return StageState("COMPLETE")
        failed = [status for status in task.failures(self._root) if status not in self._failed[task.name]]
        if failed:  # it failed in another process meanwhile
            return StageState("FAILED", reason=error_of(failed[0]))
        other = self.other_writer(task)
        if other is not None:
            self._looked_at[task.name] = now
            return StageState("PENDING", reason=Reason(Cause.TAKEN, other))
        return None

    def put_off(self, task: Task) -> None:
        """Let a task wait for another process that started it first, and that may be between two stages now."""
        self._looked_at[task.name] = time.monotonic()
        other = self.other_writer(task) or "another process"
        self.states[task.name] = StageState("PENDING", reason=Reason(Cause.TAKEN, other))

    def other_writer(self, task: Task) -> str | None:
        """Describe the other process that works on a stage of the task; None if there is none."""
        for run in task.runs(self._root):
            holder = writer_of(run.path)
            if holder is not None and (holder.owner.pid, holder.owner.host) != (os.getpid(), socket.gethostname()):
                return str(holder.owner)
        return None

    def end(self, name: str, job: str, outcome: Outcome) -> None:
        """Set the state of a task whose processes have ended."""
        task = self.tasks[name]
        if outcome.code == 0:
            self.states[name] = StageState("COMPLETE", job)
        elif outcome.was_stopped:
            self.states[name] = StageState("PREEMPTED", job, Reason(Cause.SIGNAL))
        elif task.is_done(self._root):  # by another process, which was quicker
            self.states[name] = StageState("COMPLETE", job)
        elif outcome.code in (TAKEN_CODE, LOST_CODE) or self.other_writer(task):  # another process has the stage
            self.put_off(task)
        else:
            log = str(self._log(task)) if outcome.code == 1 else ""
            self.states[name] = StageState("FAILED", job, Reason(Cause.ERROR, detail=outcome.line, log=log))

    def _log(self, task: Task) -> Path:
        return self._logs / f"{task.name}.txt"

    def cancel(self, names: Collection[str]) -> None:
        """Stop these tasks, running ones after a checkpoint; wait until local processes have ended."""
        for name, state in self.states.items():
            if name in names and state.state == "PENDING":
                self.states[name] = StageState("CANCELLED", reason=Reason(Cause.CANCELLED))

    def close(self) -> None:
        """Release resources; local processes that still run are stopped after a checkpoint."""
        self.cancel(list(self.states))


class InlineLauncher(Launcher):
    """Runs one task after another in this process: each `poll` does one. `launch.ranks` has no effect."""

    name = "inline"
    at_once: int | None = 1

    def poll(self) -> dict[str, StageState]:
        """Run the next task to its end, and return the states of all. SystemExit, KeyboardInterrupt: a signal stopped
        the task, after a checkpoint if it was training."""
        states, pid = self.states, str(os.getpid())
        if (task := self.next_ready()) is None:
            return dict(states)
        from realm_lab.lab.worker import run_stage  # brings torch

        states[task.name] = StageState("RUNNING", pid)
        try:
            for stage in task.stages:
                run_stage(stage, task.run.system, task.run.params, task.run.seed, self._root)
        except (KeyboardInterrupt, SystemExit):
            states[task.name] = StageState("PREEMPTED", pid, Reason(Cause.SIGNAL))
            raise
        except Taken:
            self.put_off(task)
        except UserError as error:
            states[task.name] = StageState("FAILED", pid, Reason(Cause.ERROR, detail=" ".join(str(error).split())))
        except Exception as error:
            log = self._log(task)
            write_text(log, traceback.format_exc())
            line = f"{type(error).__name__}: {' '.join(str(error).split())}"
            states[task.name] = StageState("FAILED", pid, Reason(Cause.ERROR, detail=line, log=str(log)))
        else:
            states[task.name] = StageState("COMPLETE", pid)
        return dict(states)


def share_out(tasks: int, ranks: int, cores: int, gpus: int, processes: int = 0, threads: int = 0) -> tuple[int, int]:
    """Return (tasks at a time, cores of each process). As many tasks run as there are cores (or GPUs, if there are any)
    for their ranks, and all processes share the cores. `processes`, `threads`: the user's settings instead, or 0."""
    width = max(1, min(tasks, processes or (gpus or cores) // ranks))
    return width, threads or max(1, cores // (width * ranks))


class LocalLauncher(Launcher):
    """Runs a few tasks at a time, each in separate processes, and divides this machine's cores and GPUs among them."""

    name = "local"

    def __init__(self, settings: LauncherSettings, root: Path, study: str):
        super().__init__(settings, root, study)
        self.at_once = settings.local.processes
        self._running: dict[str, tuple[Workers, tuple[str, ...]]] = {}  # task -> its processes and GPUs
        self._width, self._threads = 1, 1  # tasks at a time, and cores of each process
        self._gpus: list[str] = []

    def submit(self, tasks: Sequence[Task]) -> None:
        """Accept tasks and divide the machine among all that are not finished."""
        super().submit(tasks)
        names = [name for name, state in self.states.items() if state.state in UNFINISHED]
        if not names:
            return
        launch = self.tasks[names[0]].run.params.launch  # the same for all tasks: no cell may change it
        self._gpus = visible_gpus(launch.device)
        self._width, self._threads = share_out(
            max(len(names), self._width if self._running else 0),
            launch.ranks,
            cores(),
            len(self._gpus),
            self.at_once or launch.processes,
            launch.threads,
        )

    def poll(self) -> dict[str, StageState]:
        """Collect ended tasks, start ready ones."""
        for name in [name for name, (workers, _) in self._running.items() if workers.has_ended]:
            self._end(name, self._running[name][0].reap())
        while len(self._running) < self._width and (task := self.next_ready()) is not None:
            taken = Counter(gpu for _, gpus in self._running.values() for gpu in gpus)
            gpus = tuple(sorted(self._gpus, key=lambda gpu: taken[gpu])[: task.ranks])
            job, log = task.job(self._root), self._log(task)
            workers = Workers(job, ranks=task.ranks, threads=self._threads, gpus=gpus or None, log=log)
            self._running[task.name] = workers, gpus
            self.states[task.name] = StageState("RUNNING", str(workers.pids[0]))
        return dict(self.states)

    def cancel(self, names: Collection[str]) -> None:
        """Drop waiting tasks, and wait until running ones have stopped after a checkpoint. A second signal
        ends the processes at once."""
        super().cancel(names)
        asked = {name: workers for name, (workers, _) in self._running.items() if name in names}
        for workers in asked.values():
            workers.terminate()
        try:
            for name, workers in asked.items():
                self._end(name, workers.wait())
        except BaseException:
            for workers, _ in self._running.values():
                workers.kill()
            raise

    def _end(self, name: str, outcome: Outcome) -> None:
        workers, _ = self._running.pop(name)
        for run in self.tasks[name].runs(self._root):
            workers.settle(run, outcome)
        self.end(name, str(workers.pids[0]), outcome)
