"""Show the runs of a folder, and its studies, in a tracker: MLflow, or a custom one.

A tracker is a view of run directories. It can be deleted and built again from runs/. A running stage is shown up to
its newest checkpoint, where a resume would start, so that nothing has to be taken back.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from realm_lab.errors import UserError
from realm_lab.lab.tracking.views import UNPLANNED, View, read_groups, read_study, view_of
from realm_lab.records.code import package_modules
from realm_lab.records.code_record import CodeStates, code_reader
from realm_lab.records.files import digest, read_json, write_json
from realm_lab.records.lease import exclusive
from realm_lab.records.plugins import Choice, Kind, Plugin, calling
from realm_lab.records.run import Run
from realm_lab.records.study import Studies, StudyRecord
from realm_lab.records.tracking_store import default_uri

FINAL = ("COMPLETE", "FAILED", "CANCELLED")
PARAMETER = "--tracker"


class Tracker(ABC):
    """Base class of trackers. A tracker is built with the folder of runs, and its options if it has any.

    The same view may be shown again, always as a whole: a tracker adds what is new, or writes all again. `where`: the
    name of its store, for people. `links`: study -> path of its page. `points`: the number of points sent so far.
    """

    where = ""
    points = 0
    links: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def show(self, study: str, view: View) -> str:
        """Show one view. If anything of a study is new, the view of the whole study (its key is STUDY_KEY) comes first,
        then the views of all its runs. Returns what was done: created, updated, recreated, or something else."""

    def keep(self, study: str, keys: Collection[str]) -> int:
        """Remove all views of a study except those with these keys, and return how many runs were removed."""
        return 0

    def studies(self) -> list[str]:
        """The studies that are shown, which may no longer exist."""
        return []

    def close(self, study: str) -> None:  # noqa: B027 (a tracker need not have it)
        """Forget what is only needed while a study is shown."""


class TrackerError(UserError):
    """A tracker refuses something or does not answer."""


TRACKERS: Kind[Callable[..., Tracker]] = Kind("tracker", "Class", "runs")
register_tracker = TRACKERS.register  # makes a tracker selectable as `mirror --tracker NAME`
MLFLOW = "mlflow"  # this tracker also gets a tracking store
TRACKERS.declare(MLFLOW, "realm_lab.lab.tracking.mlflow_tracker:MlflowTracker")


@dataclass(frozen=True)
class MirrorSummary:
    """Counts of a mirroring. `problems`: one line for each record or run that could not be shown."""

    uri: str
    states: dict[str, int]  # state -> number of readable runs, a run of several studies once
    studies: int = 0
    created: int = 0
    updated: int = 0
    recreated: int = 0
    removed: int = 0  # runs that their study no longer has
    points: int = 0
    problems: tuple[str, ...] = ()
    links: dict[str, str] = field(default_factory=dict)  # study -> path of its view in MLflow's interface

    def __str__(self) -> str:
        states = ", ".join(f"{count} {state.lower()}" for state, count in sorted(self.states.items()))
        done = {
            "new": self.created,
            "updated": self.updated,
            "recreated": self.recreated,
            "no longer in their study": self.removed,
        }
        what = ", ".join(f"{count} {name}" for name, count in done.items())
        text = f"studies: {self.studies}; runs: {states or 'none'}; {what}, {self.points} points sent to {self.uri}"
        return text + (f"; {len(self.problems)} not shown: {'; '.join(self.problems)}" if self.problems else "")


def mirror(
    runs: Path,
    uri: str | None = None,
    follow: bool = False,
    interval_seconds: float = 5.0,
    page: Callable[[Path], str] | None = None,
    studies: Studies | None = None,
    tracker: Choice | None = None,
) -> MirrorSummary:
    """Bring a tracker up to date with `runs`; with `follow`, again and again until all runs are final or Ctrl-C.

    `tracker`: a custom one; None: MLflow. `uri`: the tracking store of MLflow; else MLFLOW_TRACKING_URI, else mlflow.db
    (with mlartifacts/) next to `runs`. `page`: makes a page (HTML) of a report.md, to be shown with it. `studies`:
    those of `runs` (default: as they ran last).
    UserError: no such folder, or a tracker that cannot be opened.
    """
    runs = Path(os.path.abspath(runs))
    chosen = TRACKERS.choose(PARAMETER, tracker or Choice(MLFLOW))
    if chosen.is_own:
        view = Mirror(runs, lambda: _custom_tracker(chosen, runs), studies, (PARAMETER, chosen.name, chosen.target))
        return _followed(view, chosen.name, follow, interval_seconds)
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(runs)
    shown, files = runs / ".mirror.json", [page is not None, _files(runs)]
    if not follow and (last := read_json(shown) if shown.exists() else {}).get("seen") == [files, _database(uri)]:
        return MirrorSummary(**last["summary"] | {"problems": ()})  # MLflow takes seconds to import and to open
    view = Mirror(runs, lambda: chosen(runs, uri, page), studies)
    summary = _followed(view, "MLflow", follow, interval_seconds)
    by_clock = {"RUNNING", "LOST"} & summary.states.keys()  # states that change without a file
    if not by_clock and not summary.problems and (database := _database(uri)):
        nothing = replace(summary, created=0, updated=0, recreated=0, removed=0, points=0)
        write_json(shown, {"seen": [files, database], "summary": asdict(nothing)})
    return summary


def _followed(view: Mirror, name: str, follow: bool, interval_seconds: float) -> MirrorSummary:
    """Update once, or until all runs are final."""
    with contextlib.suppress(KeyboardInterrupt), Console(stderr=True).status(f"mirroring to {name}") as live:
        view.say = live.update
        while True:
            states = view.update().states
            if not follow or (states and all(state in FINAL for state in states)):
                break
            live.update(f"{view.summary} (every {interval_seconds:g} s; Ctrl-C stops)")
            time.sleep(interval_seconds)
    return view.summary


def _files(runs: Path) -> str:
    """Return a digest that changes with any file that the mirror shows, and with the code of the mirror and of
    stages."""
    patterns = ("*/run.json", "studies/*/study.json", "stages/*/*.json*", "stages/*/eval/*")
    watched = [(runs, patterns), (runs.parent / "reports", ("*/*", "*/figures/*")), (Path(__file__).parent, ("*.py",))]
    watched.append((runs.parent, ("params.yaml",)))  # the study `default` changes with it
    stamps = [_stamp(path) for folder, names in watched for name in names for path in sorted(folder.glob(name))]
    return digest([stamps, code_reader(runs).reached(package_modules())])


def _database(uri: str) -> list[str | int]:
    """Return the state of a local database, which changes with every note typed there; [] if there is none."""
    path = Path(uri.removeprefix("sqlite:///"))
    return _stamp(path) if uri.startswith("sqlite:///") and path.exists() else []


def _stamp(path: Path) -> list[str | int]:
    return [str(path), path.stat().st_mtime_ns, path.stat().st_size]


class Mirror:
    """Shows one folder of runs in one tracker; `update` may be called any number of times.

    `make`: makes the tracker, while no other process uses one for this folder. `custom`: the parameter, the name and
    the target of a custom tracker, for its errors.
    """

    def __init__(
        self,
        runs: Path,
        make: Callable[[], Tracker],
        studies: Studies | None = None,
        custom: tuple[str, str, str] | None = None,
    ) -> None:
        self._custom = custom
        self.say: Callable[[str], object] = lambda text: None  # reports progress
        self.runs = Path(os.path.abspath(runs))
        self._studies = studies or Studies(self.runs)
        if not self.runs.is_dir():
            raise UserError(
                "no such folder",
                "train something first (dvc repro), or give --root DIR; `realm-lab report` puts back what DVC keeps",
                path=self.runs,
            )
        self._lock = self.runs / ".mirror.lock"  # without it two mirrors could both create the same run
        with exclusive(self._lock):
            self._tracker = make()
        self.summary = MirrorSummary(self._tracker.where, {})
        self._looks: dict[str, object] = {}  # study -> fingerprint of its files when it was shown
        self._counts: Counter[str] = Counter()

    def update(self) -> MirrorSummary:
        """Bring the tracker up to date, once."""
        problems: list[str] = []
        with exclusive(self._lock):
            groups = read_groups(self._studies, problems)
            studies = len(groups.keys() - {UNPLANNED})
            states = {member.name: member.state for _, members in groups.values() for member in members}
            with self._noted(problems):
                groups = dict.fromkeys(self._tracker.studies(), (None, [])) | groups  # also studies that are gone
            for name, (study, members) in groups.items():
                with self._noted(problems):
                    self._show_group(name, study, members, problems)
        counts = {what: self._counts[what] for what in ("created", "updated", "recreated", "removed")}
        by_state, shown = dict(Counter(map(str, states.values()))), tuple(dict.fromkeys(problems))
        self.summary = MirrorSummary(
            self._tracker.where,
            by_state,
            studies,
            points=self._tracker.points,
            problems=shown,
            links={name: path for name, path in self._tracker.links.items() if groups[name][0]},
            **counts,
        )
        return self.summary

    def _show_group(self, name: str, study: StudyRecord | None, members: list[Run], problems: list[str]) -> None:
        """Show the study first, then its runs below it; runs that the study no longer has are deleted."""
        # Fingerprints are taken before reading, so that files written meanwhile are seen the next time.
        look = (study, [(member, self._look(member)) for member in members])
        if self._looks.get(name) == look:
            return
        before, tracker, keys = len(problems), self._tracker, []
        codes = CodeStates(self.runs)
        try:
            whole = read_study(self.runs, study, members) if study else None
            if whole and whole.started_ms is not None:
                tracker.show(name, whole)
                keys.append(whole.key)
            for number, member in enumerate(members, 1):
                self.say(f"{name}: run {number} of {len(members)}, {tracker.points:,} points sent")
                with self._noted(problems, member.name):
                    view = view_of(member, study, codes)
                    if view.started_ms is not None:
                        self._counts[tracker.show(name, view)] += 1
                        keys.append(view.key)
            if len(problems) == before:
                self._looks[name] = look
            if not problems:  # an unreadable run may belong to the study
                self._counts["removed"] += tracker.keep(name, keys)
        finally:
            tracker.close(name)

    def _look(self, member: Run) -> object:
        """Return a cheap fingerprint that differs whenever the points or files of a run may have changed."""
        stages = [stage.path for stage in member.begun().values()]
        paths = [path / name for path in stages for name in ("metrics.jsonl", "results.json", "checkpoints")]
        return [(path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.exists()]

    @contextlib.contextmanager
    def _noted(self, problems: list[str], name: str = "") -> Iterator[None]:
        """Add an error inside to `problems` in one line, and go on."""
        try:
            with calling(*self._custom) if self._custom else contextlib.nullcontext():
                yield
        except TrackerError as error:
            problems.append(f"{name}: {error}".removeprefix(": "))
        except UserError as error:
            problems.append(str(error))


def _custom_tracker(chosen: Plugin[Callable[..., Tracker]], runs: Path) -> Tracker:
    """Make a custom tracker. UserError: the object is no Tracker."""
    made = chosen(runs)
    if not isinstance(made, Tracker):
        raise UserError(f"{PARAMETER} {chosen.name}: not a subclass of realm_lab.Tracker; make it one")
    made.where = made.where or chosen.name
    return made
