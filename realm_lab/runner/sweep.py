"""`realm-lab sweep`: plan, record, run or submit what is missing, collect. Running it again goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.errors import UserError
from realm_lab.runner.board import worked_on_by
from realm_lab.runner.jobs import UNFINISHED, JobState, Launcher, recorded_jobs
from realm_lab.runner.launchers import make_launcher, queued_jobs
from realm_lab.runner.plan import plan_study, record_study
from realm_lab.runner.preview import check_budget, plan_as_json, show_plan
from realm_lab.runner.progress import SweepProgress
from realm_lab.runner.standing import Standing, members_of_plan, short_keys, standing_of
from realm_lab.runner.state import StageStates
from realm_lab.runner.status import make_console
from realm_lab.runner.stopping import Stop, stop_sweepers, stoppable, sweeping
from realm_lab.runner.tasks import tasks_of

if TYPE_CHECKING:
    from realm_lab.runner.plan import StudyPlan
    from realm_lab.runner.tasks import Task

POLL_SECONDS = 0.2
FOLLOW_SECONDS = 2.0  # between two looks at what others do
EXIT_INCOMPLETE = 1


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    path: Path
    root: Path
    params_path: Path | None = None
    launcher: str | None = None  # None: the study's own, else local
    seeds: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    as_json: bool = False
    follow: bool = False
    retry_failed: bool = False
    cancel: bool = False
    force: bool = False  # replace a report of more runs


def sweep(request: Request) -> int:
    """Do what the command line asks; returns the exit code: 0 when all is complete, or submitted to a queue."""
    root = Path(request.root)
    if request.cancel:  # also of a study whose file is being changed
        return _cancel(Path(request.path).stem, root)
    plan = plan_study(
        request.path, root, params_path=request.params_path, seeds=request.seeds, overrides=request.overrides
    )
    if request.dry_run:
        if request.as_json:
            _print_json(plan, root)
        else:
            show_plan(plan, root, make_console())
        return 0
    launcher_name, settings = _launcher_of(plan, request.launcher)
    launcher = make_launcher(launcher_name, settings, root, plan.name)  # its settings are checked before anything else
    check_budget(plan, root)
    record_study(plan, root)
    queued = queued_jobs(root, must_answer=True)
    tasks = tasks_of(plan, root, retry_failed=request.retry_failed)
    tasks, left = _leave_alone(tasks, root, queued, launcher)
    _say_beginning(plan, root, tasks, left, launcher, request.retry_failed, queued)
    if launcher.detached:
        return _submit(launcher, tasks, plan, request, root)
    return _run(launcher, tasks, plan, request, root)


def _launcher_of(plan: StudyPlan, asked: str | None) -> tuple[str, Mapping[str, Any]]:
    settings: Mapping[str, Any] = plan.study.launcher
    name = asked or settings.get("default") or "local"
    return name, settings.get(name) or {}


def _leave_alone(
    tasks: Sequence[Task], root: Path, queued: Mapping[str, JobState], launcher: Launcher
) -> tuple[list[Task], dict[str, str]]:
    """(what may be given to the launcher, task -> why it is left alone).

    A launcher without a queue finds out by itself what other processes do, and when they have done it.
    """
    left: dict[str, str] = {}
    blocking: set[str] = set()
    free = []
    for task in tasks:
        jobs = {queued[key].job: queued[key] for key in task.keys.values() if key in queued}
        live = [state for state in jobs.values() if state.state in UNFINISHED]
        whom = worked_on_by(task, root) if launcher.detached else None
        if live:
            left[task.name] = f"{task.title}: {live[0].state} as job {live[0].job}"
            blocking |= set() if launcher.detached else {task.name}  # jobs can wait for jobs
        elif whom:
            left[task.name] = f"{task.title}: runs in {whom}"
            blocking.add(task.name)
        elif blocking & set(task.after):
            left[task.name] = f"{task.title}: waits for one of these"
            blocking.add(task.name)
        else:
            free.append(task)
    return free, left


def _say_beginning(
    plan: StudyPlan,
    root: Path,
    tasks: Sequence[Task],
    left: Mapping[str, str],
    launcher: Launcher,
    retry_failed: bool,
    queued: Mapping[str, JobState],
) -> None:
    found = _standings(plan, root, queued)
    complete = sum(one.state == "COMPLETE" for one in found)
    cells = len(plan.cells)
    todo = f"{_count(len(tasks), 'task')} to do ({launcher.name})" if tasks else "nothing to do"
    _say(f"study {plan.name}: {_count(len(found), 'run')} in {_count(cells, 'cell')}, {complete} complete; {todo}")
    for why in left.values():
        _say(f"left alone: {why}")
    failed = sum(one.state == "FAILED" for one in found)
    if failed and not retry_failed:
        _say(f"{_count(failed, 'run')} failed and stay so: see `realm-lab status {plan.name}`, then --retry-failed")


def _submit(launcher: Launcher, tasks: Sequence[Task], plan: StudyPlan, request: Request, root: Path) -> int:
    """Give the tasks to a queue; results are collected once everything is complete."""
    if tasks:
        launcher.submit(tasks)
        _say(f"submitted {_count(len(tasks), 'task')}")
    if request.follow:
        try:
            with stoppable() as stop, mirroring(request, root):
                _drive(launcher, SweepProgress(tasks, root), FOLLOW_SECONDS, wait_for_others=True)
        except SystemExit:
            _say(f"the jobs go on; watch them with `realm-lab status {plan.name}`")
            return 128 + stop.number
        return _finish(plan, request, root)
    if all(one.state == "COMPLETE" for one in _standings(plan, root, {})):
        return _finish(plan, request, root)
    _say(f"watch: `realm-lab status {plan.name}`; when all are complete, the same command again collects the results")
    if request.as_json:
        _print_json(plan, root)
    return 0


def _run(launcher: Launcher, tasks: Sequence[Task], plan: StudyPlan, request: Request, root: Path) -> int:
    """Run the tasks here, until all have ended or only those are left that others work on."""
    stop = Stop()
    try:
        with stoppable() as stop, sweeping(root, plan.name), mirroring(request, root), closing(launcher):
            launcher.submit(tasks)
            _drive(launcher, SweepProgress(tasks, root), POLL_SECONDS, wait_for_others=request.follow)
    except SystemExit as left:
        _say(f"stopped after checkpoints; `realm-lab sweep {request.path}` goes on from there")
        return 128 + stop.number if stop.number else int(left.code or 0)  # of a training loop that noted the signal
    return _finish(plan, request, root)


def _drive(launcher: Launcher, progress: SweepProgress, pause_seconds: float, *, wait_for_others: bool) -> None:
    before: dict[str, JobState] = {}
    with progress:
        while True:
            states = launcher.poll()
            progress.update(states)
            now = Counter(state.state for state in states.values())
            ours = now["running"] + now["pending"]
            if not (ours or now["waiting"]):
                return
            if states == before:
                if not ours and not wait_for_others:  # what waits, waits for other processes
                    for name, state in states.items():
                        if state.state == "waiting" and state.error:
                            _say(f"left alone: {progress.title(name)}: {state.error}")
                    return
                time.sleep(pause_seconds)
            before = states


@contextmanager
def closing(launcher: Launcher) -> Iterator[None]:
    try:
        yield
    finally:
        launcher.close()


@contextmanager
def mirroring(request: Request, root: Path) -> Iterator[None]:
    """With --follow, MLflow shows the runs while they are made, and all of them at the end."""
    if not request.follow:
        yield
        return
    command = [sys.executable, "-m", "realm_lab", "mirror", "--root", str(root)]
    if request.params_path is not None:
        command += ["--params", str(request.params_path)]
    mirror = subprocess.Popen([*command, "--follow"], stdout=subprocess.DEVNULL, process_group=0)
    try:
        yield
    finally:
        mirror.terminate()
        mirror.wait()
    subprocess.run(command, check=False)


def _finish(plan: StudyPlan, request: Request, root: Path) -> int:
    """Collect the results and say how the study stands."""
    found = _standings(plan, root, {})
    now = Counter(one.state for one in found)
    from realm_lab.reporting.report import write_study_report  # pandas and matplotlib take a second to import

    folder = write_study_report(root, plan.name, force=request.force)
    if request.as_json:
        _print_json(plan, root)
    said = ", ".join(f"{count} {state.lower()}" for state, count in sorted(now.items()))
    _say(f"study {plan.name}: {said}; {folder / 'results.csv'}")
    return 0 if now.keys() == {"COMPLETE"} else EXIT_INCOMPLETE


def _standings(plan: StudyPlan, root: Path, queued: Mapping[str, JobState]) -> list[Standing]:
    jobs, states = short_keys(queued), StageStates(root)
    return [standing_of(member, states, jobs) for member in members_of_plan(plan)]


def _cancel(study: str, root: Path) -> int:
    """Stop what runs and take back what waits; other studies' sweeps of the same runs go on."""
    lines = stop_sweepers(root, study)
    for name in sorted({job.launcher for job in recorded_jobs(root, study)}):
        launcher = make_launcher(name, {}, root, study)
        live = [task for task, state in launcher.poll().items() if state.state in UNFINISHED]
        launcher.cancel(live)
        lines += [f"{_count(len(live), 'job')} cancelled ({name})"] if live else []
    for line in lines or [f"nothing of study {study} runs or waits"]:
        _say(line)
    return 0


def _print_json(plan: StudyPlan, root: Path) -> None:
    print(json.dumps(plan_as_json(plan, root), indent=2))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def find_study(name: str, root: Path) -> Path:
    """The file of a study: a path, or a name in ROOT/experiments.

    Raises:
        UserError: there is none; it names those there are.
    """
    given = Path(name)
    if given.suffix in (".yaml", ".yml") and given.is_file():
        return given
    folder = Path(root) / "experiments"
    path = folder / f"{given.stem if given.suffix in ('.yaml', '.yml') else given.name}.yaml"
    if path.is_file():
        return path
    there = ", ".join(sorted(other.stem for other in folder.glob("*.yaml"))) or "none"
    raise UserError(f"study '{name}': no such file, and no {path}; studies there: {there}")
