"""One stage of one run, here or as a process of its own (`python -m realm_lab.stages.worker < job.json`)."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from realm_lab.config import Params
from realm_lab.core.process import limit_threads
from realm_lab.errors import UserError
from realm_lab.runs import plan_run
from realm_lab.stages.evaluate import evaluate
from realm_lab.stages.prepare import prepare
from realm_lab.stages.train import finetune, pretrain, warm_start
from realm_lab.systems.context import Context

STAGES = {
    "prepare": prepare,
    "warm_start": warm_start,
    "pretrain": pretrain,
    "finetune": finetune,
    "evaluate": evaluate,
}


def run_stage(stage: str, label: str, params: Params, seed: int, root: Path) -> None:
    """Run one stage unless it is complete; a failure is written into its status before it is raised."""
    limit_threads(params.launch.threads)
    plan = plan_run(params, label, seed)
    context = Context(params, plan, root)
    run = context.stage(stage)
    if stage != "prepare" and run.is_complete():  # prepare is asked for when its folder is gone
        return
    try:
        STAGES[stage](context, run)
    except BaseException as error:
        run.fail(f"{type(error).__name__}: {error}")
        raise


def main() -> int:
    """Read a job from standard input; a UserError is one line and code 2."""
    job = json.load(sys.stdin)
    try:
        run_stage(job["stage"], job["label"], Params(**job["params"]), job["seed"], Path(job["root"]))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
