"""The Python interface: the public functions of `import realm_lab`. docs/api.md explains it.

run = realm_lab.load_run("default/realm-s0")
run.ask("who is the mayor of nirter ?").answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import ValidationError

from realm_lab.engine.params.parameters import Params
from realm_lab.errors import UserError, suggestion
from realm_lab.evidence.compare import find_side
from realm_lab.evidence.report.frames import load_runs, report_folder
from realm_lab.evidence.report.report_data import load_report
from realm_lab.lab.project import studies_of
from realm_lab.records.plugins import ChoiceAsWritten
from realm_lab.records.run import Run, read_run
from realm_lab.records.state import StageStates
from realm_lab.records.study import StudyRecord
from realm_lab.records.validation import validation_line

if TYPE_CHECKING:
    import pandas as pd

    from realm_lab.engine.systems.ask import Filling, Reply
    from realm_lab.engine.systems.context import Context

PathLike = Path | str
Retriever = Literal["run", "bm25"]


@dataclass(frozen=True)
class Hit:
    """A passage that a run retrieves. Scores are comparable within a question, not between systems."""

    id: str
    title: str
    body: str
    score: float


@dataclass(frozen=True)
class FinishedRun:
    """A finished run that answers questions. Corpus and models are read at the first question, and kept."""

    name: str
    record: Run = field(repr=False)
    context: Context = field(repr=False, compare=False)

    def ask(self, question: str, k: int = 5, retriever: Retriever = "run") -> Reply:
        """Answer a question from the best k passages of the run's retriever, or of BM25 (`retriever="bm25"`)."""
        from realm_lab.engine.systems.ask import ask

        _check_k(k)
        if retriever not in (known := get_args(Retriever)):
            raise UserError(f"no retriever '{retriever}'", suggestion(retriever, known), parameter="retriever")
        return ask(self.context, question, k, retriever)

    def fill(self, sentence: str, k: int = 5) -> Filling:
        """Fill the [MASK] of a sentence by the run's model as it was before fine-tuning."""
        from realm_lab.engine.systems.ask import fill

        _check_k(k)
        return fill(self.context, sentence, k)

    def retrieve(self, question: str, k: int = 5) -> list[Hit]:
        """Retrieve the best k passages, best first."""
        _check_k(k)
        return retrieve(self.context, [question], k)[0]


def _check_k(k: int) -> None:
    if k < 1:
        raise UserError(f"k is {k}", "give 1 or more", parameter="k")


def retrieve(context: Context, questions: Sequence[str], k: int) -> list[list[Hit]]:
    """Retrieve the best k passages of each question by the run's system, best first."""
    passages = context.passages
    found = context.system.retrieve(questions, min(k, len(passages)))

    def hit(row: int, score: float) -> Hit:
        text = passages.text.row(row)
        return Hit(passages.id_of(row), text["title"], text["body"], score)

    return [
        [hit(row, score) for row, score in zip(rows_K, scores_K, strict=True) if row >= 0]
        for rows_K, scores_K in zip(found.rows_QK.tolist(), found.scores_QK.tolist(), strict=True)
    ]


def load_run(name: PathLike, root: PathLike = ".") -> FinishedRun:
    """Open a finished run by its folder, by its name or the start of it, or as STUDY/VARIANT-sSEED. UserError: no such
    run, several with that name, or one that has not finished."""
    from realm_lab.engine.core.process import limit_threads
    from realm_lab.engine.systems.context import Context

    runs, record = Path(root) / "runs", load_record(name, root)
    try:
        params = Params(**record.params, seeds=[record.seed])
    except ValidationError as error:
        raise UserError(
            f"of another version of realm_lab ({validation_line(error)})", path=runs / record.name
        ) from None
    study = _study_of(record, str(name), root)
    found = StageStates(runs).look(record if study is None else replace(record, last_stage=study.last_stage))
    if found.state != "COMPLETE":
        remedy = f"run `{study.command}`" if study else "no study has it; name another"
        at = f" at {found.stage}" if found.stage else ""
        raise UserError(f"'{name}': not finished ({found.state}{at}); {remedy}")
    system = record.system
    if study is not None:  # study.json names a custom system as `package.module:Class`, run.json has only its name
        system = next(study.cell(run.cell).system for run in study.runs if run.name == record.name)
    limit_threads(params.launch.threads)
    return FinishedRun(record.name, record, Context(replace(record, system=system, params=params), Path(root)))


def load_record(name: PathLike, root: PathLike = ".") -> Run:
    """Read run.json of a run, named as in `load_run`; it need not be finished. UserError: no such run, or several."""
    runs = Path(root) / "runs"
    found = find_side(studies_of(Path(root)), str(name))
    if len(found.runs) > 1:
        first = read_run(runs / found.runs[0] / "run.json").seed
        raise UserError(f"'{name}' matches {len(found.runs)} runs (one per seed); add -s{first}: {name}-s{first}")
    return read_run(runs / found.runs[0] / "run.json")


def _study_of(record: Run, name: str, root: PathLike) -> StudyRecord | None:
    """Find the study of a run: the one that `name` names, else the first that has the run."""
    studies = studies_of(Path(root))
    named, known = name.partition("/")[0], studies.names()
    found = (part for one in ([named] if named in known else known) for part in studies.read(one).with_trials)
    return next((study for study in found if any(run.name == record.name for run in study.runs)), None)


def results(study: str, root: PathLike = ".") -> pd.DataFrame:
    """Return a row for each run of a study: cell, seed, run_key and status; the system, the points of the axes and
    every parameter that some cell changes; then a column for each metric, as in its results.csv.

    The rows come from the runs here, else from the report of runs made elsewhere (reports/STUDY or
    reports/reference/STUDY).
    """
    from realm_lab.evidence.report.shared_frames import changed, with_changes

    studies, there = studies_of(Path(root)), report_folder(Path(root), study)
    if study not in studies.names() and there is not None:
        report = load_report(there)
        return with_changes(report.results, changed(report.record))
    frames = load_runs(studies.runs, studies.read(study))
    return with_changes(frames.results, changed(frames.record, frames))


def curves(study: str, root: PathLike = ".", stage: str = "pretrain") -> pd.DataFrame:
    """Return every point that a stage logged, for each run of a study: cell, seed, metric, step, value. UserError: the
    study has no runs here, or none with this stage."""
    studies = studies_of(Path(root))
    frames = load_runs(studies.runs, studies.read(study))
    known = dict.fromkeys(name for run in frames.runs for name in run.stages)
    if stage not in known and stage != "pretrain":
        raise UserError(f"no run of study '{study}' has a stage '{stage}'", suggestion(stage, known))
    return frames.curves if stage == "pretrain" else frames.curves_of(stage)


def predictions(study: str, root: PathLike = ".") -> pd.DataFrame:
    """Return a row for each test question of each complete run of a study: cell, seed, id, question, answers,
    prediction, exact_match, retrieved and more. UserError: the study has no runs here."""
    from realm_lab.evidence.report.shared_frames import all_predictions

    studies = studies_of(Path(root))
    return all_predictions(load_runs(studies.runs, studies.read(study)))


def sweep(
    study: PathLike,
    root: PathLike = ".",
    *,
    launcher: ChoiceAsWritten | None = None,
    seeds: int | None = None,
    cells: Sequence[str] = (),
    set: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
) -> pd.DataFrame:
    """Run the missing runs of a study (a name in ROOT/experiments, or a file), write its report and return the results
    so far. `cells`: run only these. With launcher="slurm" the jobs are only submitted."""
    from realm_lab.lab.sweep import Sweep, find_study

    path = find_study(str(study), Path(root))
    Sweep(
        path,
        Path(root),
        launcher=launcher,
        seeds=seeds,
        cells=tuple(cells),
        overrides=dict(set or {}),
        retry_failed=retry_failed,
    ).run()
    return results(path.stem, root)
