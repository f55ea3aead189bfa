"""Studies on disk: runs/studies/<name>/study.json lists the compared runs with their names, and the baseline.

Run folders are independent of studies, so that one run may be in several. The default pipeline is the study `default`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from realm_lab.errors import UserError
from realm_lab.records.digests import check_file, damage, write_last
from realm_lab.records.files import check_name, read_json
from realm_lab.records.metrics import Metric, learn
from realm_lab.records.parameters import show
from realm_lab.records.plugins import ChoiceField
from realm_lab.records.run import Run, read_run
from realm_lab.records.validation import read_record

STRICT = ConfigDict(extra="forbid")
DEFAULT = "default"  # the study of the pipeline as params.yaml asks for it
SCRATCH = "scratch"  # the study of the pipeline's cells with parameters from the command line
Criterion = Literal["", "same sign", "significant", "equivalent"]
IN_REPORTS = ("reference", "compare", "curves", "index.html", "metrics.json")  # entries of reports/ that are no studies


@dataclass(frozen=True, config=STRICT)
class StudyCell:
    """A system with parameters in a study. `changes`: dotted name -> value, if it differs from the baseline's."""

    name: str
    title: str
    system: str
    changes: dict[str, Any]
    paper: str | None = None  # the entry of the registry of published numbers that this cell corresponds to
    points: dict[str, str] = field(default_factory=dict)  # axis -> this cell's point, in a study with several axes
    # In a plan: its settings, dotted name -> value, with the study's `set`, --set and the values that tuning chose.
    overrides: Any = Field(default_factory=dict, exclude=True)


@dataclass(frozen=True, config=STRICT)
class StudyRecord:
    """study.json: the design of a study and its runs, baseline first."""

    name: str
    question: str
    baseline: str
    cells: tuple[StudyCell, ...]
    seeds: tuple[int, ...]
    runs: tuple[Run, ...]
    metrics: tuple[str, ...] = ()  # the compared ones, the most important first
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # axis -> its points, in a study with several axes
    source: str = ""  # the study's file, relative to the project
    last_stage: str = ""  # the last stage of its runs, if that is before evaluate: a search may need no fine-tuning
    figures: tuple[ChoiceField, ...] = ()  # additional figures, each a plug-in
    sections: tuple[ChoiceField, ...] = ()  # additional sections of the report, each a plug-in
    exploratory: tuple[str, ...] = ()  # additional metrics, each a separate family of tests
    until: tuple[int, int] | None = None  # seeds until decided: at least, at most; `seeds` has those taken so far
    tuning: dict[str, Any] = field(default_factory=dict)  # trials of each cell, and its best trial (lab/rules/tune.py)
    trials: tuple[Run, ...] = ()  # the runs of the tuning
    delta: dict[str, float] = field(default_factory=dict)  # metric -> the largest difference that does not matter
    declared: Criterion = ""  # the criterion that each cell should meet
    not_run: dict[str, str] = field(default_factory=dict)  # variants deliberately left out -> the reason
    own_metrics: tuple[Metric, ...] = ()  # definitions of the custom metrics in `metrics`
    note: str = ""  # written by people, about the whole study
    tags: dict[str, str] = field(default_factory=dict)  # written by people, for trackers
    common: dict[str, Any] = field(default_factory=dict)  # changes of the preset by params.yaml and --set, in all cells
    observes: dict[str, Any] = field(default_factory=dict)  # the baseline's parameters that only set measurements
    format: int = 1

    def cell(self, name: str) -> StudyCell:
        """The cell of that name."""
        return next(cell for cell in self.cells if cell.name == name)

    def of(self, cell: str) -> list[Run]:
        """Return the runs of a cell, by seed."""
        return sorted((run for run in self.runs if run.cell == cell), key=lambda run: run.seed)

    def trials_as_study(self) -> StudyRecord:
        """Return the trials of the tuning as a study, to show them: each trial is a cell."""
        cells, runs = dict[str, StudyCell](), []
        for run in self.trials:
            name = f"{run.cell}, trial {run.trial}"
            values = self.tuning["cells"][run.cell]["trials"][run.trial]["values"]
            title = ", ".join(f"{parameter} = {show(value)}" for parameter, value in values.items())
            cells[name] = StudyCell(name, f"{name}: {title}", self.cell(run.cell).system, values)
            runs.append(replace(run, cell=name))
        return StudyRecord(
            name=f"trials of {self.name}",
            question=f"Which parameters suit each variant of {self.name} best?",
            baseline=runs[0].cell,
            cells=tuple(cells.values()),
            seeds=tuple(self.tuning["seeds"]),
            runs=tuple(runs),
            metrics=(self.tuning["metric"],),
            source=self.source,
            last_stage=self.tuning["last_stage"],
            tags=self.tags,
            common=self.common,
            observes=self.observes,
        )

    @property
    def with_trials(self) -> tuple[StudyRecord, ...]:
        """The study, and the trials of its tuning as a second study."""
        return (self, self.trials_as_study()) if self.trials else (self,)

    @property
    def command(self) -> str:
        """Return the command that runs the missing runs of the study."""
        if self.source:
            path = Path(self.source)
            return f"realm-lab sweep {path.stem if path.parent == Path('experiments') else path}"
        return {
            DEFAULT: "realm-lab run",
            SCRATCH: "realm-lab run --preset ... --set ...",
        }.get(self.name, f"dvc exp run --name {self.name} ...")

    def read(self, runs: Path, run: Run) -> Run:
        """Return a run of the study with the content of run.json, up to the study's last stage. UserError: the file is
        broken, or of another run."""
        found = read_run(Path(runs) / run.name / "run.json")
        if found.run_key != run.run_key:
            problem = f"{run.cell} seed {run.seed} is listed with another run"
            raise UserError(problem, f"run `{self.command}`", path=study_folder(runs, self.name) / "study.json")
        return self.member(run, found)

    def member(self, run: Run, found: Run) -> Run:
        """Return the run `found` in its folder with the cell, seed and trial that `run` has in this study."""
        stages = found.keys(self.last_stage)
        return replace(found, cell=run.cell, seed=run.seed, trial=run.trial, stages=stages)


STUDY_RECORD = TypeAdapter(StudyRecord)


def check_study_name(name: str, where: str, remedy: str) -> None:
    """Refuse a name that is invalid for folders, or taken: a study writes runs/studies/NAME/ and reports/NAME/. `where`
    is the file or flag that has it."""
    check_name(name, f"{where}: study", remedy=remedy)
    if name.lower() in (DEFAULT, SCRATCH):
        raise UserError("the default pipeline keeps its runs under this name", remedy, path=where)
    if name.lower() in IN_REPORTS:
        raise UserError(f"reports/{name} is not the report of a study", remedy, path=where)


def study_folder(runs: Path, name: str) -> Path:
    """Return the folder of a study's record."""
    return Path(runs) / "studies" / name


def write_study_record(runs: Path, record: StudyRecord) -> Path:
    """Write study.json over that of an earlier plan, unless it has the same content and is undamaged."""
    path = study_folder(runs, record.name) / "study.json"
    plain = STUDY_RECORD.dump_python(record, mode="json")
    if not path.exists() or read_json(path) != plain or damage(path):
        write_last(path, plain, names=(), name=record.name)
    return path


def read_study_record(path: Path) -> StudyRecord:
    """Read one study.json and register its custom metrics. UserError: the file is broken or was edited."""
    remedy = "delete the file and plan the study again"
    record = read_record(path, STUDY_RECORD, remedy)
    check_file(path, remedy)
    if path.parent.name != record.name:
        raise UserError(
            f"the record is of study {record.name}", "rename the folder back, or delete the copy", path=path
        )
    learn(record.own_metrics)
    return record


class Studies:
    """The studies with runs in a folder, by name.

    `default` is a function that plans the study `default` from the present params.yaml. Without it, that study is read
    as it last ran, perhaps as a DVC experiment.
    """

    def __init__(self, runs: Path, default: Callable[[], StudyRecord] | None = None):
        self.runs, self._default = Path(runs), default

    def names(self) -> list[str]:
        """Return all studies, `default` first, then by name."""
        return [path.parent.name for path in study_record_paths(self.runs)]

    def read(self, name: str) -> StudyRecord:
        """Return the design of a study. UserError: it has no runs here, or its record is broken."""
        path = study_folder(self.runs, name) / "study.json"
        if not path.exists():
            known = f"; studies with runs here: {', '.join(names)}" if (names := self.names()) else ""
            remedy = f"run `realm-lab sweep {name}`{known}"
            if name == DEFAULT:
                is_kept = (self.runs.parent / "data" / "records").exists()
                remedy = "`realm-lab report` puts back what DVC keeps" if is_kept else "run `dvc repro`"
            raise UserError(f"no runs of study '{name}' here", remedy, path=path)
        return self._default() if self._default and name == DEFAULT else read_study_record(path)


def study_record_paths(runs: Path) -> list[Path]:
    """Return all study.json files under `runs`, `default` first, then by name."""
    paths = (Path(runs) / "studies").glob("*/study.json")
    return sorted(paths, key=lambda path: (path.parent.name != DEFAULT, path.parent.name))
