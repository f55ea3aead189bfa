"""`realm-lab sweep`: plan, record, run or submit unfinished runs, collect. Running it again resumes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from realm_lab.errors import UserError, suggestion
from realm_lab.evidence.ledger import note_plan
from realm_lab.records.files import print_json, read_json, read_object
from realm_lab.records.launched import own_package
from realm_lab.records.run import read_run_record
from realm_lab.records.state import UNFINISHED, JobState, StageStates, State, run_state
from realm_lab.records.study import StudyRun, check_study_name, read_study_record, study_folder
from realm_lab.runner.launchers import LauncherSettings
from realm_lab.runner.on_finish import call, message
from realm_lab.runner.other_code import described, other_code, settle_code
from realm_lab.runner.plan import StudyPlan, plan_study, record_study, study_record
from realm_lab.runner.preview import after_tuning, in_every_cell, plan_as_json, show_plan
from realm_lab.runner.progress import SweepProgress
from realm_lab.runner.schedule import Launcher, PartlySubmitted, detached_launchers, launcher_of
from realm_lab.runner.status import in_words
from realm_lab.runner.stopping import Stop, stop_sweepers, stoppable, sweeping
from realm_lab.runner.tasks import Task, state_of_run, tasks_of
from realm_lab.systems.identity import corpus_folder

POLL_SECONDS = 0.2
FOLLOW_SECONDS = 2.0  # between two looks at what others do
EXIT_INCOMPLETE = 1


@dataclass(frozen=True)
class Request:
    path: Path
    root: Path
    params_path: Path | None = None
    launcher: str | None = None  # None: the study's (or search's) own, else local
    seeds: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    as_json: bool = False
    follow: bool = False
    retry_failed: bool = False
    force: bool = False  # replace a report of more complete runs
    trials: int | None = None  # of a search; None: its own
    cells: tuple[str, ...] = ()  # only these are run, with commas between them; empty: all
    profile: str | None = None  # of a cluster
    cluster: Mapping[str, Any] = field(default_factory=dict)  # settings over those of the profile
    pilot: str | None = None  # of --power: the study whose spread is used
    on_finish: bool = True  # call what the study names when it ends

    def launcher_for(self, settings: LauncherSettings, study: str) -> Launcher:
        """Return the launcher that is asked for, else the study's."""
        return launcher_of(study, Path(self.root), settings, self.launcher, self.profile, self.cluster)


def sweep(request: Request) -> int:
    """Do what the command line asks; returns the exit code: 0 when all is complete, or submitted to a queue. It goes on
    as long as the study wants more runs by its results: trials of its cells, then its own runs, then more seeds."""
    while True:
        code, plan = _sweep_once(request)
        if code or plan is None or not (plan.rule or plan.tuning):
            return code
        whole = _planned(request)
        if whole.is_tuning and whole.tuning and not whole.tuning.left:
            cells = ", ".join(cell.cell for cell in whole.tuning.cells if cell.best is None)
            say(f"every trial of {cells} failed, so none can be chosen: change its space, or --retry-failed")
            return EXIT_INCOMPLETE
        if {run.run_key for run in whole.wanted} <= {run.run_key for run in plan.wanted}:
            return code


def _of_this_code(plan: StudyPlan, request: Request) -> StudyPlan:
    """Return a study with `tune` without results of other code in its choices, unless they are accepted."""
    root = Path(request.root)
    assert plan.tuning is not None
    if not other_code(plan.trials, root, plan.tuning.last_stage):
        return plan
    settle_code(plan.trials, root, plan.tuning.last_stage)
    return _planned(request)


def _planned(request: Request) -> StudyPlan:
    return plan_study(
        request.path,
        request.root,
        params_path=request.params_path,
        overrides=request.overrides,
    )


def _sweep_once(request: Request) -> tuple[int, StudyPlan | None]:
    """Return the exit code, and the plan if its runs have ended."""
    root = Path(request.root)
    check_file(request.path, root)
    whole = _planned(request)
    if whole.tuning and not request.dry_run:
        whole = _of_this_code(whole, request)
    plan = part_of(whole, request.cells, request.seeds)
    launcher = request.launcher_for(plan.launcher, plan.name)
    if request.dry_run:
        if request.as_json:
            tasks = tasks_of(plan.runs, StageStates(root / "runs"), retry_failed=True)
            list(launcher.preview(tasks))
            print_json(plan_as_json(plan, root))
            if found := other_code(plan.runs, root):
                say(described(found))
        else:
            show_plan(plan, root, launcher=launcher)
            if whole.is_tuning:
                print(after_tuning(whole, root, launcher.at_once))
        return 0, None

    def tasks_left() -> list[Task]:
        states = StageStates(root / "runs")
        return tasks_of(plan.runs, states, retry_failed=request.retry_failed, until=plan.last_stage)

    settle_code(plan.runs, root, plan.last_stage, check=lambda: launcher.check(tasks_left()))
    tasks = tasks_left()
    tasks, left = launcher.free(tasks)
    _say_beginning(plan, root, tasks, left, launcher, request.retry_failed)
    # The plan comes first.
    note_plan(root / "runs", study_record(whole, root), request.path, _with_results(whole, root))
    if launcher.detached and tasks:
        try:
            launcher.submit(tasks)
        except PartlySubmitted:  # if none was taken, the study stays as it was
            record_study(whole, root)
            raise
        say(f"submitted {_count(len(tasks), 'task')}")
    record_study(whole, root)
    if launcher.detached:
        has_ended = request.follow or not tasks
        return _follow(launcher, tasks, plan, request, root), whole if has_ended else None
    return _run(launcher, tasks, plan, request, root), whole


def part_of(plan: StudyPlan, named: Sequence[str], seeds: int | None = None) -> StudyPlan:
    """Return the plan with the runs that it wants now, only those of some cells, several in a text with commas, which
    names of cells may have, too; default: all. `seeds`: only those of the first ones, except for trials. UserError: no
    such cell, or fewer seeds than that."""
    plan = replace(plan, runs=plan.wanted)
    if seeds is not None and not plan.is_tuning:
        most = plan.rule.at_most if plan.rule else len(plan.seeds)
        if seeds > most:
            raise UserError(f"--seeds {seeds}: study {plan.name} has {most}; add seeds to its file")
        plan = replace(plan, runs=tuple(run for run in plan.runs if run.seed in plan.seeds[:seeds]))
    if not named:
        return plan
    known, wanted = [cell.name for cell in plan.cells], set()
    for text in named:
        parts = text.split(",")
        while parts:
            heads = [",".join(parts[:size]) for size in range(len(parts), 0, -1)]
            found = next((head for head in heads if head in known), "")
            if not found:
                raise UserError(f"--cells: study {plan.name} has no cell '{parts[0]}'; {suggestion(parts[0], known)}")
            wanted.add(found)
            parts = parts[found.count(",") + 1 :]
    return replace(plan, runs=tuple(run for run in plan.runs if run.cell in wanted))


def _with_results(plan: StudyPlan, root: Path) -> int:
    """Count the complete runs of the study: planned ones, and others that it had when it was recorded last."""
    planned = {run.run_key for run in plan.runs}
    others = [run for run in _recorded(plan, root) if run.run_key not in planned]
    return _counts(plan, root)["COMPLETE"] + sum(_is_complete(run, root) for run in others)


def _recorded(plan: StudyPlan, root: Path) -> tuple[StudyRun, ...]:
    """Return the runs of the plan before; none of a record that cannot be read, which the plan replaces."""
    path = study_folder(root / "runs", plan.name) / "study.json"
    with suppress(UserError):
        return read_study_record(path).runs if path.exists() else ()
    return ()


def check_file(path: Path, root: Path) -> None:
    """UserError: the runs here of a study of that name are of another file, which is still there."""
    record = study_folder(root / "runs", path.stem) / "study.json"
    source = str(read_object(record).get("source", "")) if record.exists() else ""
    if source and (root / source).is_file() and not (root / source).samefile(path):
        raise UserError(f"study {path.stem} is that of {source}, with runs and a report", "rename the file", path=path)


def _is_complete(run: StudyRun, root: Path) -> bool:
    file = root / "runs" / run.run / "run.json"
    return file.exists() and run_state(root / "runs", read_run_record(file)).state == "COMPLETE"


def _say_beginning(
    plan: StudyPlan, root: Path, tasks: Sequence[Task], left: Sequence[str], launcher: Launcher, retry_failed: bool
) -> None:
    counts = _counts(plan, root)
    todo = f"{_count(len(tasks), 'task')} to do ({launcher.name})" if tasks else "nothing to do"
    runs, cells = _count(len(plan.runs), "run"), _count(len({run.cell for run in plan.runs}), "cell")
    say(f"study {plan.name}: {runs} in {cells}, {counts['COMPLETE']} complete; {todo}")
    if plan.common:
        say(in_every_cell(plan))
    for why in left:
        say(f"left alone: {why}")
    if gone := _without_corpus(plan, root):
        again = "`realm-lab prepare` with its parameters makes one again, and so does a new run that needs it"
        say(f"{_count(gone, 'complete run')} without the prepared corpus, which only `ask` and the like need: {again}")
    if counts["FAILED"] and not retry_failed:
        failed = _count(counts["FAILED"], "run")
        say(f"{failed} failed and stay so: see `realm-lab status {plan.name}`, then --retry-failed")


def _follow(launcher: Launcher, tasks: Sequence[Task], plan: StudyPlan, request: Request, root: Path) -> int:
    """Wait for a queue if asked to; results are collected once everything is complete."""
    try:
        with stoppable() as stop, mirroring(request, root):
            if request.follow:
                drive(launcher, tasks, root, FOLLOW_SECONDS, wait_for_others=True, study=plan.name)
    except SystemExit:
        say(f"the jobs go on; watch them with `realm-lab status {plan.name}`")
        return 128 + stop.number
    counts = _counts(plan, root)
    if request.follow or counts["COMPLETE"] + counts["FAILED"] * plan.is_tuning == len(plan.runs):
        return _finish(plan, request, root, tasks)
    say(f"watch: `realm-lab status {plan.name}`; when all are complete, the same command again collects the results")
    if request.as_json:
        print_json(plan_as_json(plan, root))
    return 0


def _run(launcher: Launcher, tasks: Sequence[Task], plan: StudyPlan, request: Request, root: Path) -> int:
    """Run the tasks here, until all have ended or only those are left that others work on."""
    stop = Stop()
    try:
        with stoppable() as stop, sweeping(root, plan.name), mirroring(request, root), closing(launcher):
            launcher.submit(tasks)
            drive(launcher, tasks, root, wait_for_others=request.follow, study=plan.name)
    except SystemExit as left:
        say(f"stopped after checkpoints; `realm-lab sweep {request.path}` goes on from there")
        return 128 + stop.number if stop.number else int(left.code or 0)  # of a training loop that noted the signal
    return _finish(plan, request, root, tasks)


def drive(
    launcher: Launcher,
    tasks: Sequence[Task],
    root: Path,
    pause_seconds: float = POLL_SECONDS,
    *,
    wait_for_others: bool,
    say_failures: bool = True,
    study: str = "",
) -> dict[str, JobState]:
    """Poll until nothing of the tasks waits or runs; the last states. Without `wait_for_others`, what other processes
    work on is left to them. `study`: whose verdict a terminal shows meanwhile."""
    before: dict[str, JobState] = {}
    progress = SweepProgress(tasks, root, say_failures=say_failures, study=study)
    with progress.bars, progress.watching(launcher):
        while True:
            states = launcher.poll()
            progress.update(states)
            counts = Counter(state.state for state in states.values())
            if not any(counts[state] for state in UNFINISHED):
                return states
            if states == before:
                if not (counts["RUNNING"] or counts["QUEUED"] or wait_for_others):
                    for name, state in states.items():
                        if state.state == "PENDING":
                            say(f"left alone: {progress.tasks[name].title}: {state.error}")
                    return states
                time.sleep(pause_seconds)
            before = states


@contextmanager
def mirroring(request: Request, root: Path) -> Iterator[None]:
    """With --follow, MLflow shows the runs while they are made, and all of them at the end."""
    if not request.follow:
        yield
        return
    command = [sys.executable, "-m", "realm_lab", "mirror", "--root", str(root)]
    if request.params_path is not None:
        command += ["--params", str(request.params_path)]
    environment = os.environ | own_package()
    mirror = subprocess.Popen([*command, "--follow"], stdout=subprocess.DEVNULL, env=environment, process_group=0)
    try:
        yield
    finally:
        mirror.terminate()
        mirror.wait()
    subprocess.run(command, env=environment, check=False)


def _finish(plan: StudyPlan, request: Request, root: Path, tasks: Sequence[Task]) -> int:
    """Collect the results and print the number of runs in each state. `tasks`: the tasks done for that."""
    if plan.is_tuning:
        return _finish_trials(plan, request, root)
    # pandas and matplotlib take a second to import
    from realm_lab.evidence.report.frames import read_summary
    from realm_lab.evidence.report.report import write_study_report

    say(f"study {plan.name}: writing its report")
    before = read_summary(root / "reports" / plan.name).get("coverage")
    with Console(stderr=True).status(""):
        folder = write_study_report(root, plan.name, force=request.force)
    if request.as_json:
        print_json(plan_as_json(plan, root))
    counts = _counts(plan, root)
    summary = read_json(folder / "summary.json")
    for sentence in filter(None, (summary["lead"], summary.get("missing"))):
        say(sentence)
    say(f"study {plan.name}: {in_words(counts)}; {folder / 'report.md'}, {folder / 'results.csv'}")
    is_news = tasks or before != read_summary(folder)["coverage"]
    if plan.on_finish and request.on_finish and is_news and not _wants_seeds(plan, request):
        if problem := call(plan.on_finish, message(plan.name, folder, {str(s): n for s, n in counts.items()}), root):
            say(problem)
    return 0 if counts.keys() == {"COMPLETE"} else EXIT_INCOMPLETE


def _wants_seeds(plan: StudyPlan, request: Request) -> bool:
    """True if the sweep of a study that takes seeds until it is decided continues with more."""
    if plan.rule is None or _counts(plan, Path(request.root)).keys() != {"COMPLETE"}:
        return False
    wanted = part_of(_planned(request), request.cells, request.seeds)
    return not {run.run_key for run in wanted.runs} <= {run.run_key for run in plan.runs}


def _finish_trials(plan: StudyPlan, request: Request, root: Path) -> int:
    """Print the number of trial runs in each state; a failed one is a trial without a value, so 0 if all have ended."""
    counts = _counts(plan, root)
    if request.as_json:
        print_json(plan_as_json(plan, root))
    say(f"trials of {plan.name}: {in_words(counts)}")
    if counts["FAILED"]:
        say(f"failed trials are not chosen: see `realm-lab status {plan.name}`")
    return 0 if counts.keys() <= {"COMPLETE", "FAILED"} else EXIT_INCOMPLETE


def _without_corpus(plan: StudyPlan, root: Path) -> int:
    """Count the complete runs whose prepared corpus is gone."""
    states = StageStates(root / "runs")
    return sum(
        not (corpus_folder(root, run.plan) / "manifest.json").exists()
        and state_of_run(run.plan, states, plan.last_stage).state == "COMPLETE"
        for run in plan.runs
    )


def _counts(plan: StudyPlan, root: Path) -> Counter[State]:
    states = StageStates(root / "runs")
    return Counter(state_of_run(run.plan, states, plan.last_stage).state for run in plan.runs)


def cancel_study(study: str, root: Path) -> int:
    """Stop running tasks and withdraw waiting ones; other studies' sweeps of the same runs continue."""
    lines = stop_sweepers(root, study)
    for launcher in detached_launchers(study, root):
        live = [task for task, state in launcher.poll().items() if state.state in UNFINISHED]
        launcher.cancel(live)
        lines += [f"{_count(len(live), 'job')} cancelled ({launcher.name})"] if live else []
    for line in lines or [f"nothing of study {study} runs or waits"]:
        say(line)
    return 0


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def study_of_cell(name: str) -> str:
    """STUDY of `STUDY/CELL`; "" for other names and for paths of files."""
    parts = Path(name).parts
    return parts[0] if len(parts) == 2 and not name.endswith(".yaml") and parts[0] not in ("experiments", "/") else ""


def find_study(name: str, root: Path, verb: str = "sweep") -> Path:
    """The file of a study, or of a search (`search`): a path, or a name in ROOT/experiments. UserError: there is
    none, and which is nearest; or it is one for the other command."""
    given, folder = Path(name), Path(root) / "experiments"
    if study := study_of_cell(name):
        find_study(study, root, verb)
        raise UserError(f"'{name}' is a cell or a run of study {study}; name only the study")
    stem = given.name.removesuffix(".yaml")
    path = folder / f"{stem}.yaml"
    places = [given, folder / f"search-{stem}.yaml", path] if verb == "search" else [given, path]
    for found in places:
        if found.suffix == ".yaml" and found.is_file() and found.name != "dvc.yaml":
            fits = "search" if re.search(r"^space:", found.read_text("utf-8", "replace"), re.MULTILINE) else "sweep"
            if fits != verb:
                kind, other = ("a search", "a study") if fits == "search" else ("a study", "a search")
                raise UserError(f"{found} is {kind}, not {other}; run `realm-lab {fits} {found.stem}`")
            check_study_name(found.stem, str(found), "rename the file")
            return found
    known = {other.stem for other in folder.glob("*.yaml")} - {"dvc"}
    if not known:
        raise UserError(f"study '{name}': no such file, and no studies in {folder}; `realm-lab init FOLDER` has one")
    remedy = suggestion(f"search-{stem}" if verb == "search" else stem, sorted(known))
    raise UserError(f"study '{name}': no such file, and no {path} (`realm-lab status` lists all); {remedy}")
