"""Tasks as SLURM jobs, through submitit: an array for each wave of tasks, the next wave after the one before.

A wave is what may run at once. Each job does one task and, when SLURM stops it, comes back and goes on
(slurm_job.py). `array_parallelism` bounds how many run at once. submitit leaves its own files in
runs/studies/<name>/slurm/: logs, the submitted scripts, and pickles of plain data, which only its jobs read.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.errors import UserError
from realm_lab.runner.frozen_code import freeze_code
from realm_lab.runner.jobs import JobState, SubmittedJob, record_jobs, recorded_jobs
from realm_lab.runner.slurm_job import NOT_RUN, run_job
from realm_lab.runner.slurm_options import read_options, submitit_parameters, tasks_per_node
from realm_lab.runner.slurm_queue import PENDING, USUAL_REASONS, Queued, cancel, look_up
from realm_lab.runner.workers import SHARED_STAGES
from realm_lab.tracking.run_dir import KEY_LENGTH, StageRun, Status
from realm_lab.tracking.study_record import study_folder

if TYPE_CHECKING:
    from realm_lab.runner.tasks import Task

MOST_ELEMENTS = 500  # of an array; SLURM's own MaxArraySize is 1001 unless configured
LAST_WARNING_SECONDS = 45.0  # before the time limit a job stops by itself, or half of signal_delay_s
NEVER = 1_000_000  # of submitit's own count of time-outs, which would end a job


class SlurmLauncher:
    """Submits the tasks of a study, and says from anywhere how its jobs stand."""

    name = "slurm"
    detached = True

    def __init__(self, settings: Mapping[str, Any], root: Path, study_name: str):
        self._options = read_options(settings)
        self._root, self._study = Path(root).absolute(), study_name
        self._folder = study_folder(self._root / "runs", study_name)

    @property
    def job_name(self) -> str:
        """What squeue shows."""
        return f"realm_lab-{self._study}"

    def submit(self, tasks: Sequence[Task]) -> None:
        """One array for each wave, recorded in jobs.jsonl as soon as SLURM has it.

        Raises:
            UserError: no SLURM here, or it refuses; what it took before stands.
        """
        if shutil.which("sbatch") is None:
            raise UserError("launcher 'slurm': no sbatch on this machine; submit from one that has it, or use local")
        for task in tasks:
            tasks_per_node(self._options, ranks_of(task))
        code = str(freeze_code(self._folder / "code"))
        jobs = {job.task: job.job for job in self._latest()}
        known = look_up(set(jobs.values()), self.job_name)
        live = {task: job for task, job in jobs.items() if job in known and known[job].is_live}
        before: set[str] = set()
        for wave in waves(tasks):
            needed = {live[name].split("_")[0] for task in wave for name in task.after if name in live}
            for array in arrays(wave):
                ids = self._submit_array(array, code, sorted(before | needed, key=int))
                record_jobs(
                    self._root,
                    self._study,
                    self.name,
                    {task.name: (task.keys, job) for task, job in zip(array, ids, strict=True)},
                )
                live |= {task.name: job for task, job in zip(array, ids, strict=True)}
                # One after the other, so that array_parallelism bounds them together.
                before = {ids[0].split("_")[0]}

    def poll(self) -> dict[str, JobState]:
        """How the last job of each task stands, of this or an earlier submission."""
        latest = self._latest()
        known = look_up({job.job for job in latest}, self.job_name)
        return {job.task: self._state(job, known.get(job.job)) for job in latest}

    def cancel(self, names: Collection[str]) -> None:
        """scancel for exactly these; running ones write a checkpoint, and none comes back."""
        jobs = {job.job for job in self._latest() if job.task in names}
        cancel(sorted(job for job, queued in look_up(jobs, self.job_name).items() if queued.is_live))

    def close(self) -> None:
        """Nothing is held here."""

    def _latest(self) -> list[SubmittedJob]:
        """The last job of each task."""
        jobs = {job.task: job for job in recorded_jobs(self._root, self._study) if job.launcher == self.name}
        return list(jobs.values())

    def _submit_array(self, tasks: Sequence[Task], code: str, after: Sequence[str]) -> list[str]:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        options = self._options
        parameters = submitit_parameters(
            options,
            ranks=ranks_of(tasks[0]),
            job_name=self.job_name,
            code=code,
            dependency=f"afterany:{':'.join(after)}" if after else None,
        )
        executor = SlurmExecutor(self._folder / "slurm", max_num_timeout=NEVER, python=options.python)
        executor.update_parameters(**parameters)
        try:
            with executor.batch():
                jobs = [executor.submit(run_job, self._job(task, code)) for task in tasks]
        except (FailedJobError, FailedSubmissionError) as error:
            lines = [line for line in str(error).splitlines() if "error:" in line] or str(error).splitlines()
            raise UserError(f"{lines[0]}; change launcher.slurm of the study") from None
        return [str(job.job_id) for job in jobs]

    def _job(self, task: Task, code: str) -> dict[str, Any]:
        """What slurm_job.run_job is given."""
        options, job = self._options, task.job(self._root)
        job["params"]["launch"]["threads"] = job["params"]["launch"]["threads"] or options.cpus_per_task
        warning = min(LAST_WARNING_SECONDS, options.signal_delay_s / 2)
        return job | {
            "keys": dict(task.keys),
            "root": str(self._root),
            "code": code,
            "requeue": options.requeue,
            "stop_after_seconds": options.timeout_min * 60 - warning,
        }

    def _state(self, job: SubmittedJob, queued: Queued | None) -> JobState:
        """SLURM says whether a job waits or runs; how one has ended is in the files of its stages."""
        if queued is not None and queued.is_live:
            if queued.state not in PENDING:
                return JobState("running", job.job)
            unusual = queued.reason not in USUAL_REASONS
            why = f"SLURM: {queued.reason}" if unusual else None
            return JobState("waiting" if queued.reason == "Dependency" else "pending", job.job, why)
        statuses = self._statuses(job)
        if all(status.state == "COMPLETE" for status in statuses.values()):
            return JobState("ended", job.job)
        if queued is not None and queued.state == "CANCELLED":
            return JobState("cancelled", job.job)
        for status in statuses.values():
            if status.state == "FAILED":
                return JobState("failed", job.job, (status.error or "unknown error").removeprefix("UserError: "))
            if status.state == "PREEMPTED":
                return JobState("preempted", job.job)
        said = self._last_words(job.job) or f"SLURM: {queued.state if queued else 'the job is gone'}"
        if said.startswith(NOT_RUN) and " is FAILED" not in said:  # what it needs was stopped, and may go on
            return JobState("cancelled", job.job, said)
        return JobState("failed", job.job, said)

    def _statuses(self, job: SubmittedJob) -> dict[str, Status]:
        stages = self._root / "runs" / "stages"
        return {
            stage: StageRun(stages / f"{stage}-{key[:KEY_LENGTH]}", stage).status() for stage, key in job.keys.items()
        }

    def _last_words(self, job: str) -> str | None:
        """The last line of the first rank's log that is its own."""
        log = self._folder / "slurm" / f"{job}_0_log.err"
        if not log.exists():
            return None
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line for line in lines if line.strip() and not line.startswith(("srun:", "slurmstepd"))]
        return said[-1].strip() if said else None


def ranks_of(task: Task) -> int:
    """Processes of a job: several only where a stage shares its batches out."""
    return task.params.launch.ranks if set(task.stages) & set(SHARED_STAGES) else 1


def waves(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks by what they wait for: first those that wait for none of the others, then those that wait for the first.

    `tasks` are in topological order.
    """
    depth: dict[str, int] = {}
    for task in tasks:
        depth[task.name] = 1 + max((depth[name] for name in task.after if name in depth), default=-1)
    last = max(depth.values(), default=-1)
    return [[task for task in tasks if depth[task.name] == number] for number in range(last + 1)]


def arrays(wave: Sequence[Task]) -> Iterator[list[Task]]:
    """A wave in arrays: tasks of equally many processes, at most MOST_ELEMENTS."""
    for ranks in sorted({ranks_of(task) for task in wave}):
        same = [task for task in wave if ranks_of(task) == ranks]
        for start in range(0, len(same), MOST_ELEMENTS):
            yield same[start : start + MOST_ELEMENTS]
