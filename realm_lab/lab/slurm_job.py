"""The code inside a SLURM job: it runs the stages of one task, and handles SLURM's signals to stop.

SLURM sends SIGUSR2 before a time limit and before a preemption, and SIGTERM when it ends the job (cancelled, requeued,
preempted, out of time; SIGKILL follows). Either is noted, all ranks stop after the same step, and a checkpoint is
written. Then the first rank requeues the job, but only while SLURM still calls it RUNNING: a job that
SLURM is ending is COMPLETING already, and is not requeued. The requeued job starts again and resumes.
submitit's handler, which would requeue in the middle of a step, is replaced.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError
from realm_lab.lab.slurm_queue import run_program
from realm_lab.records.files import wait_until, write_json
from realm_lab.records.launched import STOP_SIGNALS, exit_on_signals, slurm_job
from realm_lab.records.run import State
from realm_lab.records.state import Cause, Reason, StageStates

STOP_CODES = tuple(128 + number for number in STOP_SIGNALS)
MOST_RESTARTS = 100  # of a job, which might otherwise be requeued for ever without a step done


def run_job(job: dict[str, Any]) -> None:
    """Run the stages of one task; every rank calls this.

    `job` is plain data: the worker's arguments (stages, system, seed, params, root), the `keys` of these stages,
    `requeue`, and `ends`, a folder for the reason if the job ends without doing a stage.
    """
    exit_on_signals()
    end = Path(job["ends"]) / f"{slurm_job()}.json"
    is_first = int(os.environ.get("SLURM_PROCID", "0")) == 0
    if is_first:
        end.unlink(missing_ok=True)  # of an earlier start
    try:
        why = _what_is_missing(job)
        if why is None:
            from realm_lab.engine.core.process import disconnect
            from realm_lab.lab.worker import do

            try:
                do(job)
            finally:
                disconnect(failed=sys.exc_info()[0] is not None)
    except UserError as error:
        why = Reason(Cause.ERROR, detail=str(error))
    except SystemExit as stop:
        if stop.code in STOP_CODES:
            _stopped(is_queued_again=job["requeue"])
        raise
    if why is not None:
        if is_first:
            write_json(end, asdict(why))
        print(why, file=sys.stderr, flush=True)
        raise SystemExit(2)


def _what_is_missing(job: Mapping[str, Any]) -> Reason | None:
    """Return the reason why the stages cannot be run: a file has changed, or a stage before them is not complete."""
    from realm_lab.engine.params.parameters import Params
    from realm_lab.engine.systems.identity import plan_run

    plan = plan_run(Params(**job["params"]), job["system"], job["seed"])
    for stage in job["stages"]:
        if plan.key(stage) != job["keys"][stage]:
            changed = f"{stage} {job['system']}: a file that its parameters name has changed since; sweep again"
            return Reason(Cause.ERROR, detail=changed)
    way = ["prepare", *plan.stages]
    for stage in way[: way.index(job["stages"][0])]:
        state = _state_in_the_end(Path(job["root"]) / "runs", stage, plan.key(stage))
        if state != "COMPLETE":
            return Reason(Cause.NEEDED, stage, state)
    return None


def _state_in_the_end(runs: Path, stage: str, key: str) -> State:
    """Return the state of a stage. If its files do not show yet that its job has ended, wait up to VISIBLE_SECONDS."""

    def now() -> State:
        return StageStates(runs).stage(stage, key).state

    wait_until(lambda: now() not in ("PENDING", "RUNNING"))
    return now()


def _stopped(*, is_queued_again: bool) -> None:
    """On the first rank, requeue the job, or explain why not."""
    for number in STOP_SIGNALS:  # the requeue ends this job, and must not end the program that asks for it
        signal.signal(number, signal.SIG_IGN)
    if int(os.environ.get("SLURM_PROCID", "0")) != 0:
        return
    name, restarts = slurm_job(), int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    _, state = run_program("squeue", "--noheader", "--jobs", name, "--format=%T")
    if not is_queued_again:
        said = "not queued again (launcher.slurm.requeue is false); sweep again to go on"
    elif state.strip() != "RUNNING":
        said = f"SLURM ends it ({state.strip() or 'it does not say why'})"
    elif restarts >= MOST_RESTARTS:
        said = f"not queued again after {restarts} times; if it gets no further raise timeout_min, then sweep again"
    else:
        failed, why = run_program("scontrol", "requeue", name)
        said = f"not queued again ({' '.join(why.split())}); sweep again to go on" if failed else "queued again"
    print(f"job {name} was asked to stop: {said}", file=sys.stderr, flush=True)
