"""The state of a run, from a column of that name: words of W&B, MLflow, Optuna, SLURM, Ray, Sacred, DVC and others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from realm_lab.errors import UserError
from realm_lab.other_runs.tables import Row, Rows

COLUMN = re.compile(r"(?:(?:run|job|trial|experiment)[ _.-]?)?(?:status|state)", re.IGNORECASE)
BLANK = ("", "nan", "none", "null", "<na>")
DONE = frozenset("finished complete completed done ok succeeded success successful passed terminated 0 0.0".split())
NOT_DONE = frozenset(
    "failed fail failure error errored crashed crash killed kill cancelled canceled aborted interrupted stopped died "
    "timeout preempted preempting pruned lost diverged running pending scheduled queued waiting paused suspended "
    "requeued deadline started active".split()
) | {"in progress", "timed out", "out of memory", "oom", "node fail", "boot fail", "not started", "stale"}


def status_columns(rows: Rows) -> tuple[list[str], dict[str, list[str]]]:
    """Return the columns with the states of runs, and other columns of that name with their values, such as State =
    Texas. UserError: a column has known and unknown words."""
    used: list[str] = []
    others: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for row in rows for name in row.values if COLUMN.fullmatch(str(name))):
        words: dict[str, Row] = {}
        for row in rows:
            if (word := _word(row, name)) not in BLANK:
                words.setdefault(word, row)
        unknown = [word for word in words if _is_done(word) is None]
        if unknown and len(unknown) < len(words):
            row = words[unknown[0]]
            problem = f"{row.where}: {name} is '{row.values[name]}', and no known state of a run"
            raise UserError(problem, remedy=f"write finished or failed, or rename the column if '{name}' is no state")
        if unknown:
            others[name] = unknown
        elif words:
            used.append(name)
    return used, others


def is_finished(row: Row, columns: Sequence[str]) -> bool:
    """False if a column of states marks the run as unfinished."""
    return all(word in BLANK or _is_done(word) for word in (_word(row, name) for name in columns))


def _word(row: Row, column: str) -> str:
    return re.sub(r"[\s_-]+", " ", str(row.values.get(column, ""))).strip().casefold()


def _is_done(word: str) -> bool | None:
    """True or False for a known word; None for another."""
    if code := re.fullmatch(r"exit (?:code )?(\d+)", word):
        return int(code[1]) == 0
    return True if word in DONE else False if word in NOT_DONE else None
