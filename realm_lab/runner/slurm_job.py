"""What runs inside a SLURM job: the stages of one task, and what happens when SLURM wants the job to stop.

SLURM sends SIGUSR2 before a time limit and before a preemption, and SIGTERM when it ends the job (cancelled, requeued,
preempted, out of time; SIGKILL follows). Either is noted, all ranks stop after the same step, and a checkpoint is
written. Then the first rank puts the job back into the queue, but only while SLURM still calls it RUNNING: a job that
SLURM is ending is COMPLETING already, and what becomes of it is decided. The same job then starts again and goes on.
submitit's own handler, which would requeue in the middle of a step, is replaced.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from realm_lab.errors import UserError
from realm_lab.runner.frozen_code import assert_frozen
from realm_lab.runner.slurm_queue import NOT_RUN, run_program
from realm_lab.tracking.run_dir import StageRun, stage_folder

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
STOP_CODES = tuple(128 + number for number in STOP_SIGNALS)
ASK_SECONDS = 60.0
MOST_IDLE_RESTARTS = 5  # a job that was started so often and got no further this time is not started again


def run_job(job: dict[str, Any]) -> None:
    """Do the stages of one task; every rank calls this. `job` is plain data:

    what the worker is told (stages, system, seed, params, root), `keys` of those stages, `code` (the folder it must
    run), `requeue`, and `stop_after_seconds` (when to stop without having been told).
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _leave)
    clock = threading.Timer(job["stop_after_seconds"], os.kill, (os.getpid(), signal.SIGUSR2))
    clock.daemon = True
    clock.start()
    before = _progress(job)
    try:
        _work(job)
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(2) from None
    except SystemExit as stop:
        if stop.code in STOP_CODES:
            _stopped(job, before)
        raise
    finally:
        clock.cancel()


def _leave(number: int, frame: FrameType | None) -> None:
    """Outside of the training loop, which notes signals itself, there is nothing to save."""
    raise SystemExit(128 + number)


def _work(job: Mapping[str, Any]) -> None:
    from realm_lab.core.process import disconnect
    from realm_lab.params.parameters import Params
    from realm_lab.runner.worker import run_stage
    from realm_lab.systems.identity import corpus_folder, open_stage, plan_run

    assert_frozen(job["code"])
    root, system, stages = Path(job["root"]), job["system"], job["stages"]
    params = Params(**job["params"])
    plan = plan_run(params, system, job["seed"])
    for stage in stages:
        if plan.key(stage) != job["keys"][stage]:
            raise UserError(f"{stage} {system}: a file that its parameters name has changed since; sweep again")
    if stages[0] != "prepare":
        if not (corpus_folder(root, plan) / "manifest.json").exists():
            raise UserError(f"{NOT_RUN}{stages[0]} needs the corpus, which is not prepared; sweep again")
        for stage in list(plan.stages)[: list(plan.stages).index(stages[0])]:
            run = open_stage(root / "runs", plan, stage, params)
            if not run.is_complete():
                state = run.status().state
                raise UserError(f"{NOT_RUN}{stages[0]} needs {run.path.name}, which is {state}; sweep again")
    try:
        for stage in stages:
            run_stage(stage, system, params, job["seed"], root)
    finally:
        disconnect(failed=sys.exc_info()[0] is not None)


def _stopped(job: Mapping[str, Any], before: Sequence[int]) -> None:
    """The first rank puts the job back into the queue, or says why not."""
    for number in STOP_SIGNALS:  # the requeue ends this job, and must not end the program that asks for it
        signal.signal(number, signal.SIG_IGN)
    if int(os.environ.get("SLURM_PROCID", "0")) != 0:
        return
    name, restarts = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    if "SLURM_ARRAY_JOB_ID" in os.environ:  # 17_3: SLURM_JOB_ID of one element is that of the whole array
        name = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    state = _ask("squeue", "--noheader", "--jobs", name, "--format=%T")
    if not job["requeue"]:
        said = "not queued again (launcher.slurm.requeue is false); sweep again to go on"
    elif state != "RUNNING":
        said = f"SLURM ends it ({state or 'it does not say why'})"
    elif restarts >= MOST_IDLE_RESTARTS and _progress(job) == before:
        said = f"not queued again: no step was done since start {restarts}; raise timeout_min, then sweep again"
    else:
        failure = _ask("scontrol", "requeue", name)
        said = f"not queued again ({failure}); sweep again to go on" if failure else "queued again"
    print(f"job {name} was told to stop: {said}", file=sys.stderr, flush=True)


def _ask(*command: str) -> str:
    """What one of SLURM's programs says, in one line."""
    return " ".join(run_program(*command, seconds=ASK_SECONDS)[1].split())


def _progress(job: Mapping[str, Any]) -> list[int]:
    """Steps of each stage that are in its status; -1 for a complete one."""
    steps = []
    for stage in job["stages"]:
        status = StageRun(stage_folder(Path(job["root"]) / "runs", stage, job["keys"][stage]), stage).status()
        steps.append(-1 if status.state == "COMPLETE" else status.step)
    return steps
