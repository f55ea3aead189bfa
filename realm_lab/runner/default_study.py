"""The study `default` as params.yaml has it now, for whoever reads studies and trains nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from realm_lab.errors import UserError
from realm_lab.tracking.study_record import DEFAULT, study_folder


def settle_default(root: Path) -> None:
    """Record the study `default` where runs/ was deleted and DVC has put the rest back, and where an experiment had
    changed params.yaml, which is now as it was: its runs are known then."""
    runs, parameters = root / "runs", root / "params.yaml"
    record = study_folder(runs, DEFAULT) / "study.json"
    is_deleted = not record.exists() and (root / "data" / "records").exists()
    is_older = record.exists() and parameters.exists() and parameters.stat().st_mtime > record.stat().st_mtime
    if not is_deleted and not is_older:
        return
    from realm_lab.params.load import load  # these take half a second to import
    from realm_lab.runner.pipeline import restore
    from realm_lab.runner.plan import default_plan, record_study

    if is_deleted:
        restore(default_plan(load(parameters)), root)
        return
    with suppress(UserError):  # of a file that is being edited
        plan = default_plan(load(parameters))
        if all((runs / run.name / "run.json").exists() for run in plan.runs):
            record_study(plan, root)
    os.utime(record)
