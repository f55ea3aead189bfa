"""Run tasks as SLURM jobs, through submitit, in job arrays that run one after the other.

A wave is a set of tasks that may run at once: one array, or several if its jobs differ in ranks or are many. Each
job does one task and, when SLURM stops it, is requeued and resumes (slurm_job.py). `array_parallelism` is the most jobs
at once. submitit leaves files in runs/studies/<name>/slurm/: logs, the submitted scripts, and pickles of plain data,
which only its jobs read.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import realm_lab
from realm_lab.errors import UserError, needs
from realm_lab.lab.launchers import Launcher, LauncherSettings, PartlySubmitted
from realm_lab.lab.slurm_job import run_job
from realm_lab.lab.slurm_queue import (
    ASK_FOR_IT,
    ENDS,
    LIVE,
    UNREACHED,
    SubmittedJob,
    cancel,
    job_states,
    jobs_of_stages,
    latest_jobs,
    look_up,
    record_jobs,
    run_program,
)
from realm_lab.lab.tasks import Task
from realm_lab.records.environment import SOURCE, source
from realm_lab.records.files import atomic_directory, digest, digest_file, write_json
from realm_lab.records.run import KEY_LENGTH
from realm_lab.records.state import UNFINISHED, Cause, Reason, StageState, at_work
from realm_lab.records.study import study_folder

PACKAGE = Path(realm_lab.__file__).resolve().parent
MOST_ELEMENTS = 500  # of an array; SLURM's own MaxArraySize is 1001 unless configured
NO_SBATCH = "no sbatch on this machine; submit from one that has it"
# Settings that submitit turns into something other than an option with that name.
NO_FLAGS = {"setup", "srun_args", "additional_parameters", "signal_delay_s", "array_parallelism"}
DEFAULT = "as the cluster has it"
NEVER = 1_000_000  # most time-outs of a job; after more, submitit would end it


class SlurmLauncher(Launcher):
    """Submits the tasks of a study to SLURM. Any process can read the state of the jobs and cancel them."""

    name = "slurm"
    detached = True

    def __init__(self, settings: LauncherSettings, root: Path, study: str):
        super().__init__(settings, Path(root).absolute(), study)
        self._options, self._study = settings.slurm, study
        self.at_once = settings.slurm.array_parallelism
        self._folder = study_folder(self._root / "runs", study)

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse if SLURM or submitit is missing, or if ranks do not fit on the nodes."""
        if shutil.which("sbatch") is None:
            raise UserError(f"launcher 'slurm': {NO_SBATCH}, or use local")
        with needs("launcher 'slurm'", "submitit", "platform"):
            import submitit  # noqa: F401
        for task in tasks:
            self._shape(task.ranks)

    def preview(self, tasks: Sequence[Task]) -> Iterator[str]:
        """Describe the resources of each job, and the arrays; then ask sbatch, if it is here, whether it would accept
        such jobs. UserError: ranks that do not fit, or sbatch's refusal."""
        options, planned = self._options, [array for wave in waves(tasks) for array in arrays(wave)]
        sizes = [len(array) for array in planned]
        wanted = {
            "partition": options.partition,
            "account": options.account,
            "GPUs per node": options.gpus_per_node or options.additional.get("gres", 0),
            "memory": options.mem_gb and f"{options.mem_gb:g} GB",
            "time limit": f"{options.timeout_min} min",
        }
        said = [f"{name} {DEFAULT if value is None else value}" for name, value in wanted.items()]
        lines = [f"SLURM: {', '.join(said)}"]
        if sizes:
            in_arrays = f"{len(sizes)} arrays, one after the other ({' + '.join(map(str, sizes))})"
            lines.append(f"{sum(sizes)} jobs in {in_arrays}, at most {self.at_once} at a time")
        flags = [tuple(self._flags(array)) for array in planned]
        for number, one in enumerate(flags):
            before = f" --dependency=afterany:ARRAY{number}" if number else ""
            lines.append(f"ARRAY{number + 1}: sbatch {' '.join(map(quote, one))}{before}")
        return itertools.chain(lines, _answers(flags))

    def free(self, tasks: Sequence[Task]) -> tuple[list[Task], list[str]]:
        """Leave out each task that has a job or that a process works on, and each task that needs such a task, unless a
        job completes the needed one."""
        jobs = jobs_of_stages(self._root, must_answer=True)
        free, left, blocking = list[Task](), list[str](), set[str]()
        for task in tasks:
            found = [jobs[run.path.name] for run in task.runs(self._root) if run.path.name in jobs]
            live = next((job for job in found if job.state in UNFINISHED), None)
            holders = (at_work(run.path, jobs.get(run.path.name)) for run in task.runs(self._root))
            holder = next((holder for holder in holders if holder is not None), None)
            if live:
                left.append(f"{task.title}: {live.state.lower()} as job {live.job}")
                if task.name not in jobs or jobs[task.name].state not in UNFINISHED:  # no job does its last stage
                    blocking.add(task.name)
            elif holder or blocking & set(task.after):
                why = Reason(Cause.TAKEN, str(holder.owner)) if holder else Reason(Cause.WAITS, "one of these")
                left.append(f"{task.title}: {why}")
                blocking.add(task.name)
            else:
                free.append(task)
        return free, left

    def submit(self, tasks: Sequence[Task]) -> None:
        """Submit the arrays of each wave; jobs.jsonl records each array once SLURM has it. UserError: no SLURM here, or
        it refuses; PartlySubmitted if it accepted arrays before, which stay submitted."""
        self.check(tasks)
        code = str(freeze_code(self._folder / "code"))
        # jobs of all studies by the folder of a stage; a task has the name of the folder of its last stage
        jobs = jobs_of_stages(self._root, must_answer=True)
        live = {folder: state.job for folder, state in jobs.items() if state.state in UNFINISHED}
        before: set[str] = set()
        for wave in waves(tasks):
            needed = {live[name].split("_")[0] for task in wave for name in task.after if name in live}
            for array in arrays(wave):
                try:
                    ids = self._submit_array(array, code, sorted(before | needed, key=int))
                except UserError as error:
                    raise PartlySubmitted(error) if before else error from None
                submitted = [SubmittedJob(task.name, task.keys, job) for task, job in zip(array, ids, strict=True)]
                record_jobs(self._root, self._study, submitted)
                live |= {job.task: job.job for job in submitted}
                # Each array waits for the one before, so that array_parallelism bounds them together.
                before = {ids[0].split("_")[0]}

    def poll(self) -> dict[str, StageState]:
        """Return the state of the last job of each task, of this or an earlier submission."""
        return job_states(self._root, self._study, latest_jobs(self._root, self._study))

    def cancel(self, names: Collection[str]) -> None:
        """Cancel the jobs of exactly these tasks; running jobs write a checkpoint, and no job is requeued."""
        jobs = {job.job for job in latest_jobs(self._root, self._study) if job.task in names}
        cancel(sorted(job for job, (state, _) in look_up(jobs).items() if state in LIVE))

    def close(self) -> None:
        """Do nothing, since the jobs run without this process."""

    def _submit_array(self, tasks: Sequence[Task], code: str, after: Sequence[str]) -> list[str]:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = SlurmExecutor(self._folder / "slurm", max_num_timeout=NEVER, python=self._options.python)
        executor.update_parameters(
            **self._resources(tasks[0].ranks, code), dependency=f"afterany:{':'.join(after)}" if after else None
        )
        try:
            with executor.batch():
                jobs = [executor.submit(run_job, self._job(task)) for task in tasks]
        except (FailedJobError, FailedSubmissionError) as error:
            raise refusal(str(error)) from None
        return [str(job.job_id) for job in jobs]

    def _shape(self, ranks: int) -> tuple[int, int]:
        """Return (nodes, processes on each) of a job of `ranks` processes; a single process is on one node."""
        nodes = 1 if ranks == 1 else self._options.nodes
        if ranks % nodes:
            raise UserError(
                f"launcher.slurm.nodes: {ranks} processes (parameter 'launch.ranks') are not the same number on each "
                f"of {nodes} machines; choose a number that divides them"
            )
        return nodes, ranks // nodes

    def _resources(self, ranks: int, code: str) -> dict[str, Any]:
        """Return submitit's parameters for jobs of `ranks` processes that use the frozen code in folder `code`."""
        options = self._options
        nodes, tasks = self._shape(ranks)
        same = ("cpus_per_task", "partition", "account", "qos", "constraint", "signal_delay_s", "array_parallelism")
        environment = [
            f'export PYTHONPATH={quote(code)}"${{PYTHONPATH:+:$PYTHONPATH}}"',
            # PYTHONSAFEPATH: `python -m` does not look into the folder of submission, where the code may have changed.
            "export PYTHONSAFEPATH=1 TOKENIZERS_PARALLELISM=false TQDM_DISABLE=1",
            f"export OMP_NUM_THREADS={options.cpus_per_task}",
            "unset RANK WORLD_SIZE",
            # the address at which the ranks of a job connect
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
        ]
        return {
            **{name: getattr(options, name) for name in same},
            "job_name": f"realm_lab-{self._study}",
            "nodes": nodes,
            "ntasks_per_node": tasks,
            "time": options.timeout_min,
            "wckey": None,  # submitit would send a default one, which some clusters refuse
            "setup": [*environment, *options.setup],
            # srun does not take --cpus-per-task from sbatch since SLURM 22.05.
            "srun_args": [f"--cpus-per-task={options.cpus_per_task}"],
            "additional_parameters": {
                "requeue" if options.requeue else "no-requeue": True,
                **{name.lstrip("-"): value for name, value in options.additional.items() if value is not False},
            },
            **({"gpus_per_node": options.gpus_per_node} if options.gpus_per_node else {}),
            **({"mem": f"{round(options.mem_gb * 1024)}MB"} if options.mem_gb else {}),
        }

    def _flags(self, array: Sequence[Task]) -> list[str]:
        """Return the options of sbatch for a job array of these tasks, without its dependency."""
        given = self._resources(array[0].ranks, "")
        given = {key: value for key, value in given.items() if key not in NO_FLAGS} | given["additional_parameters"]
        named = {key.replace("_", "-"): value for key, value in given.items() if value is not None}
        if len(array) > 1:
            named |= {"array": f"0-{len(array) - 1}%{min(len(array), self._options.array_parallelism)}"}
        named |= {"signal": f"USR2@{self._options.signal_delay_s}"}
        return [f"--{name}" if value is True else f"--{name}={value}" for name, value in named.items()]

    def _job(self, task: Task) -> dict[str, Any]:
        options, job = self._options, task.job(self._root)
        job["params"]["launch"]["threads"] = job["params"]["launch"]["threads"] or options.cpus_per_task
        more = {"keys": dict(task.keys), "root": str(self._root), "requeue": options.requeue}
        return job | more | {"ends": str(self._folder / ENDS)}


def _answers(flags: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Ask sbatch if it would accept jobs with these options; yield a warning if sbatch is missing. UserError: it would
    refuse them."""
    if shutil.which("sbatch") is None:
        yield f"WARNING: {NO_SBATCH}"
        return
    for one in sorted(set(flags)):
        code, answer = run_program("sbatch", "--test-only", *one, "--wrap=true")
        if code and re.search("error:|Invalid", answer):
            raise refusal(answer)


def refusal(said: str) -> UserError:
    """Turn sbatch's refusal into one line with the remedy."""
    lines = [line for line in said.splitlines() if "error:" in line] or said.splitlines() or ["sbatch: no answer"]
    unreached = [line for line in lines if UNREACHED.search(line)]
    if unreached:
        return UserError(f"{unreached[-1]}: no controller of SLURM answers; {ASK_FOR_IT}")
    return UserError(f"{lines[0]}; change launcher.slurm of the study, the profile or --slurm")


def freeze_code(folder: Path) -> Path:
    """Copy the package to `folder`/<digest>/realm_lab, with its commit and changes, unless it is there, so that later
    edits do not change waiting jobs; returns the folder for PYTHONPATH."""
    files = [path for path in sorted(PACKAGE.rglob("*.*")) if path.is_file() and "__pycache__" not in path.parts]
    code = source()
    name = digest([code, {path.relative_to(PACKAGE).as_posix(): digest_file(path) for path in files}])[:KEY_LENGTH]
    target = folder.absolute() / name
    if not target.exists():
        with atomic_directory(target) as scratch:
            shutil.copytree(PACKAGE, scratch / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
            write_json(scratch / SOURCE, code)
    return target


def waves(tasks: Sequence[Task]) -> list[list[Task]]:
    """Group tasks by dependency: those of a wave need only tasks of the waves before it. `tasks` are in topological
    order."""
    depth: dict[str, int] = {}
    for task in tasks:
        depth[task.name] = 1 + max((depth[name] for name in task.after if name in depth), default=-1)
    last = max(depth.values(), default=-1)
    return [[task for task in tasks if depth[task.name] == number] for number in range(last + 1)]


def arrays(wave: Sequence[Task]) -> Iterator[list[Task]]:
    """Split a wave into arrays: tasks with the same number of processes, at most MOST_ELEMENTS per array."""
    for ranks in sorted({task.ranks for task in wave}):
        same = [task for task in wave if task.ranks == ranks]
        for start in range(0, len(same), MOST_ELEMENTS):
            yield same[start : start + MOST_ELEMENTS]
