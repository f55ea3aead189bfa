"""Update the record of study `default` for commands that only read studies."""

from __future__ import annotations

import functools
from pathlib import Path

from realm_lab.records.study import Studies, StudyRecord


def studies_of(root: Path) -> Studies:
    """Return the studies of a project. `default` is planned from params.yaml whenever it is read, and nothing is
    written: the runs in its study.json may belong to an experiment."""
    root = Path(root)
    has_parameters = (root / "params.yaml").exists()
    return Studies(root / "runs", functools.partial(_planned, root) if has_parameters else None)


def _planned(root: Path) -> StudyRecord:
    from realm_lab.params.load import load  # these take half a second to import
    from realm_lab.runner.plan import default_plan, study_record

    return study_record(default_plan(load(root / "params.yaml")), root)
