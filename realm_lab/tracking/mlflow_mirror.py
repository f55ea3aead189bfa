"""MLflow as a view of run folders: which experiments and runs there should be, and keeping them up to date.

An experiment shows a study: one run for the study as a whole, below it one for each run of the study. All of it can be
built again from runs/. A stage under way is shown up to its newest checkpoint, where a resume would begin, so that
nothing has to be taken back.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from realm_lab.core.files import write_text
from realm_lab.errors import UserError
from realm_lab.tracking.mlflow_store import Store, StoreError
from realm_lab.tracking.run_dir import RunRecord, Status, stage_of, stage_statuses, state_of
from realm_lab.tracking.run_view import read_run, settled_step
from realm_lab.tracking.study_view import STUDY_KEY, UNPLANNED, Group, read_groups, read_study, reports_folder
from realm_lab.tracking.tracking_store import default_uri, lock
from realm_lab.tracking.view import View

FINAL = ("COMPLETE", "FAILED")


@dataclass(frozen=True)
class MirrorSummary:
    """What a mirroring did. `problems`: one line for each record or run that could not be shown."""

    uri: str
    states: dict[str, int]
    studies: int = 0
    created: int = 0
    updated: int = 0
    rebuilt: int = 0
    removed: int = 0  # of a study that no longer has them
    waiting: int = 0  # not started yet, hence not in MLflow
    points: int = 0
    problems: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        """Readable records; one that several studies share counts once."""
        return sum(self.states.values())

    def __str__(self) -> str:
        states = ", ".join(f"{count} {state.lower()}" for state, count in sorted(self.states.items()))
        studies = f" of {self.studies} {'study' if self.studies == 1 else 'studies'}" if self.studies else ""
        text = f"{self.runs} runs{studies} ({states or 'none'}) in {self.uri}: "
        text += f"{self.created} new, {self.updated} updated"
        text += f", {self.rebuilt} shown anew" if self.rebuilt else ""
        text += f", {self.removed} no longer in their study" if self.removed else ""
        text += f", {self.points} points sent"
        return text + (f"; {len(self.problems)} not shown: {'; '.join(self.problems)}" if self.problems else "")


def mirror(runs: Path, uri: str | None = None, follow: bool = False, interval_seconds: float = 5.0) -> MirrorSummary:
    """Bring MLflow up to date with `runs`; with `follow`, again and again until all runs are final or Ctrl-C.

    `uri`: the tracking store; else MLFLOW_TRACKING_URI, else mlflow.db (with mlartifacts/) beside `runs`.

    Raises:
        UserError: no such folder, or a store that cannot be opened.
    """
    view = Mirror(runs, uri)
    console = Console(stderr=True)
    live = console.status("mirroring") if follow and console.is_terminal else None
    with live or contextlib.nullcontext(), contextlib.suppress(KeyboardInterrupt):
        while True:
            counts = view.update().states
            if not follow or (counts and all(state in FINAL for state in counts)):
                break
            if live:
                live.update(f"{view.summary} (every {interval_seconds:g} s; Ctrl-C stops)")
            time.sleep(interval_seconds)
    return view.summary


@dataclass
class _Shown:
    """What this process knows of one experiment."""

    experiment: str
    ids: dict[str, str] = field(default_factory=dict)  # key of a view -> id of the run that shows it
    looks: dict[str, object] = field(default_factory=dict)  # key -> what its files looked like when last shown


Statuses = dict[str, dict[str, Status]]  # run's folder name -> stage -> status


class Mirror:
    """One process's view of one folder of runs in one tracking store; `update` may be called any number of times.

    Raises:
        UserError: no such folder, or a store that cannot be opened.
    """

    def __init__(self, runs: Path, uri: str | None = None) -> None:
        self.runs = Path(runs).resolve()
        if not self.runs.is_dir():
            raise UserError(f"{self.runs}: no such folder; train something first (dvc repro), or give --runs FOLDER")
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(self.runs)
        with self._alone():
            self._store = Store(uri, _source(self.runs))
        self.summary = MirrorSummary(self._store.uri, {})
        self._shown: dict[str, _Shown] = {}  # by study
        self._counts: Counter[str] = Counter()  # of runs created, updated, rebuilt and removed
        self._has_looked_for_old_studies = False

    def update(self) -> MirrorSummary:
        """One pass over all records."""
        problems: list[str] = []
        waiting = 0
        with self._alone():
            groups = read_groups(self.runs, problems)
            statuses: Statuses = {}
            found = sorted((member.record for group in groups for member in group.members), key=lambda r: len(r.stages))
            for record in {record.name: record for record in found}.values():  # with the most stages that a study asks
                try:
                    statuses[record.name] = stage_statuses(self.runs, record)
                except UserError as error:
                    problems.append(str(error))
            for group in groups:
                readable = tuple(member for member in group.members if member.record.name in statuses)
                asked = {m.record.name: {s: statuses[m.record.name][s] for s in m.record.stages} for m in readable}
                waiting += self._update_group(replace(group, members=readable), asked, problems)
            if not problems:  # what cannot be read now may be in a study
                try:
                    with self._store.errors_in_one_line():
                        self._remove_what_left(groups)
                except StoreError as error:
                    problems.append(str(error))
            self._store.forget()
        states = Counter(str(state_of(found)) for found in statuses.values())
        self.summary = MirrorSummary(
            self._store.uri,
            states=dict(states),
            studies=sum(group.study is not None for group in groups),
            **{name: self._counts[name] for name in ("created", "updated", "rebuilt", "removed")},
            points=self._store.points,
            waiting=waiting,
            problems=tuple(dict.fromkeys(problems)),
        )
        return self.summary

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """Two mirrors at once would both miss a run, and both make it."""
        return lock(self.runs / ".mirror.lock")

    def _update_group(self, group: Group, statuses: Statuses, problems: list[str]) -> int:
        """Show what has changed in one study; the number of its runs that have not begun."""
        # Looked at before reading: what is written meanwhile is seen the next time.
        looks: dict[str, object] = {
            member.record.run_key: (member.place, self._look(member.record, statuses[member.record.name]))
            for member in group.members
        }
        if group.study is not None:
            looks[STUDY_KEY] = (group.study, _stats([reports_folder(self.runs, group.name)]), dict(looks))
        shown = self._shown.get(group.name)
        changed = {key for key, look in looks.items() if shown is None or shown.looks.get(key) != look}
        if not changed:
            return 0
        waiting = 0
        for view in self._views(group, statuses, changed, problems):
            try:
                with self._store.errors_in_one_line():
                    shown = shown or self._open(group.name)
                    if view.started_ms is None:
                        waiting += view.key != STUDY_KEY
                        self._drop(shown, view.key)
                        continue
                    parent = shown.ids.get(STUDY_KEY)
                    below = parent if view.key != STUDY_KEY else None
                    what = self._store.show(shown.experiment, shown.ids, view, below)
                    self._counts[what] += view.key != STUDY_KEY
                shown.looks[view.key] = looks[view.key]
                if view.key == STUDY_KEY and shown.ids[STUDY_KEY] != parent:
                    changed.update(looks)  # all of them get a new parent
            except StoreError as error:
                problems.append(f"{view.name}: {error}")
        return waiting

    def _views(self, group: Group, statuses: Statuses, changed: set[str], problems: list[str]) -> Iterator[View]:
        """The study as a whole first: what follows is below it."""
        if group.study is not None and STUDY_KEY in changed:
            try:
                yield read_study(self.runs, group.study, group.members, statuses)
            except UserError as error:
                problems.append(str(error))
        for record, place in group.members:
            if record.run_key in changed:
                try:
                    yield read_run(self.runs, record, place)
                except UserError as error:
                    problems.append(str(error))

    def _look(self, record: RunRecord, statuses: dict[str, Status]) -> object:
        """Cheap to compute; different whenever something to show may have changed."""
        stages = [run for stage in record.stages if (run := stage_of(self.runs, record, stage))]
        settled = [settled_step(run, statuses[run.stage]) for run in stages]
        # The statuses change without a file when a process is lost.
        return statuses, settled, _stats([self.runs / record.name, *(run.path for run in stages)])

    def _open(self, name: str) -> _Shown:
        """The experiment of a study with what it shows so far."""
        what = f"Runs of the study `{name}`" if name != UNPLANNED else "Runs that no study mentions any more"
        note = (
            f"{what}, mirrored from `runs/` by `realm-lab mirror`; edits here are not kept. "
            "Group the runs by the tag `realm.cell` to see the mean over seeds."
        )
        experiment = self._store.experiment(name, note, self.runs.parent / "mlartifacts" / name)
        self._shown[name] = _Shown(experiment, self._store.ids(experiment))
        return self._shown[name]

    def _remove_what_left(self, groups: list[Group]) -> None:
        """To the trash with what a study no longer has; its runs are shown where they belong now."""
        members = {
            group.name: {*([STUDY_KEY] if group.study else []), *(member.record.run_key for member in group.members)}
            for group in groups
        }
        if not self._has_looked_for_old_studies:
            for name in self._store.experiments():
                if name not in self._shown:
                    self._open(name)
            self._has_looked_for_old_studies = True
        for name, shown in self._shown.items():
            for key in set(shown.ids) - members.get(name, set()):
                self._drop(shown, key)

    def _drop(self, shown: _Shown, key: str) -> None:
        """Move what shows `key`, if anything does, to the trash."""
        shown.looks.pop(key, None)
        run_id = shown.ids.pop(key, None)
        if run_id is not None:
            self._store.trash(run_id)
            self._counts["removed"] += key != STUDY_KEY


def _stats(folders: list[Path]) -> object:
    """Names, sizes and times of the files in `folders` and in their figures."""
    places = [place for folder in folders for place in (folder, folder / "figures") if place.is_dir()]
    files = [path for place in places for path in sorted(place.iterdir()) if path.is_file()]
    try:
        stats = [path.stat() for path in files]
    except FileNotFoundError:  # a temporary file that was renamed meanwhile: look again
        return object()
    return files, [(stat.st_mtime_ns, stat.st_size) for stat in stats]


def _source(runs: Path) -> str:
    """A name for this folder of runs that moves with it."""
    path = runs / ".mirror_id"
    if not path.exists():
        write_text(path, uuid.uuid4().hex + "\n")
    return path.read_text(encoding="utf-8").strip()
