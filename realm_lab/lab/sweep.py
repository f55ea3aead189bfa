"""`realm-lab sweep`: plan, record, run or submit unfinished runs, collect. Running it again resumes."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from realm_lab.engine.systems.identity import corpus_folder
from realm_lab.errors import UserError, suggestion
from realm_lab.evidence.ledger import note_plan
from realm_lab.lab.launchers import Launcher, PartlySubmitted, detached_launchers, launcher_of
from realm_lab.lab.other_code import described, other_code, settle_code
from realm_lab.lab.plan import plan_study
from realm_lab.lab.preview import after_tuning, in_every_cell, plan_as_json, show_plan, show_search
from realm_lab.lab.progress import POLL_SECONDS, drive, say
from realm_lab.lab.results import Results
from realm_lab.lab.rules import search as search_rule
from realm_lab.lab.rules.tune import tuned
from realm_lab.lab.status import in_words
from realm_lab.lab.stopping import check_locks, stop_sweepers, stoppable, sweeping
from realm_lab.lab.study import StudyPlan
from realm_lab.lab.tasks import Task, nodes_of, tasks_of
from realm_lab.lab.wanted import record_study, settled, study_record, wanted
from realm_lab.records.files import print_json, read_json, read_object
from realm_lab.records.launched import own_package
from realm_lab.records.lease import exclusive
from realm_lab.records.plugins import ChoiceAsWritten
from realm_lab.records.run import Run, State, read_run
from realm_lab.records.state import UNFINISHED, Cause, StageState, StageStates
from realm_lab.records.study import StudyRecord, check_study_name, read_study_record, study_folder

FOLLOW_SECONDS = 2.0  # between two looks at the jobs of a queue
EXIT_INCOMPLETE = 1
MOST_SUBMISSIONS = 100  # of a task that a queue ends again and again


@dataclass
class Sweep:
    """One sweep of a study, as the command line asks for it. It starts the runs that are wanted and not done, and
    determines the wanted runs again whenever a run ends."""

    path: Path
    root: Path
    params_path: Path | None = None
    launcher: ChoiceAsWritten | None = None  # None: as in the file, else local
    seeds: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    as_json: bool = False
    follow: bool = False
    join: bool = False  # work here, together with other machines, until all is done
    retry_failed: bool = False
    force: bool = False  # replace a report of more complete runs
    cells: Sequence[str] = ()  # the only cells to run; a text may name several, with commas; empty: all
    profile: str | None = None  # of a cluster
    cluster: Mapping[str, Any] = field(default_factory=dict)  # settings of SLURM that override the profile's
    pilot: str | None = None  # of --power: the study whose spread is used

    def __post_init__(self) -> None:
        self.root = Path(self.root)
        self._runs: list[Run] | None = None  # wanted ones, of the cells and seeds that are asked for
        self._known: dict[str, Run] = {}  # run key -> run, for all that were wanted so far
        self._tasks: dict[str, Task] = {}  # all that the launcher got
        self._going: set[str] = set()  # names of these tasks that have not ended
        self._withdrawn: set[str] = set()  # tasks that somebody cancelled in a queue
        self._submissions: Counter[str] = Counter()  # task -> how often it was submitted again

    @functools.cached_property
    def study(self) -> StudyPlan:
        """The study as it is planned. UserError: its file or a parameter is wrong."""
        return plan_study(self.path, self.root, params_path=self.params_path, overrides=self.overrides)

    @functools.cached_property
    def by(self) -> Launcher:
        """The launcher that is asked for, else `local` with --join, else the study's. UserError: --join with a launcher
        of a queue."""
        chosen, settings = self.launcher or ("local" if self.join else None), self.study.launcher
        launcher = launcher_of(self.study.name, self.root, settings, chosen, self.profile, self.cluster)
        if self.join and launcher.detached:
            raise UserError(f"sweep --join works on this machine: leave it out for the launcher '{launcher.name}'")
        return launcher

    @functools.cached_property
    def results(self) -> Results:
        """The results of its runs so far."""
        return Results(self.root, retry_failed=self.retry_failed)

    def run(self) -> int:
        """Do what the command line asks; returns the exit code: 0 when all is complete, or submitted to a queue."""
        check_file(self.path, self.root)
        study, launcher, signals = self.study, self.by, list[int]()
        if self.dry_run:
            self._preview()
            return 0
        is_search = study.search is not None
        if self.join:
            check_locks(self.root)
        if study.search is None:
            self.begin()
        else:
            if launcher.at_once == 1:  # one trial at a time, each proposed after the results of all earlier ones
                self.study = replace(study, search=study.search.model_copy(update={"parallel": 1}))
            launcher.check([])  # no tasks yet: they come from the journal
        alone = sweeping(self.root, study.name, alone=is_search)
        try:
            with stoppable() as signals, alone, self.mirroring(), closing(launcher):
                if is_search:
                    self.begin()
                return self._carry_on()
        except SystemExit as left:
            if is_search and self._runs is not None:
                self._report()
            how = "the jobs go on" if launcher.detached else "stopped after checkpoints"
            say(f"{how}; `realm-lab sweep {self.path}` goes on from there")
            return 128 + signals[0] if signals else int(left.code or 0)  # the exit code of a training loop

    def _preview(self) -> None:
        """Print what would be run."""
        study, root = self.study, self.root
        if study.search is not None:
            show_search(study, root, as_json=self.as_json)
            return
        runs = part_of(study, wanted(study, self.results), self.cells, self.seeds)
        shown, trials = settled(study, self.results)
        if self.as_json:
            list(self.by.preview(tasks_of(runs, self.results.states, retry_failed=True)))
            print_json(plan_as_json(shown, runs, root))
            if found := other_code(runs, root):
                say(described(found))
            return
        show_plan(shown, runs, root, launcher=self.by)
        if trials is not None and not trials.choices:
            print(after_tuning(study, trials, root, self.by.at_once))

    def begin(self) -> list[Task]:
        """Give the launcher the wanted runs that are neither done nor started, and return their tasks. Before that,
        note the plan of a study in the ledger."""
        is_first = self._runs is None
        if is_first:
            self._settle_choices()
        runs = part_of(self.study, wanted(self.study, self.results), self.cells, self.seeds)
        new = [run for run in runs if run.run_key not in self._known]
        self._runs = runs
        if not new and not is_first:
            return []
        self._known |= {run.run_key: run for run in new}
        settle_code(new, self.root, check=lambda: self.by.check(self._left()))
        self.results.look_again()
        with self._submitting():
            tasks, left = self.by.free(self._left())
            if self.join:  # so that machines that start together do not all try the same task
                random.shuffle(tasks)
            if self.study.search is None:
                self._say_beginning(tasks, left, is_first)
                record = study_record(self.study, self.results)
                note_plan(self.root / "runs", record, self.path, self._with_results(record))
            try:
                self.by.submit(tasks)
            except PartlySubmitted:  # after any other error, study.json stays as it was
                record_study(self.study, self.root, self.results)
                raise
        record_study(self.study, self.root, self.results)
        self._tasks |= {task.name: task for task in tasks}
        if self.by.detached and tasks:
            say(f"submitted {_count(len(tasks), 'task')}")
        return tasks

    def _submitting(self) -> AbstractContextManager[Any]:
        """Inside, no other sweep submits to a queue, so that no task has two jobs."""
        return exclusive(self.root / "runs" / "submit.lock") if self.by.detached else nullcontext()

    def _submit_free(self, tasks: Sequence[Task]) -> tuple[list[Task], list[str]]:
        """Submit the tasks that nobody has. Returns them, and a line for each task that somebody has."""
        with self._submitting():
            free, others = self.by.free(tasks)
            if free:
                self.by.submit(free)
        self._tasks |= {task.name: task for task in free}
        return free, others

    def _settle_choices(self) -> None:
        """Accept or delete results of other code that a tuning or search chooses by. UserError: `launch.other_code` is
        `stop`, or `fresh` in a search, whose later trials depend on these results."""
        if self.study.search is not None:
            runs = search_rule.ended(self.study, self.results)
            if runs and runs[0].params.launch.other_code == "fresh" and other_code(runs, self.root):
                name = self.study.name
                raise UserError(
                    f"search {name}: later trials were chosen by results of other code; --accept keeps these; "
                    f"to start again, `realm-lab gc --forget {name} --yes` first"
                )
            settle_code(runs, self.root)
        elif self.study.tuning is not None:
            settle_code(tuned(self.study, self.results).runs, self.root)
            self.results.look_again()

    def _carry_on(self) -> int:
        """Start the wanted runs, and report whenever all of them have ended, until no new run is wanted; or leave them
        to a queue. Returns the exit code."""
        before, code, tasks = self._coverage() or {}, 0, [*self._tasks.values()]
        lock = study_folder(self.root / "runs", self.study.name) / "report.lock"
        while not self._is_left_to_a_queue(tasks):
            self.results.look_again()
            if self._is_tuning or self.study.search is not None:  # to record which trials have ended
                record_study(self.study, self.root, self.results)
            with exclusive(lock) if self.join else nullcontext():
                now, states = self._coverage() or {}, {str(state): n for state, n in self._counts().items()}
                # another machine has just reported these states
                is_there = self.join and not self._is_tuning and before != now and now.get("states") == states
                code, known = self._exit_code() if is_there else self._report(), len(self._known)
            tasks = self.begin()
            if len(self._known) == known:
                self._print_json()
                return code
        say(f"watch: `realm-lab status {self.study.name}`; when all runs are complete, the same sweep again collects "
            "the results")  # fmt: skip
        self._print_json()
        return code

    def _is_left_to_a_queue(self, tasks: Sequence[Task]) -> bool:
        """Wait until all tasks have ended, and show `tasks` meanwhile. With a queue and without --follow, do not wait:
        return True unless all wanted runs are complete (in a tuning, complete or failed)."""
        if self.by.detached and not self.follow and self.study.search is None:
            left = [run for run in self._runs or () if self.results.look(run).state != "COMPLETE"]
            return not (self._is_tuning and all(map(self.results.has_failed, left))) if left else False
        while True:
            if self.by.detached:  # jobs that an earlier sweep of this study submitted
                live = {name for name, state in self.by.poll().items() if state.state in UNFINISHED}
                self._tasks |= {task.name: task for task in self._left() if task.name in live}
            drive(
                self.by,
                tasks,
                self.root,
                FOLLOW_SECONDS if self.by.detached else POLL_SECONDS,
                wait_for_others=self.follow or self.join or self.study.search is not None,
                more=self.look_again,
            )
            if not self.by.detached or not (tasks := self._taken_over()):
                return False

    def _taken_over(self) -> list[Task]:
        """Wait for jobs of other studies that do stages of this study, and print them; submit and return the tasks that
        these leave."""
        before: list[str] = []
        while True:
            tasks, others = self._submit_free(self._left())
            if tasks or not others:
                return tasks
            if others != before:
                say(f"waits for others: {'; '.join(others)}")
            before = others
            time.sleep(FOLLOW_SECONDS)

    def look_again(self, states: Mapping[str, StageState]) -> list[Task]:
        """Start the runs that are wanted since a trial ended, and cancel tasks that no wanted run needs. Further seeds
        of a rule start later, after a report (`_carry_on`)."""
        if again := self._again(states):
            return again
        going = {name for name, state in states.items() if name in self._tasks and state.state in UNFINISHED}
        is_news = going != self._going or (self.study.search is not None and self.study.search.pruning is not None)
        if not is_news or not (self._is_tuning or self.study.search is not None):
            return []
        self._going = going
        self.results.look_again()
        at_work = {node for name in going for node in self._tasks[name].keys.items()}
        begun = {node for task in self._tasks.values() for node in task.keys.items()}
        for key, run in self._known.items():
            if nodes_of(run) & begun and not nodes_of(run) & at_work:
                self.results.ended.add(key)
        tasks = self.begin()
        needed = {node for run in self._runs or () for node in nodes_of(run)}
        spare = {name for name in going if not needed & self._tasks[name].keys.items()}
        if spare:
            self.by.cancel(spare)
        return tasks

    def _again(self, states: Mapping[str, StageState]) -> list[Task]:
        """Submit again, at most MOST_SUBMISSIONS times each, tasks that a queue ended without a fault: preempted tasks,
        and tasks that need them. Tasks that somebody cancelled, and tasks that need these, are left out."""
        if not self.by.detached:
            return []
        ended = {name: states[name] for name in self._tasks.keys() & states.keys()}
        without = {name for name, state in ended.items() if state.reason and state.reason.cause is Cause.NEEDED}
        self._withdrawn |= {name for name, state in ended.items() if state.state == "CANCELLED"} - without
        again: dict[str, Task] = {}
        for name, task in self._tasks.items():  # each after those that it needs
            stopped = name in ended and ended[name].state in ("PREEMPTED", "CANCELLED") and name not in self._withdrawn
            needed = {ended[other].state for other in task.after if other in ended and other not in again}
            if stopped and needed <= {*UNFINISHED, "COMPLETE"} and self._submissions[name] < MOST_SUBMISSIONS:
                again[name] = task
        tasks = self._submit_free([*again.values()])[0] if again else []
        for name in again.keys() - {task.name for task in tasks}:
            del self._tasks[name]  # others work on it, and `_taken_over` waits for them
        if tasks:
            self._submissions.update(task.name for task in tasks)
            say(f"submitted again: {', '.join(task.title for task in tasks)}")
        return tasks

    @property
    def _is_tuning(self) -> bool:
        return any(run.trial is not None for run in self._runs or ())

    def _left(self) -> list[Task]:
        """Return tasks of the wanted runs that are neither done nor given to the launcher."""
        found = tasks_of(
            self._runs or (),
            StageStates(self.root / "runs"),
            retry_failed=self.retry_failed,
            each_stage_alone=self.study.search is not None,
        )
        return [task for task in found if task.name not in self._tasks]

    def _with_results(self, record: StudyRecord) -> int:
        """Count the complete runs of the study: wanted ones, and others that it had when it was recorded last."""
        keys, runs, before = {run.run_key for run in record.runs}, self.root / "runs", tuple[Run, ...]()
        with suppress(UserError):  # this plan replaces a record that is missing or cannot be read
            before = read_study_record(study_folder(runs, record.name) / "study.json").runs
        paths = [runs / run.name / "run.json" for run in before if run.run_key not in keys]
        there = [read_run(path) for path in paths if path.exists()]
        return sum(self.results.look(run).state == "COMPLETE" for run in (*record.runs, *there))

    def _say_beginning(self, tasks: Sequence[Task], left: Sequence[str], is_first: bool) -> None:
        study, counts, runs = self.study, self._counts(), self._runs or ()
        todo = f"{_count(len(tasks), 'task')} to do ({self.by.name})" if tasks else "nothing to do"
        cells = _count(len({run.cell for run in runs}), "variant")
        say(f"study {study.name}: {_count(len(runs), 'run')} in {cells}, {counts['COMPLETE']} complete; {todo}")
        for why in left:
            say(f"left alone: {why}")
        if not is_first:
            return
        if study.design.common:
            say(in_every_cell(study))
        gone = sum(
            not (corpus_folder(self.root, run) / "manifest.json").exists()
            and self.results.look(run).state == "COMPLETE"
            for run in runs
        )
        if gone:
            again = "`realm-lab prepare` with the run's parameters makes it again, as does a new run with this corpus"
            what = "without a prepared corpus, which only `ask` and the like need"
            say(f"{_count(gone, 'complete run')} {what}: {again}")
        if counts["FAILED"] and not self.retry_failed:
            failed = _count(counts["FAILED"], "run")
            say(f"{failed} failed and are not tried again: see `realm-lab status {study.name}`, then --retry-failed")

    def _counts(self) -> Counter[State]:
        return Counter(self.results.look(run).state for run in self._runs or ())

    def _exit_code(self) -> int:
        return 0 if self._counts().keys() == {"COMPLETE"} else EXIT_INCOMPLETE

    def _coverage(self) -> Any:
        from realm_lab.evidence.report.frames import read_summary  # brings pandas

        return read_summary(self.root / "reports" / self.study.name).get("coverage")

    def _report(self) -> int:
        """Write the report and print the number of runs in each state; returns the exit code. After trials of a tuning
        there is no report, and the code is 0 if all have ended, unless every trial of a cell failed."""
        name, counts = self.study.name, self._counts()
        if self.study.search is not None:
            from realm_lab.evidence.report.sections.search import write_search_report  # brings matplotlib

            folder, summary = write_search_report(self.root, name)
            found = ", ".join(f"{count} {state}" for state, count in summary["trials"].items() if count)
            say(f"search {name}: {found}; {folder / 'report.md'}")
            return 0 if search_rule.is_well(self.study, self.results) else EXIT_INCOMPLETE
        if self._is_tuning:
            say(f"trials of {name}: {in_words(counts)}")
            trials = tuned(self.study, self.results)
            if counts["FAILED"]:
                say(f"failed trials are not chosen: see `realm-lab status {name}`")
            if not trials.left and not trials.choices:
                cells = ", ".join(cell for cell, best in trials.best.items() if best is None)
                say(f"every trial of {cells} failed, so none can be chosen: change its space, or --retry-failed")
                return EXIT_INCOMPLETE
            return 0 if counts.keys() <= {"COMPLETE", "FAILED"} else EXIT_INCOMPLETE
        from realm_lab.evidence.report.report import write_study_report  # pandas and matplotlib take a second to import

        say(f"study {name}: writing its report")
        with Console(stderr=True).status(""):
            folder = write_study_report(self.root, name, force=self.force)
        summary = read_json(folder / "summary.json")
        for sentence in filter(None, (summary["lead"], summary.get("missing"))):
            say(sentence)
        say(f"study {name}: {in_words(counts)}; {folder / 'report.md'}, {folder / 'results.csv'}")
        return self._exit_code()

    def _print_json(self) -> None:
        if self.as_json and self.study.search is not None:
            print_json(read_json(self.root / "reports" / self.study.name / "summary.json"))
        elif self.as_json:
            print_json(plan_as_json(settled(self.study, self.results)[0], self._runs or [], self.root))

    @contextmanager
    def mirroring(self) -> Iterator[None]:
        """With --follow, show the runs in MLflow while they are computed, and all of them at the end."""
        if not self.follow:
            yield
            return
        command = [sys.executable, "-m", "realm_lab", "mirror", "--root", str(self.root)]
        if self.params_path is not None:
            command += ["--params", str(self.params_path)]
        environment = os.environ | own_package()
        mirror = subprocess.Popen([*command, "--follow"], stdout=subprocess.DEVNULL, env=environment, process_group=0)
        try:
            yield
        finally:
            mirror.terminate()
            mirror.wait()
        subprocess.run(command, stdout=2, env=environment, check=False)  # so that only the JSON goes to stdout


def part_of(study: StudyPlan, runs: Sequence[Run], named: Sequence[str], seeds: int | None = None) -> list[Run]:
    """Return the runs of some cells. Each text of `named` has one or more names, separated by commas; a name may also
    contain commas. Empty: all cells. `seeds`: only the first seeds, this many, except for trials. UserError: no such
    cell, or too few seeds."""
    if seeds is not None and seeds > len(study.seeds):
        raise UserError(f"--seeds {seeds}: study {study.name} has {len(study.seeds)}; add seeds to its file")
    if seeds is not None and not any(run.trial is not None for run in runs):
        runs = [run for run in runs if run.seed in study.seeds[:seeds]]
    if not named:
        return [*runs]
    known, chosen = [cell.name for cell in study.cells], set()
    for text in named:
        parts = text.split(",")
        while parts:
            heads = [",".join(parts[:size]) for size in range(len(parts), 0, -1)]
            found = next((head for head in heads if head in known), "")
            if not found:
                raise UserError(
                    f"--cells: study {study.name} has no variant '{parts[0]}'; {suggestion(parts[0], known)}"
                )
            chosen.add(found)
            parts = parts[found.count(",") + 1 :]
    return [run for run in runs if run.cell in chosen]


def check_file(path: Path, root: Path) -> None:
    """Raise a UserError if a study of that name has runs here from another file that still exists."""
    record = study_folder(root / "runs", path.stem) / "study.json"
    source = str(read_object(record).get("source", "")) if record.exists() else ""
    if source and (root / source).is_file() and not (root / source).samefile(path):
        raise UserError(f"runs and report of study {path.stem} are of {source}", "rename the file", path=path)


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


def study_of_cell(name: str) -> str:
    """STUDY of `STUDY/VARIANT`; "" for other names and for paths of files."""
    parts = Path(name).parts
    return parts[0] if len(parts) == 2 and not name.endswith(".yaml") and parts[0] not in ("experiments", "/") else ""


def find_study(name: str, root: Path, is_search: bool = False) -> Path:
    """The file of a study or search, found by a path or by a name in ROOT/experiments. NAME also finds search-NAME, and
    finds it first if `is_search`. UserError: there is no such file; the nearest name is the remedy."""
    given, folder = Path(name), Path(root) / "experiments"
    if study := study_of_cell(name):
        find_study(study, root)
        raise UserError(f"'{name}' is a variant or a run of study {study}; name only the study")
    stem = given.name.removesuffix(".yaml")
    path = folder / f"{stem}.yaml"
    named = [path, folder / f"search-{stem}.yaml"]
    for found in [given, *(named[::-1] if is_search else named)]:
        if found.suffix == ".yaml" and found.is_file() and found.name != "dvc.yaml":
            check_study_name(found.stem, str(found), "rename the file")
            return found
    known = {other.stem for other in folder.glob("*.yaml")} - {"dvc"}
    if not known:
        raise UserError(f"study '{name}': no such file, and no studies in {folder}; `realm-lab init FOLDER` has one")
    remedy = suggestion(stem, sorted(known))
    raise UserError(f"study '{name}': no such file, and no {path} (`realm-lab status` lists all); {remedy}")
