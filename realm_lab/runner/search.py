"""`realm-lab search`: one process asks for trials, has them trained through a launcher, and tells how they ended.

A trial is a cell of the study that has the search's name, with a run for every seed. Runs are content-addressed, so
that none is trained twice; a search that was stopped or killed goes on with the trials that were open.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.core.files import digest
from realm_lab.core.launched import cores, visible_gpus
from realm_lab.core.lease import take
from realm_lab.errors import UserError
from realm_lab.params.load import show
from realm_lab.params.parameters import Params
from realm_lab.runner.launchers import UNFINISHED, JobState, Launcher, make_launcher
from realm_lab.runner.search_file import SearchPlan, plan_search
from realm_lab.runner.search_record import folder_of, record_search, tasks_of_trial
from realm_lab.runner.search_values import CurveReader, cut_of, final_value
from realm_lab.runner.state import StageStates
from realm_lab.runner.stopping import NEVER_SILENT_SECONDS, Stop, stoppable, sweepers
from realm_lab.runner.sweep import FOLLOW_SECONDS, POLL_SECONDS, closing, mirroring, sweep
from realm_lab.runner.sweep import Request as SweepRequest
from realm_lab.systems.identity import Plan
from realm_lab.tracking.study_record import study_folder

if TYPE_CHECKING:
    from realm_lab.runner.search_journal import State, Trial, TrialJournal
    from realm_lab.runner.tasks import Task

EXIT_INCOMPLETE = 1


@dataclass(frozen=True)
class SearchRequest:
    """What was asked for on the command line."""

    path: Path
    root: Path
    params_path: Path | None = None
    launcher: str | None = None  # None: the search's own, else local
    trials: int | None = None  # None: the search's own
    as_json: bool = False
    follow: bool = False
    retry_failed: bool = False
    cancel: bool = False


@dataclass
class Open:
    """A trial under way. `runs` are its plans by seed; `tasks` is empty for one whose runs are an earlier trial's."""

    trial: Trial
    params: Params
    runs: list[Plan]
    tasks: list[Task]
    same_as: int | None = None


def search(request: SearchRequest) -> int:
    """Do what the command line asks; returns the exit code: 0 when all trials have ended, the baseline well."""
    root = Path(request.root)
    common = SweepRequest(request.path, root, request.params_path, follow=request.follow, cancel=request.cancel)
    if request.cancel:
        return sweep(common)
    plan = plan_search(request.path, root, params_path=request.params_path)
    name, settings = _launcher_of(plan, request.launcher)
    launcher = make_launcher(name, settings, root, plan.name)
    stop, owner = Stop(), None
    try:
        with stoppable() as stop, owning(root, plan.name), mirroring(common, root), closing(launcher):
            owner = SearchOwner(plan, open_journal(plan, root), launcher, root, trials=request.trials)
            owner.begin(retry_failed=request.retry_failed)
            owner.drive(FOLLOW_SECONDS if launcher.detached else POLL_SECONDS)
            _write_results(owner, as_json=request.as_json)  # inside, so that --follow shows them
    except SystemExit as left:
        if owner is not None and owner.counted():
            _write_results(owner, as_json=False)
        how = "the jobs go on" if launcher.detached else "stopped after checkpoints"
        _say(f"{how}; `realm-lab search {request.path}` goes on from there")
        return 128 + stop.number if stop.number else int(left.code or 0)
    assert owner is not None
    return owner.exit_code()


def open_journal(plan: SearchPlan, root: Path) -> TrialJournal:
    """The journal of the search's trials, in the folder of its study."""
    from realm_lab.runner.search_journal import TrialJournal

    search = plan.search
    _, runs = plan.runs({})
    design = {
        "space": [str((item.name, item.kind, str(item))) for item in plan.space],
        "metric": [search.metric, search.direction, plan.last_stage],
        "runs": [run.key(plan.last_stage) for run in runs],
    }
    return TrialJournal(
        study_folder(Path(root) / "runs", plan.name) / "optuna.jsonl",
        plan.name,
        plan.space,
        direction=search.direction,
        sampler=search.sampler,
        seed=search.sampler_seed,
        design=digest(design),
    )


@contextmanager
def owning(root: Path, name: str) -> Iterator[None]:
    """Inside, no other process does this search; `--cancel` and `status` see this one.

    Raises:
        UserError: another process does it.
    """
    for other in sweepers(root, name):
        where = f"process {other.owner.pid} on {other.owner.host}"
        raise UserError(f"search '{name}' is done by {where}; stop it with --cancel, or wait for it")
    folder = study_folder(Path(root) / "runs", name) / "sweeps"
    this = f"{socket.gethostname()}-{os.getpid()}"
    with take(folder, this, limit_seconds=NEVER_SILENT_SECONDS, is_rival=lambda other: True):
        yield


class SearchOwner:
    """The one process that asks and tells."""

    def __init__(
        self, plan: SearchPlan, journal: TrialJournal, launcher: Launcher, root: Path, *, trials: int | None = None
    ):
        self.plan, self.journal, self._launcher, self.root = plan, journal, launcher, Path(root)
        self._trials = trials or plan.search.trials
        # One after another in this process, so that each is proposed in the knowledge of those before.
        self._parallel = 1 if launcher.name == "inline" else plan.search.parallel
        self._open: dict[int, Open] = {}
        self._left: dict[int, str] = {}  # stopped by somebody else; goes on the next time
        self._runs: dict[int, tuple[Params, list[Plan]]] = {}
        pruning = plan.search.pruning
        self._curves = CurveReader(self.root, pruning.metric) if pruning else None

    def begin(self, *, retry_failed: bool = False) -> None:
        """Propose the baseline, the grid and what failed, and take up the trials that a former owner left open."""
        self.journal.propose(self.plan.baseline)
        if self.plan.search.sampler == "grid":
            for values in self.plan.grid():
                self.journal.propose(values)
        if retry_failed:
            for trial in self.counted():
                if trial.state == "failed":
                    self.journal.propose(trial.values, retry_of=trial.number)
        for trial in self.journal.resumed():
            self._take_on(trial, resumed=True)

    def drive(self, pause_seconds: float) -> None:
        """Ask, train and tell until the trials are used up, or only those are left that somebody else stopped."""
        before: Mapping[str, JobState] = {}
        while True:
            states = self._launcher.poll()
            changed = self._collect(states)
            changed = self._prune() or changed
            changed = self._fill() or changed
            if not self._open:
                return
            if not changed and states == before:
                time.sleep(pause_seconds)
            before = states

    def counted(self) -> list[Trial]:
        """All trials but those that failed and were tried again."""
        retried = self.journal.retried()
        return [trial for trial in self.journal.trials() if trial.number not in retried]

    def baseline(self) -> Trial | None:
        """The trial of the parameters as they are."""
        return next((trial for trial in self.counted() if trial.values == self.plan.baseline), None)

    def runs_of(self, trial: Trial) -> tuple[Params, list[Plan]] | None:
        """The parameters and runs of a trial; None where its values are no combination."""
        if trial.number not in self._runs:
            try:
                self._runs[trial.number] = self.plan.runs(trial.values)
            except UserError:
                return None
        return self._runs[trial.number]

    def exit_code(self) -> int:
        """0 when the baseline is complete and nothing was left."""
        base = self.baseline()
        return 0 if base is not None and base.state == "complete" and not self._left else EXIT_INCOMPLETE

    def _fill(self) -> bool:
        asked = False
        while len(self._open) < self._parallel and self._may_ask():
            self._take_on(self.journal.ask())
            asked = True
        return asked

    def _may_ask(self) -> bool:
        base = self.baseline()
        if base is not None and base.state == "failed":
            return False  # nothing could be compared with it; and what it shares with all trials has likely failed
        if self.plan.search.sampler == "grid" and not self.journal.waiting():
            return False
        return len(self.counted()) < self._trials

    def _take_on(self, trial: Trial, *, resumed: bool = False) -> None:
        """Begin a trial, or go on with it. What is known of its runs already is only read."""
        try:
            params, runs = self._runs[trial.number] = self.plan.runs(trial.values)
        except UserError as error:
            self._tell(trial, "failed", error=str(error))
            return
        twin = self._twin(trial, runs)
        if twin is not None:
            self._open[trial.number] = Open(trial, params, runs, [], twin.number)
            if twin.state != "running":
                self._tell_twin(trial.number, twin)
            return
        self.journal.note(trial.number, run_keys=[run.run_key for run in runs])
        states = StageStates(self.root)
        tasks = tasks_of_trial(trial.cell, params, runs, self.plan.last_stage, states)
        self._open[trial.number] = Open(trial, params, runs, tasks)
        if self.baseline() is not None:  # not while a failed one waits to be tried again
            record_search(self.plan, self._cells(), self.root)
        for run in runs if resumed else ():
            for stage, found in states.run(run).stages.items():
                if found.state == "FAILED" and stage in {stage for task in tasks for stage in task.stages}:
                    self._tell(trial, "failed", error=f"{stage}: {found.status.error or 'unknown error'}")
                    return
        # A queue may have them from before; what other trials share was given to the launcher with the first of them.
        there = self._launcher.poll() if tasks and self._launcher.detached else {}
        mine = {task.name for number, other in self._open.items() if number != trial.number for task in other.tasks}
        live = {name for name, state in there.items() if state.state in UNFINISHED}
        new = [task for task in tasks if task.name not in mine | live]
        if new:
            self._launcher.submit(new)

    def _twin(self, trial: Trial, runs: Sequence[Plan]) -> Trial | None:
        """An earlier trial with the same runs."""
        keys = [run.key(self.plan.last_stage) for run in runs]
        for other in self.counted():
            known = self.runs_of(other) if other.number < trial.number else None
            if known is not None and [run.key(self.plan.last_stage) for run in known[1]] == keys:
                return other
        return None

    def _cells(self) -> list[tuple[Trial, Params, list[Plan]]]:
        """Every trial that has runs of its own, with them."""
        found, seen = [], set()
        for trial in self.counted():
            known = self.runs_of(trial)
            if known is not None:
                keys = tuple(run.run_key for run in known[1])
                if keys not in seen:
                    found.append((trial, *known))
                seen.add(keys)
        return found

    def _collect(self, jobs: Mapping[str, JobState]) -> bool:
        """Tell of the trials that have ended."""
        states, told = StageStates(self.root), False
        for number, item in list(self._open.items()):
            if number not in self._open or item.same_as is not None:
                continue
            last = self.plan.last_stage
            if all(states.stage(run, last).state == "COMPLETE" for run in item.runs):
                self._complete(item)
                told = True
                continue
            ends = {jobs[task.name].state: jobs[task.name] for task in item.tasks if task.name in jobs}
            if "failed" in ends:
                self._tell(item.trial, "failed", error=ends["failed"].error or "unknown error")
                told = True
            elif not ends.keys() & set(UNFINISHED) and ends.keys() & {"preempted", "cancelled"}:
                why = next(state.error for key, state in ends.items() if key in ("preempted", "cancelled"))
                self._leave(number, why or "stopped")
                told = True
        return told

    def _complete(self, item: Open) -> None:
        found = [final_value(self.root, run, self.plan.last_stage, self.plan.search.metric) for run in item.runs]
        values = [value for value in found if value is not None]
        if len(values) < len(found):
            self._tell(item.trial, "failed", error=f"{self.plan.search.metric} is missing or not finite")
        else:
            self._tell(item.trial, "complete", statistics.fmean(values))

    def _prune(self) -> bool:
        """Give up the trials that are worse than others were at the same step; the baseline never is."""
        pruning, reader, cut_any = self.plan.search.pruning, self._curves, False
        if pruning is None or reader is None:
            return False
        for number, item in list(self._open.items()):
            if number not in self._open or item.same_as is not None or item.trial.values == self.plan.baseline:
                continue
            mine = {run.seed: reader.of(run) for run in item.runs}
            if max((max(curve, default=0) for curve in mine.values()), default=0) < pruning.after_steps:
                continue
            others = [
                {run.seed: reader.of(run) for run in runs} for trial, _, runs in self._cells() if trial.number != number
            ]
            cut = cut_of(mine, others, pruning)
            if cut is not None:
                said = (
                    f"{pruning.metric} {cut.value:.4g} at step {cut.step}, below {cut.bound:.4g} of {cut.others} others"
                )
                is_same = (pruning.metric, "pretrain") == (self.plan.search.metric, self.plan.last_stage)
                self._tell(item.trial, "pruned", cut.value if is_same else None, step=cut.step, why=said)
                cut_any = True
        return cut_any

    def _tell(self, trial: Trial, state: State, value: float | None = None, **notes: Any) -> None:
        """Tell how a trial ended, stop what only it needed, and tell the same of those with the same runs."""
        told = self.journal.tell(trial.number, state, value, **notes)
        item = self._open.pop(trial.number, None)
        values = ", ".join(f"{name.rsplit('.', 1)[-1]} = {show(value)}" for name, value in told.values.items())
        shown = f": {self.plan.search.metric} {value:.4g}" if state == "complete" and value is not None else ""
        why = notes.get("error") or notes.get("why") or ""
        _say(f"{told.cell} {state}{shown}{f': {why}' if why else ''} ({values})")
        if item is not None and state != "complete":
            needed = {task.name for other in self._open.values() for task in other.tasks}
            spare = {task.name for task in item.tasks} - needed
            if spare:
                self._launcher.cancel(spare)
        for number in [number for number, other in self._open.items() if other.same_as == trial.number]:
            self._tell_twin(number, told)

    def _tell_twin(self, number: int, twin: Trial) -> None:
        notes = {key: twin.notes[key] for key in ("step", "error") if key in twin.notes}
        trial = self._open[number].trial
        self._tell(trial, twin.state, twin.value, same_as=twin.number, why=f"the runs of {twin.cell}", **notes)

    def _leave(self, number: int, why: str) -> None:
        """Somebody else stopped it: it stays open, for the next time."""
        for other in [number, *(n for n, item in self._open.items() if item.same_as == number)]:
            self._left[other] = why
            _say(f"{self._open.pop(other).trial.cell} left open: {why}")


def _launcher_of(plan: SearchPlan, asked: str | None) -> tuple[str, Mapping[str, Any]]:
    settings: Mapping[str, Any] = plan.search.launcher
    name = asked or settings.get("default") or "local"
    own = settings.get(name) or {}
    if name == "local" and "processes" not in own and not visible_gpus(plan.base.launch.device):
        wanted = plan.search.parallel * len(plan.search.seeds)
        own = {"processes": max(1, min(wanted, cores() // plan.base.launch.ranks)), **own}
    return name, own


def _write_results(owner: SearchOwner, *, as_json: bool) -> None:
    from realm_lab.reporting.search_report import write_search_report  # brings matplotlib

    runs = {trial.number: owner.runs_of(trial) for trial in owner.counted()}
    names = {number: [folder_of(run) for run in known[1]] for number, known in runs.items() if known is not None}
    folder, summary = write_search_report(owner.root, owner.plan, owner.counted(), names, owner.journal.importances)
    if as_json:
        print(json.dumps(summary, indent=2))
    counts = ", ".join(f"{count} {state}" for state, count in summary["trials"].items() if count)
    _say(f"search {owner.plan.name}: {counts}; {folder / 'report.md'}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
