"""The state of a run, from the column of states: words of W&B, MLflow, Optuna, SLURM, Ray, Sacred, DVC and others."""

from __future__ import annotations

import re

from realm_lab.errors import UserError
from realm_lab.evidence.verdict.tables import Row, Rows

COLUMN = re.compile(r"(?:(?:run|job|trial|experiment)[ _.-]?)?(?:status|state)", re.IGNORECASE)
BLANK = ("", "nan", "none", "null", "<na>")
DONE = frozenset("finished complete completed done ok succeeded success successful passed terminated 0 0.0".split())
NOT_DONE = frozenset(
    "failed fail failure error errored crashed crash killed kill cancelled canceled aborted interrupted stopped died "
    "timeout preempted preempting pruned lost diverged running pending scheduled queued waiting paused suspended "
    "requeued deadline started active".split()
) | {"in progress", "timed out", "out of memory", "oom", "node fail", "boot fail", "not started", "stale"}


def check_states(rows: Rows, column: str) -> None:
    """Raise a UserError if the column of states has a word that is no known state."""
    for row in rows:
        if (word := _word(row, column)) not in BLANK and _is_done(word) is None:
            problem = f"{row.where}: {column} is '{row.setting(column)}', and no known state of a run"
            raise UserError(problem, remedy="write finished or failed, or leave out --state")


def unused_states(rows: Rows) -> dict[str, list[str]]:
    """Columns that seem to be the state of the runs, and their words for runs that did not finish."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for row in rows for name in row.values if COLUMN.fullmatch(str(name))):
        words = dict.fromkeys(_word(row, name) for row in rows)
        if unfinished := [word for word in words if word not in BLANK and _is_done(word) is False]:
            found[name] = unfinished
    return found


def is_finished(row: Row, column: str) -> bool:
    """False if the column of states marks the run as unfinished."""
    return not column or (word := _word(row, column)) in BLANK or bool(_is_done(word))


def _word(row: Row, column: str) -> str:
    return re.sub(r"[\s_-]+", " ", str(row.setting(column))).strip().casefold()


def _is_done(word: str) -> bool | None:
    """True or False for a known word; None for another."""
    if code := re.fullmatch(r"exit (?:code )?(\d+)", word):
        return int(code[1]) == 0
    return True if word in DONE else False if word in NOT_DONE else None
