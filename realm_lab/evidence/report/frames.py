"""Loads results as pandas frames, from the run folders of a study or from a committed results.csv.

A run folder that is broken or missing does not stop the loading: it is listed in `StudyFrames.problems`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.errors import UserError
from realm_lab.records.computed import computed_values
from realm_lab.records.digests import check_folder
from realm_lab.records.files import read_json
from realm_lab.records.metric_log import RESERVED, scalars
from realm_lab.records.metrics import METRICS
from realm_lab.records.metrics import metric as metric_of
from realm_lab.records.run import Run
from realm_lab.records.run_values import run_values
from realm_lab.records.state import StageStates
from realm_lab.records.study import Studies, StudyRecord

if TYPE_CHECKING:
    import pandas as pd

IDENTITY = ("study", "cell", "seed", "run_key", "status")
MORE = ("engine_version", "collapsed", "flags", "not_measured")
TEXTS = ("study", "cell", "run_key", "status", "flags", "not_measured", "metric")
AGE = "index_staleness_steps"
UPDATES = "corpus_updates"  # folder in the folder of a run, and first part of the names of its columns
SIDES = ("old", "new")
WHOLE: dict[str, Any] = {"seed": int, "step": int, "seeds": int, "collapsed": int, "engine_version": "Int64"}
NotMeasured = Mapping[str, Mapping[str, str]]  # cell -> {part of the evaluation, or metric: why it has no value}
CURVE_COLUMNS = ["cell", "seed", "metric", "step", "value"]


@dataclass(frozen=True)
class StudyFrames:
    """A study, its runs, and their results as frames."""

    record: StudyRecord
    runs: list[Run]  # those whose record could be read
    results: pd.DataFrame  # as in results.csv: a row for each run, `status` as in records/state.py, metrics as columns
    problems: list[str]  # a sentence for each file that could not be read

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Return (name, title) of the study's cells, the baseline first."""
        return ordered_cells(self.record)

    @property
    def not_measured(self) -> NotMeasured:
        """Cell -> {part of the evaluation, or metric: why no run of the cell has a value}; cells without such a reason
        are left out."""
        found = {}
        for name, _ in self.cells:
            known = {metric for run in self.of(name) for metric in run.values}
            reasons = [(part, why) for run in self.of(name) for part, why in run.not_measured.items()]
            found[name] = {part: why for part, why in reasons if part not in known}
        return {name: parts for name, parts in found.items() if parts}

    def of(self, cell: str) -> list[Run]:
        """The runs of a cell, by seed."""
        return sorted((run for run in self.runs if run.cell == cell), key=lambda run: run.seed)

    def minutes(self, cell: str) -> dict[str, float]:
        """Return the mean minutes of a complete run of a cell by stage."""
        runs = [run for run in self.of(cell) if run.is_complete]
        stages = dict.fromkeys(stage for run in sorted(runs, key=lambda run: -len(run.stages)) for stage in run.stages)
        times = {
            stage: [run.states[stage].status.wall_seconds / 60 for run in runs if stage in run.stages]
            for stage in stages
        }
        return {stage: sum(known) / len(known) for stage, known in times.items()}

    @functools.cached_property
    def curves(self) -> pd.DataFrame:
        """Return every finite point of pre-training: cell, seed, metric, step, value.

        The age of the index is the mean over all steps since the point before: ages at regular steps
        could all be measured equally long after a refresh.
        """
        points = self.curves_of("pretrain")
        import pandas as pd

        return pd.concat([points[points["metric"] != AGE], _mean_ages(points)], ignore_index=True)

    def curves_of(self, stage: str) -> pd.DataFrame:
        """Return every finite point of the curves of a stage, in the same columns as `curves`."""
        parts = [_points(run, stage, self.problems) for run in self.runs if stage in run.stages]
        return frame([point for part in parts for point in part], CURVE_COLUMNS)

    @property
    def pretrained(self) -> list[tuple[str, str]]:
        """Return (name, title) of the cells with a pre-training that no cell before them has."""
        found: dict[tuple[str, ...], tuple[str, str]] = {(): ("", "")}
        for name, title in self.cells:
            folders = tuple(run.stages["pretrain"] for run in self.of(name) if "pretrain" in run.stages)
            found.setdefault(folders, (name, title))
        return [*found.values()][1:]

    @property
    def curves_once(self) -> pd.DataFrame:
        """`curves` of the cells in `pretrained`: each pre-training once."""
        return self.curves[self.curves["cell"].isin([name for name, _ in self.pretrained])]


def frame(rows: Any, columns: list[str] | None = None) -> pd.DataFrame:
    """Return a table of rows, or of columns by name. pandas takes a second to import, so it is imported here."""
    import pandas as pd

    return pd.DataFrame(rows, columns=columns)


def ordered_cells(record: StudyRecord) -> list[tuple[str, str]]:
    """Return (name, title) of a study's cells, the baseline first."""
    ordered = sorted(record.cells, key=lambda cell: cell.name != record.baseline)
    return [(cell.name, cell.title) for cell in ordered]


def column(results: pd.DataFrame, cell: str, metric: str) -> dict[int, float]:
    """seed -> value of one metric of one cell, finite values only."""
    if metric not in results:
        return {}
    rows = (results["cell"] == cell) & results[metric].notna()  # of two columns only: whole rows are slow to copy
    return dict(zip(results["seed"][rows].tolist(), results[metric][rows].astype(float).tolist(), strict=True))


def load_study(runs: Path, name: str) -> StudyFrames:
    """Read a recorded study and its runs. UserError: the study has no runs here."""
    return load_runs(runs, Studies(runs).read(name))


def load_runs(runs: Path, record: StudyRecord) -> StudyFrames:
    """Read the runs of a design, which need not be recorded as a study."""
    runs = Path(runs)
    problems: list[str] = []
    found = [_read_run(runs, record, member, problems) for member in record.runs]
    rows = [_row(record.name, member, run) for member, run in zip(record.runs, found, strict=True)]
    return StudyFrames(record, [run for run in found if run is not None], _table(rows), problems)


def report_folder(root: Path, study: str) -> Path | None:
    """Return the folder of a study's report: in reports/, else in reports/reference; None if there is none."""
    places = (Path(root) / "reports" / study, Path(root) / "reports" / "reference" / study)
    return next((folder for folder in places if (folder / "report.md").is_file()), None)


def read_summary(folder: Path) -> dict[str, Any]:
    """Read the summary.json of a report; empty if there is none that can be read."""
    try:
        return dict(read_json(folder / "summary.json"))
    except (UserError, OSError, TypeError, ValueError):
        return {}


def load_committed(folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Read (summary.json, results.csv) of a report whose runs may be elsewhere. UserError: a missing or broken file."""
    try:
        return dict(read_json(folder / "summary.json")), read_results(folder / "results.csv")
    except (OSError, TypeError, ValueError) as error:  # UserErrors and pandas' parser errors are ValueErrors
        raise UserError(error, "write the report again", path=folder) from None


def results_text(results: pd.DataFrame) -> str:
    """The text of results.csv: the fixed columns first, numbers with ten digits."""
    return results.to_csv(index=False, lineterminator="\n", float_format="%.10g")


def read_results(source: Path | str) -> pd.DataFrame:
    """Read a results.csv or curves.csv from its path or its text; names stay text, even if they look like numbers."""
    import pandas as pd

    table = pd.read_csv(StringIO(source) if isinstance(source, str) else source, dtype=str, keep_default_na=False)
    types: dict[Any, Any] = {name: WHOLE.get(str(name), float) for name in table if name not in TEXTS}
    return table.replace("", None).astype(types)


def metric_columns(results: pd.DataFrame) -> list[str]:
    """The columns that hold numbers of runs."""
    return [name for name in results.columns if name not in (*IDENTITY, *MORE)]


def _read_run(runs: Path, study: StudyRecord, member: Run, problems: list[str]) -> Run | None:
    """Read one run; None if its state cannot be read."""
    run = None
    try:
        found = replace(study.read(runs, member), runs=runs)
        stages = {name: found.folder(name) for name in found.stages}
        for stage in stages.values():
            stage.check()
        run = StageStates(runs).look(found)
        for name, stage in stages.items():
            run.environments[name] = stage.environment()
        if run.state == "COMPLETE":
            run.values.update(run_values(stages))
            computed, reasons = computed_values(study.own_metrics, stages)
            run.values.update(computed)
            run.values.update(_updates(runs / member.name))
            run.not_measured.update([*stages.values()][-1].results().get("not_measured") or {})
            run.not_measured.update(reasons)
            where = f"{member.cell}, seed {member.seed}"
            problems += [f"{where}: no value of {name}: {why}" for name, why in reasons.items()]
            problems += [f"{where}: {text}" for text in _out_of_bounds(run.values)]
    except (UserError, OSError, TypeError, ValueError, AttributeError, KeyError) as error:
        problems.append(relative(error, runs))
    return run


def _out_of_bounds(values: Mapping[str, float]) -> Iterator[str]:
    """Describe each value that its metric cannot have."""
    for name, value in values.items():
        if not (known := metric_of(name)).is_within(value):
            low, high = ("any" if end is None else f"{end:g}" for end in (known.low, known.high))
            yield f"{name} is {value:g}, and can only be {low} to {high}"


def _updates(run: Path) -> dict[str, float]:
    """Return the means of the run's corpus updates by `corpus_updates.UPDATE.GROUP.SIDE.MEASURE`; GROUP is a group of
    clozes (sentences with a blank), or `questions`."""
    found: dict[str, float] = {}
    for path in sorted((run / UPDATES).glob("*/result.json")):
        check_folder(path.parent)
        result = read_json(path)
        groups = {group: {side: blanks[side] for side in SIDES} for group, blanks in result.get("clozes", {}).items()}
        if asked := result.get("questions"):
            groups["questions"] = {side: asked[f"{side}_corpus"] for side in SIDES}
        found.update(scalars({UPDATES: {path.parent.name: groups}}))
    return found


def _points(run: Run, stage: str, problems: list[str]) -> list[tuple[Any, ...]]:
    """Return the curves of one stage of a run, with a row of CURVE_COLUMNS for each point."""
    try:
        rows = run.folder(stage).metrics.rows()
    except UserError as error:
        problems.append(relative(error, run.runs))
        return []
    return [
        (run.cell, run.seed, name, row["step"], value)
        for row in rows
        for name, value in scalars(row)
        if name not in RESERVED
    ]


def _mean_ages(points: pd.DataFrame) -> pd.DataFrame:
    """Return the mean age of the index between logged points, from the logged means over all steps so far."""
    known = points[points["metric"] == f"{AGE}_mean"].sort_values(["cell", "seed", "step"])
    sums = known["value"] * known["step"]
    by_run = [known["cell"], known["seed"]]
    values = sums.groupby(by_run).diff().fillna(sums) / known["step"].groupby(by_run).diff().fillna(known["step"])
    return known.assign(metric=AGE, value=values)


def _row(study: str, member: Run, run: Run | None) -> dict[str, Any]:
    row: dict[str, Any] = {"study": study, "cell": member.cell, "seed": member.seed, "run_key": member.run_key}
    row |= {"status": run.state if run else "PENDING"} | (run.values if run else {})
    flags = " | ".join(f"{stage}: {flag}" for stage, flag in run.flags) if run else ""
    collapsed = int(run.has_collapsed) if run else 0
    row |= {"engine_version": run.engine_version if run else None, "collapsed": collapsed, "flags": flags}
    missing = run.not_measured.items() if run else ()
    return row | {"not_measured": " | ".join(f"{part}: {reason}" for part, reason in missing)}


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the rows as a table. Columns: IDENTITY, headline metrics even if not measured, other numbers, MORE."""
    fixed = [m.name for m in METRICS.values() if m.headline] + ["device_hours"]
    measured = {name for row in rows for name in row} - {*IDENTITY, *MORE, *fixed}
    known = [name for name in METRICS if name in measured]
    columns = [*IDENTITY, *fixed, *known, *sorted(measured - set(known)), *MORE]
    table = frame(rows, columns)
    return table.astype({"engine_version": "Int64"} | dict.fromkeys(metric_columns(table), float))


def relative(error: Exception | str, runs: Path) -> str:
    """Return a message in which the path of the folder `runs` is "runs", so that reports are equal on every machine."""
    return str(error).replace(f"{runs}/", "runs/")
