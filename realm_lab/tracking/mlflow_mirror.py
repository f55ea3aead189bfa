"""MLflow as a view of run directories: an experiment for each study, a run for it as a whole, below it its runs.

All of it can be deleted and built again from runs/. A stage under way is shown up to its newest checkpoint, where a
resume would begin, so that nothing has to be taken back.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console

from realm_lab.core.code import package_modules
from realm_lab.core.files import digest, read_json, write_json, write_text
from realm_lab.core.lease import exclusive
from realm_lab.errors import UserError, needs
from realm_lab.tracking.code_record import CodeStates, code_reader
from realm_lab.tracking.run_dir import stage_of
from realm_lab.tracking.saved_view import link, saved_views
from realm_lab.tracking.study_record import Studies, StudyRecord
from realm_lab.tracking.tracking_store import default_uri, one_line
from realm_lab.tracking.views import STUDY_KEY, UNPLANNED, Member, read_groups, read_run, read_study

FINAL = ("COMPLETE", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class MirrorSummary:
    """What a mirroring did. `problems`: one line for each record or run that could not be shown."""

    uri: str
    states: dict[str, int]  # of the readable runs; one that several studies share counts once
    studies: int = 0
    created: int = 0
    updated: int = 0
    recreated: int = 0
    removed: int = 0  # of a study that no longer has them
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
) -> MirrorSummary:
    """Bring MLflow up to date with `runs`; with `follow`, again and again until all runs are final or Ctrl-C.

    `uri`: the tracking store; else MLFLOW_TRACKING_URI, else mlflow.db (with mlartifacts/) beside `runs`.
    `page`: makes a page (HTML) of a report.md, to be shown beside it. `studies`: those of `runs` (default: as they ran
    last).
    UserError: no such folder, or a store that cannot be opened.
    """
    runs = Path(runs).resolve()
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(runs)
    shown, files = runs / ".mirror.json", [page is not None, _files(runs)]
    if not follow and (last := read_json(shown) if shown.exists() else {}).get("seen") == [files, _database(uri)]:
        return MirrorSummary(**last["summary"] | {"problems": ()})  # MLflow takes seconds to import and to open
    view = Mirror(runs, uri, page, studies)
    with contextlib.suppress(KeyboardInterrupt), Console(stderr=True).status("mirroring to MLflow") as live:
        view.say = live.update
        while True:
            states = view.update().states
            if not follow or (states and all(state in FINAL for state in states)):
                break
            live.update(f"{view.summary} (every {interval_seconds:g} s; Ctrl-C stops)")
            time.sleep(interval_seconds)
    by_clock = {"RUNNING", "LOST"} & view.summary.states.keys()  # states that change without a file
    if not by_clock and not view.summary.problems and (database := _database(uri)):
        nothing = replace(view.summary, created=0, updated=0, recreated=0, removed=0, points=0)
        write_json(shown, {"seen": [files, database], "summary": asdict(nothing)})
    return view.summary


def _files(runs: Path) -> str:
    """A digest that changes with any file that the mirror shows, and with the code of the mirror and of stages."""
    patterns = ("*/run.json", "studies/*/study.json", "stages/*/*.json*", "stages/*/eval/*")
    places = [(runs, patterns), (runs.parent / "reports", ("*/*", "*/figures/*")), (Path(__file__).parent, ("*.py",))]
    places.append((runs.parent, ("params.yaml",)))  # which the study `default` follows
    stamps = [_stamp(path) for place, names in places for name in names for path in sorted(place.glob(name))]
    return digest([stamps, code_reader(runs).reached(package_modules())])


def _database(uri: str) -> list[str | int]:
    """What a local database looks like, which changes with every note typed there; [] where there is none."""
    path = Path(uri.removeprefix("sqlite:///"))
    return _stamp(path) if uri.startswith("sqlite:///") and path.exists() else []


def _stamp(path: Path) -> list[str | int]:
    return [str(path), path.stat().st_mtime_ns, path.stat().st_size]


class Mirror:
    """One process's view of one folder of runs in one tracking store; `update` may be called any number of times."""

    def __init__(
        self, runs: Path, uri: str, page: Callable[[Path], str] | None = None, studies: Studies | None = None
    ) -> None:
        self.say: Callable[[str], object] = lambda text: None  # what it is doing
        self._has_pages = page is not None
        self._links: dict[str, str] = {}
        self.runs = Path(runs).resolve()
        self._studies = studies or Studies(self.runs)
        if not self.runs.is_dir():
            raise UserError(
                f"{self.runs}: no such folder; train something first (dvc repro), or give --root DIR; "
                "`realm-lab report` puts back what DVC keeps"
            )
        self._lock = self.runs / ".mirror.lock"  # two mirrors at once would both miss a run, and both make it
        with needs("`realm-lab mirror`", "mlflow"):
            from realm_lab.tracking.mlflow_store import Store

        with exclusive(self._lock):
            self._store = Store(uri, _source(self.runs), page)
        self.summary = MirrorSummary(self._store.uri, {})
        self._seen: dict[str, object] = {}  # experiment -> what its files looked like when it was shown
        self._counts: Counter[str] = Counter()

    def update(self) -> MirrorSummary:
        """One pass over all records."""
        problems: list[str] = []
        with exclusive(self._lock):
            groups = read_groups(self._studies, problems)
            studies = len(groups.keys() - {UNPLANNED})
            states = {member.record.name: member.state.state for _, members in groups.values() for member in members}
            with _noted(problems):
                groups = dict.fromkeys(self._store.experiments(), (None, [])) | groups  # also those that are gone
            for name, (study, members) in groups.items():
                with _noted(problems):
                    self._show_group(name, study, members, problems)
        counts = {what: self._counts[what] for what in ("created", "updated", "recreated", "removed")}
        by_state, shown = dict(Counter(map(str, states.values()))), tuple(dict.fromkeys(problems))
        self.summary = MirrorSummary(
            self._store.uri,
            by_state,
            studies,
            points=self._store.points,
            problems=shown,
            links={name: path for name, path in self._links.items() if groups[name][0]},
            **counts,
        )
        return self.summary

    def _show_group(self, name: str, study: StudyRecord | None, members: list[Member], problems: list[str]) -> None:
        """The study as a whole first, then its runs below it; what the study no longer has is deleted."""
        # Looked at before reading: what is written meanwhile is seen the next time.
        look = (study, [(member, self._look(member)) for member in members])
        if self._seen.get(name) == look:
            return
        before = len(problems)
        experiment = self._store.experiment(
            name,
            _about(name),
            self.runs.parent / "mlartifacts" / name,
            saved_views(study) if study else {},
        )
        self._links[name] = link(experiment)
        shown = self._store.shown(experiment)
        codes = CodeStates(self.runs)
        parent = None
        whole = read_study(self.runs, study, members) if study else None
        if whole and not self._has_pages:
            whole.files.pop("report.html", None)
        if whole and whole.started_ms is not None:
            parent, _ = self._store.show(experiment, shown.pop(STUDY_KEY, None), whole, None)
        for number, member in enumerate(members, 1):
            run = shown.get(member.record.run_key)
            self.say(f"{name}: run {number} of {len(members)}, {self._store.points:,} points sent")
            with _noted(problems, member.record.name):
                view = read_run(self.runs, member, codes)
                if view.started_ms is not None:
                    self._counts[self._store.show(experiment, run, view, parent)[1]] += 1
                    shown.pop(view.key, None)
        if len(problems) == before:
            self._seen[name] = look
        if not problems:  # what cannot be read now may be in the study
            for run in shown.values():
                self._store.delete(run)
                self._counts["removed"] += run.data.tags["realm.kind"] == "run"

    def _look(self, member: Member) -> object:
        """Cheap to compute; different whenever the points or files of a run may have changed."""
        stages = [run.path for stage in member.record.stages if (run := stage_of(self.runs, member.record, stage))]
        paths = [path / name for path in stages for name in ("metrics.jsonl", "results.json", "checkpoints")]
        return [(path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.exists()]


@contextlib.contextmanager
def _noted(problems: list[str], name: str = "") -> Iterator[None]:
    """What goes wrong inside becomes a problem in one line, and the mirror goes on."""
    from realm_lab.tracking.mlflow_store import StoreError

    try:
        yield
    except UserError as error:
        problems.append(str(error))
    except StoreError as error:
        problems.append(f"{name}: {one_line(error)}".removeprefix(": "))


def _about(name: str) -> str:
    what = f"Runs of the study `{name}`" if name != UNPLANNED else "Runs that no study mentions any more"
    return f"{what}, mirrored by `realm-lab mirror`. Open the saved view *by cell* to compare its cells."


def _source(runs: Path) -> str:
    """A name for this folder of runs that moves with it."""
    path = runs / ".mirror_id"
    if not path.exists():
        write_text(path, uuid.uuid4().hex + "\n")
    return path.read_text(encoding="utf-8").strip()
