"""`realm-lab search`: one process asks Optuna for trials, trains them with a launcher, and reports their values back.

A trial is a cell of the study that has the search's name, with a run for every seed. Trials are in Optuna's journal,
which only this process writes; trials that a killed process left open are proposed again, and their runs resume from
their checkpoints. trials.json has the same in plain data, for reports.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError
from realm_lab.records.files import digest, print_json, write_json
from realm_lab.records.metric_log import MetricLog
from realm_lab.records.parameters import show
from realm_lab.records.run import StageRun, stage_folder
from realm_lab.records.run_values import run_values
from realm_lab.records.state import UNFINISHED, JobState, StageStates
from realm_lab.records.study import study_folder
from realm_lab.runner.launchers import LocalOptions
from realm_lab.runner.other_code import other_code, settle_code
from realm_lab.runner.plan import PlannedRun, StudyPlan, record_study
from realm_lab.runner.preview import show_search
from realm_lab.runner.schedule import Launcher
from realm_lab.runner.search_file import SearchPlan, plan_search
from realm_lab.runner.stopping import Stop, stoppable, sweeping
from realm_lab.runner.study import Cell, changes_title
from realm_lab.runner.sweep import FOLLOW_SECONDS, POLL_SECONDS, Request, mirroring, say
from realm_lab.runner.tasks import Task, state_of_run, tasks_of
from realm_lab.runner.trials import (
    FrozenTrial,
    Study,
    Trial,
    TrialState,
    distributions,
    get_param_importances,
    make_pruner,
    open_journal,
    sampler,
)
from realm_lab.systems.identity import check_measured

STATES = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
CELL = "trial-{:03}"  # the name of a trial in the study
CONTINUES = "continues"  # number of the earlier trial with the same values that this one continues
ENOUGH_TRIALS = 50  # complete: an importance compares the best tenth with the rest


@dataclass
class OpenTrial:
    """A running trial with its runs, and their remaining tasks."""

    trial: Trial
    runs: list[PlannedRun] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    reported: int = -1  # the last step that the pruner knows


def search(request: Request) -> int:
    """Run the command; returns the exit code: 0 when all trials have ended and the baseline is complete."""
    root = Path(request.root)
    plan = plan_search(request.path, root, params_path=request.params_path, overrides=request.overrides)
    settings = plan.search.launcher
    if settings.local.processes is None:  # no more processes than trials at a time need
        local = LocalOptions(processes=plan.search.parallel * len(plan.search.seeds))
        settings = settings.model_copy(update={"local": local})
    launcher = request.launcher_for(settings, plan.name)
    if request.dry_run:
        show_search(plan, root, request.trials, as_json=request.as_json)
        return 0
    launcher.check([])
    stop, owner = Stop(), None
    try:
        with stoppable() as stop, sweeping(root, plan.name, alone=True), mirroring(request, root), closing(launcher):
            owner = SearchOwner(plan, launcher, root, trials=request.trials, retry_failed=request.retry_failed)
            owner.drive(FOLLOW_SECONDS if launcher.detached else POLL_SECONDS)
            _report(owner, as_json=request.as_json)  # inside, so that --follow shows it
    except SystemExit as left:
        if owner is not None and owner.counted():
            _report(owner, as_json=False)
        how = "the jobs go on" if launcher.detached else "stopped after checkpoints"
        say(f"{how}; `realm-lab search {request.path}` goes on from there")
        return 128 + stop.number if stop.number else int(left.code or 0)
    return owner.exit_code()


def open_study(plan: SearchPlan, root: Path) -> Study:
    """Create or continue the journal of the search's trials. UserError: not an Optuna journal, or one of a search
    with another space, metric, seeds or parameters."""
    path = study_folder(Path(root) / "runs", plan.name) / "optuna.jsonl"
    pruning = plan.search.pruning
    pruner = make_pruner(pruning.percentile, pruning.after_steps, pruning.min_trials) if pruning else make_pruner(None)
    study = open_journal(path, plan.name, pruner)
    keys = [run.plan.key(plan.last_stage) for run in plan.runs("", {})]
    space = {name: str(distribution) for name, distribution in distributions(plan.search.space, plan.baseline).items()}
    design = digest({"space": space, "metric": plan.search.metric, "runs": keys})
    begun = study.user_attrs.get("design")
    if begun is None:
        study.set_user_attr("design", design)
    elif begun != design:
        raise UserError(
            f"search '{plan.name}' was begun with another space, metric, seeds or parameters",
            "rename the search's file, or delete this one: finished runs are only read",
            path=path,
        )
    return study


class SearchOwner:
    """The process that owns the search. It proposes the baseline, trials that a killed owner left open, and on request
    failed ones, before the proposals of the sampler."""

    def __init__(
        self, plan: SearchPlan, launcher: Launcher, root: Path, *, trials: int | None = None, retry_failed: bool = False
    ):
        self.plan, self.root, self.study = plan, Path(root), open_study(plan, Path(root))
        self._launcher, self._trials, self._retry = launcher, trials or plan.search.trials, retry_failed
        # One after another in this process, so that each is proposed in the knowledge of those before.
        self._parallel = 1 if launcher.name == "inline" else plan.search.parallel
        self._open: dict[int, OpenTrial] = {}
        self._left = 0  # trials that somebody else stopped
        self._jobs: Mapping[str, JobState] = launcher.poll() if launcher.detached else {}
        self.study.enqueue_trial(plan.baseline, skip_if_exists=True)
        self._check_code()
        for trial in self.counted():
            if trial.state == TrialState.RUNNING or (retry_failed and trial.state == TrialState.FAIL):
                self.study.enqueue_trial(trial.params, user_attrs={CONTINUES: trial.number})
            if trial.state == TrialState.RUNNING:
                self.study.tell(trial.number, state=TrialState.FAIL)

    def _check_code(self) -> None:
        """Accept results of other code, or stop. UserError: `fresh`, since later trials depend on their values; or they
        were measured otherwise."""
        ended = [trial for trial in self.counted() if trial.state == TrialState.COMPLETE]
        runs = [run for trial in ended for run in self.plan.runs(CELL.format(trial.number), trial.params)]
        if runs and runs[0].params.launch.other_code == "fresh" and other_code(runs, self.root, self.plan.last_stage):
            raise UserError(
                f"search {self.plan.name}: other code computed trials that later ones were chosen by; --accept keeps "
                f"them; to search anew, `realm-lab gc --forget {self.plan.name} --yes` first"
            )
        settle_code(runs, self.root, self.plan.last_stage)
        for run in runs:
            check_measured(self.root / "runs", run.plan, self.plan.last_stage, run.params)

    def drive(self, pause_seconds: float) -> None:
        """Ask, train and tell until no trials are left, or only those that another process stopped."""
        while True:
            before, self._jobs = self._jobs, self._launcher.poll()
            changed = sum(self._look_at(item) for item in list(self._open.values())) > 0
            while len(self._open) < self._parallel and self._may_ask():
                self._begin()
                changed = True
            if not self._open:
                return
            if not changed and self._jobs == before:
                time.sleep(pause_seconds)

    def counted(self) -> list[FrozenTrial]:
        """Return all requested trials, except those that a later one replaces."""
        trials = self.study.get_trials(deepcopy=False)
        replaced = {trial.user_attrs.get(CONTINUES) for trial in trials}
        return [trial for trial in trials if trial.state in STATES and trial.number not in replaced]

    def baseline(self) -> FrozenTrial | None:
        return next((trial for trial in self.counted() if trial.params == self.plan.baseline), None)

    def exit_code(self) -> int:
        """Return 0 if the baseline is complete and nothing is left."""
        base = self.baseline()
        is_well = base is not None and base.state == TrialState.COMPLETE
        return int(not is_well or self._left > 0)

    def as_data(self) -> dict[str, Any]:
        """Return the search and its trials in plain data, for trials.json."""
        counted = self.counted()
        trials = [
            {
                "number": trial.number,
                "cell": CELL.format(trial.number),
                "state": STATES[trial.state],
                "value": trial.value if trial.state == TrialState.COMPLETE else None,
                "values": dict(trial.params),
                "runs": trial.user_attrs.get("runs", []),
                "why": trial.user_attrs.get("why"),
            }
            for trial in counted
        ]
        complete = sum(trial.state == TrialState.COMPLETE for trial in counted)
        enough = complete >= ENOUGH_TRIALS and len(self.plan.search.space) > 1
        importances = dict(get_param_importances(self.study)) if enough else {}
        return self.plan.as_data() | {"trials": trials, "importances": importances}

    def _may_ask(self) -> bool:
        base = self.baseline()
        if base is not None and base.state == TrialState.FAIL:
            return False  # nothing could be compared with it, and its shared stages have probably failed
        return len(self.counted()) < self._trials

    def _begin(self) -> None:
        """Ask for a trial and give the launcher its remaining tasks."""
        number = len(self.study.get_trials(deepcopy=False))
        self.study.sampler = sampler(self.plan.search.sampler, number)
        trial = self.study.ask(distributions(self.plan.search.space, self.plan.baseline))
        item = self._open[trial.number] = OpenTrial(trial)
        try:
            item.runs = self.plan.runs(CELL.format(trial.number), trial.params)
        except UserError as error:
            self._tell(item, TrialState.FAIL, why=str(error))
            return
        settle_code(item.runs, self.root, self.plan.last_stage)
        trial.set_user_attr("runs", [run.name for run in item.runs])
        states = StageStates(self.root / "runs")
        item.tasks = tasks_of(
            item.runs, states, retry_failed=self._retry, until=self.plan.last_stage, each_stage_alone=True
        )
        # A queue may have them from before; the launcher got tasks shared by several trials with the first of them.
        known = {task.name for other in self._open.values() if other is not item for task in other.tasks}
        known |= {name for name, state in self._jobs.items() if state.state in UNFINISHED}
        new = [task for task in item.tasks if task.name not in known]
        if new:
            self._launcher.submit(new)
        self._record()  # not before: a queue may refuse them

    def _look_at(self, item: OpenTrial) -> bool:
        """Tell Optuna about a trial that has ended, or that is not worth continuing; True if so."""
        last, states = self.plan.last_stage, StageStates(self.root / "runs")
        is_hopeless = self._is_hopeless(item)
        found = [state_of_run(run.plan, states, last) for run in item.runs]
        jobs = [self._jobs[task.name] for task in item.tasks if task.name in self._jobs]
        failed = next((state for state in found if state.state == "FAILED"), None)
        if all(state.state == "COMPLETE" for state in found):
            self._complete(item)
        elif is_hopeless:
            self._tell(item, TrialState.PRUNED, why=f"behind the others at step {item.reported}")
        elif any(job.state in UNFINISHED for job in jobs):
            return False
        elif failed is not None:
            self._tell(item, TrialState.FAIL, why=failed.error or "unknown error")
        else:
            self._left += 1  # somebody stopped it: it stays open in the journal
            why = next((job.error for job in jobs if job.error), "it was stopped")
            say(f"{CELL.format(item.trial.number)} left open: {why}")
            del self._open[item.trial.number]
        return True

    def _is_hopeless(self, item: OpenTrial) -> bool:
        """Report the mean over the seeds of every new step that all of them have reached; the baseline continues."""
        if self.plan.search.pruning is None:
            return False
        curves = [self._curve(run) for run in item.runs]
        for step in sorted(set.intersection(*(set(curve) for curve in curves))):
            if step > item.reported:
                item.reported = step
                item.trial.report(statistics.fmean(curve[step] for curve in curves), step)
                is_over = item.trial.params == self.plan.baseline or step >= item.runs[0].params.pretrain.steps
                if not is_over and item.trial.should_prune():
                    return True
        return False

    def _curve(self, run: PlannedRun) -> dict[int, float]:
        """Return step -> value of a run's pre-training so far."""
        path, name = stage_folder(self.root / "runs", "pretrain", run.plan.key("pretrain")), self.plan.curve
        return {row["step"]: row[name] for row in MetricLog(path / "metrics.jsonl").rows() if row.get(name) is not None}

    def _complete(self, item: OpenTrial) -> None:
        values = [self._value(run) for run in item.runs]
        found = [value for value in values if value is not None]
        if len(found) == len(values):
            self._tell(item, TrialState.COMPLETE, statistics.fmean(found))
        else:
            self._tell(item, TrialState.FAIL, why=f"{self.plan.search.metric} is missing or not finite")

    def _value(self, run: PlannedRun) -> float | None:
        names, runs = list(run.plan.stages), self.root / "runs"
        names = names[: names.index(self.plan.last_stage) + 1]
        check_measured(runs, run.plan, self.plan.last_stage, run.params)
        stages = {name: StageRun(stage_folder(runs, name, run.plan.key(name)), name) for name in names}
        return run_values(stages).get(self.plan.search.metric)

    def _tell(self, item: OpenTrial, state: TrialState, value: float | None = None, why: str = "") -> None:
        """Tell how a trial ended, and stop tasks that only it needed."""
        if why:
            item.trial.set_user_attr("why", why)
        self.study.tell(item.trial, value, state)
        del self._open[item.trial.number]
        self._write()
        values = ", ".join(f"{name.rsplit('.', 1)[-1]} = {show(value)}" for name, value in item.trial.params.items())
        shown = f": {self.plan.search.metric} {value:.4g}" if value is not None else ""
        say(f"{CELL.format(item.trial.number)} {STATES[state]}{shown}{f': {why}' if why else ''} ({values})")
        needed = {task.name for other in self._open.values() for task in other.tasks}
        spare = {task.name for task in item.tasks} - needed
        if spare and state != TrialState.COMPLETE:
            self._launcher.cancel(spare)

    def _record(self) -> None:
        """Write the trials as cells of a study, the baseline first, and to trials.json."""
        cells, runs, seen = [], [], set()
        for trial in sorted(self.counted(), key=lambda trial: (trial.params != self.plan.baseline, trial.number)):
            name = CELL.format(trial.number)
            try:
                found = self.plan.runs(name, trial.params)
            except UserError:
                continue
            if found[0].run_key not in seen:  # equal trials are one cell
                seen.add(found[0].run_key)
                title = changes_title(found[0].changes) if found[0].changes else "parameters as they are"
                cells.append(Cell(name, title, found[0].plan.system, {}, found[0].changes))
                runs += found
        search, last_stage = self.plan.search, "" if self.plan.last_stage == "evaluate" else self.plan.last_stage
        record_study(
            StudyPlan(
                self.plan.name,
                search.question,
                tuple(cells),
                tuple(search.seeds),
                tuple(runs),
                {"metrics": [search.metric], "last_stage": last_stage},
                source=search.path,
            ),
            self.root,
        )
        self._write()

    def _write(self) -> None:
        write_json(study_folder(self.root / "runs", self.plan.name) / "trials.json", self.as_data())


def _report(owner: SearchOwner, *, as_json: bool) -> None:
    from realm_lab.evidence.report.search_report import write_search_report  # brings matplotlib

    folder, summary = write_search_report(owner.root, owner.plan.name)
    if as_json:
        print_json(summary)
    counts = ", ".join(f"{count} {state}" for state, count in summary["trials"].items() if count)
    say(f"search {owner.plan.name}: {counts}; {folder / 'report.md'}")
