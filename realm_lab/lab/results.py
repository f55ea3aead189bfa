"""The results of runs, for the rules that decide which runs a study wants."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.engine.systems.identity import check_measured
from realm_lab.records.metric_log import MetricLog
from realm_lab.records.run import Run, stage_folder
from realm_lab.records.run_values import device_seconds, run_values
from realm_lab.records.state import StageStates
from realm_lab.records.study import StudyRecord

if TYPE_CHECKING:
    import pandas as pd


class Results:
    """The results of runs, read from their folders: states as of the last `look_again`, values once a run is complete.
    `retry_failed`: this process may still try a failed run again. `ended`: keys of runs whose tasks in this process
    have ended."""

    def __init__(self, root: Path, *, retry_failed: bool = False):
        self.root, self._runs, self.retry_failed = Path(root), Path(root) / "runs", retry_failed
        self.ended: set[str] = set()
        self.journal: Any = None  # the journal of a search, once it is opened
        self._values: dict[tuple[str, str], dict[str, float]] = {}
        self.look_again()

    def look_again(self) -> None:
        """Forget all states, so that `look` reads them again."""
        self.states = StageStates(self._runs)

    def look(self, run: Run) -> Run:
        """Return a run with the states of its stages."""
        return self.states.look(run)

    def has_failed(self, run: Run) -> bool:
        """True if a run failed, and this process will not try it again."""
        is_tried = not self.retry_failed or run.run_key in self.ended
        return is_tried and self.look(run).state == "FAILED"

    def is_stopped(self, run: Run) -> bool:
        """True if the run's tasks in this process ended, and it is neither complete nor failed: somebody stopped it."""
        return run.run_key in self.ended and self.look(run).state not in ("COMPLETE", "FAILED")

    def curve(self, run: Run, name: str) -> dict[int, float]:
        """Return step -> value of the metric `name` in a run's pre-training so far."""
        path = stage_folder(self._runs, "pretrain", run.key("pretrain"))
        return {row["step"]: row[name] for row in MetricLog(path / "metrics.jsonl").rows() if row.get(name) is not None}

    def outcome(self, run: Run) -> dict[str, float] | None:
        """Return the values of a run that has ended, {} if it failed; None: it has not ended, or is tried again.
        UserError: the values were measured on other numbers of sentences or questions than its `evaluate` parameters
        ask for."""
        found, keys = self.look(run), run.keys()
        if found.state != "COMPLETE":
            return {} if self.has_failed(run) else None
        last = [*keys.items()][-1]
        if last not in self._values:
            check_measured(self._runs, run, last[0])
            self._values[last] = run_values({name: found.folder(name) for name in keys})
        return self._values[last]

    def table(self, record: StudyRecord) -> pd.DataFrame:
        """Return a row of values for each complete run of a study. `device_hours` counts a stage that several of them
        share only in the first."""
        from realm_lab.evidence.report.frames import load_runs  # brings pandas

        study = load_runs(self._runs, record)
        counted, hours = set[tuple[str, str]](), dict[tuple[str, int], float]()
        for run in study.runs:
            if run.is_complete:
                new = run.stages.items() - counted
                hours[run.cell, run.seed] = sum(device_seconds(run.folder(stage)) for stage, _ in sorted(new)) / 3600
                counted |= new
        rows = study.results[study.results["status"] == "COMPLETE"]
        each = [hours.get(row, math.nan) for row in zip(rows["cell"], rows["seed"], strict=True)]
        return rows.assign(device_hours=each)
