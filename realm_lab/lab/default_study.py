"""Update the record of study `default` for commands that only read studies."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

from realm_lab.records.study import Studies, StudyRecord


def studies_of(root: Path) -> Studies:
    """Return the studies of a project. `default` is planned from params.yaml whenever it is read, and nothing is
    written: the runs in its study.json may belong to an experiment. Without the engine it is as it ran last."""
    root = Path(root)
    can_plan = (root / "params.yaml").exists() and find_spec("torch") is not None
    return Studies(root / "runs", functools.partial(_planned, root) if can_plan else None)


def _planned(root: Path) -> StudyRecord:
    from realm_lab.engine.params.load import load  # these take half a second to import
    from realm_lab.lab.plan import default_plan

    plan = default_plan(load(root / "params.yaml"))
    return plan.record(plan.runs)
