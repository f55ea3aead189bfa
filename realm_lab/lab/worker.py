"""Run one stage of one run in a separate process: `python -m realm_lab.lab.worker`.

The job is a line of JSON on standard input. A worker whose parent is gone stops, so that none is orphaned.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from realm_lab.engine.core.process import (
    RankLost,
    announce_failure,
    connect,
    disconnect,
    limit_threads,
    on_first_rank,
    pick_device,
    ranks,
)
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.identity import code_roots, plan_run
from realm_lab.engine.systems.registry import system_of
from realm_lab.errors import UserError
from realm_lab.records.code_record import CODE_LOCK, CodeStates, is_kept
from realm_lab.records.files import DiskFull, room_for
from realm_lab.records.launched import exit_on_signals
from realm_lab.records.lease import Taken, exclusive
from realm_lab.records.plugins import own_code
from realm_lab.records.run import Run, StageRun
from realm_lab.records.run_lease import TAKEN_CODE, writing


def run_stage(stage: str, system: str, params: Params, seed: int, root: Path) -> None:
    """Run one stage unless it is complete; a failure is written into its status before it is raised. If this process
    is one of several ranks, all of them call this with the same arguments. If the stage's work cannot be divided, the
    first rank does it and the others wait."""
    limit_threads(params.launch.threads)
    connect(pick_device(params.launch.device))
    owner = plan_run(params, system, seed)
    context = Context(owner, root, stage)
    run = context.stage(stage)
    run.at_end = lambda: CodeStates(context.runs).end(run.path)
    declared = system_of(system).stage(stage)
    work = own_code("system", declared.work)
    first = ranks().rank == 0
    with ExitStack() as claims:
        if not on_first_rank(lambda: _claim(owner, stage, run, claims)):
            return
        try:
            with room_for(run.path):
                if not declared.uses_ranks:
                    on_first_rank(lambda: work(context, run))
                else:
                    work(context, run)
            on_first_rank(lambda: None)  # all ranks wait until the first has written its files
        except (KeyboardInterrupt, SystemExit):
            if first:
                run.preempt()
                _end_code(context.runs, run)
            raise
        except BaseException as error:
            announce_failure(error)
            if first:
                line = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                with suppress(DiskFull):  # the stage stays as it is, and counts as interrupted
                    run.lose(str(error)) if isinstance(error, RankLost) else run.fail(line)
                _end_code(context.runs, run)
            disconnect(failed=True)
            raise


def _end_code(runs: Path, run: StageRun) -> None:
    """Complete code.json of a stage that stopped; a full disk or a broken record must not hide why it stopped."""
    with suppress(UserError):
        CodeStates(runs).end(run.path)


def _claim(owner: Run, stage: str, run: StageRun, claims: ExitStack) -> bool:
    """True if the stage must run; holds its lease until `claims` closes. Removes leftovers of a killed process and
    records the code. UserError: another process works on the stage, or other code computed its inputs or checkpoint."""
    if stage != "prepare" and run.is_complete():  # prepare is done again if the corpus is gone
        return False
    claims.enter_context(writing(run.path))
    if stage != "prepare" and run.is_complete():  # done by a process that this one waited for
        return False
    for folder in (run.path, run.path / "checkpoints"):
        for left in [*folder.glob(".*.tmp"), *folder.glob(".*.old")]:
            if not left.name.startswith(".config.yaml."):  # written without a lease, perhaps at this moment
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()
    _record_code(owner, stage, run.path.parents[1])
    return True


def _record_code(owner: Run, stage: str, runs: Path) -> None:
    """Write code.json of a stage that starts from nothing. UserError: the code has changed since this process started;
    or since the stage's checkpoint or a stage before it was computed, and `launch.other_code` is not `accept`."""
    states, roots = CodeStates(runs), code_roots(owner.params, owner.system)
    folders = owner.folders(runs, stage)
    states.check_unedited(roots[stage])
    accepts = owner.params.launch.other_code == "accept"
    with exclusive(runs / CODE_LOCK) if accepts else nullcontext():
        for found in states.of_run(folders, roots):
            if found.changes and accepts:
                states.accept(found.stage, folders, roots[found.stage])
            elif found.changes:
                raise UserError(
                    f"the code has changed since this was computed ({', '.join(found.changes)})",
                    "sweep again, with --fresh to compute it again or --accept if the change is harmless",
                    path=found.folder,
                )
    if not is_kept(stage, folders[stage]):
        states.write(stage, folders, roots[stage])


def do(job: Mapping[str, Any]) -> None:
    """Run the stages of a job, which is plain data, one after another."""
    params = Params(**job["params"])
    for stage in job["stages"]:
        run_stage(stage, job["system"], params, job["seed"], Path(job["root"]))


def main() -> int:
    """Do a job read from standard input. A UserError is printed as one line; exit code 2, or TAKEN_CODE for Taken."""
    job = json.loads(sys.stdin.readline())
    exit_on_signals()
    gc.freeze()  # keep the imports out of garbage collection, which would take .8 s each time
    threading.Thread(target=_stop_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        do(job)
        disconnect()
    except UserError as error:
        print(error, file=sys.stderr)
        return TAKEN_CODE if isinstance(error, Taken) else 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as stop:
        print("stopped by a signal; run again to resume", file=sys.stderr)
        return int(stop.code or 0)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _stop_with_parent(parent: int) -> None:
    """Wait until standard input is closed and `parent` is gone, then send this process SIGTERM."""
    sys.stdin.read()
    while os.getppid() == parent:  # the caller closed the pipe, but is alive
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
