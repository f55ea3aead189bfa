"""`realm-lab compare`: compares runs, or cells of studies, with the first one.

The sides become the cells of a temporary study, whose report is written. Cells are paired seed by seed. If each side is
a single run, the runs are one pair, whatever their seeds, and the result holds only for these models.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markdown import Markdown

from realm_lab.errors import UserError, suggestion
from realm_lab.evidence.report.code_notes import commit_of, commits_line
from realm_lab.evidence.report.confounds import differing_parameters, parameters_of
from realm_lab.evidence.report.frames import StudyFrames, load_runs
from realm_lab.evidence.report.report import write_page, write_report
from realm_lab.evidence.report.report_data import DEFAULT_METRICS
from realm_lab.evidence.report.report_files import terminal_text
from realm_lab.records.files import digest
from realm_lab.records.metrics import METRICS, one_name
from realm_lab.records.parameters import is_system_option
from realm_lab.records.run import Run, read_run, run_paths
from realm_lab.records.study import DEFAULT, Studies, StudyCell, StudyRecord

NAME_CHARACTERS = 80  # of the name of the page's folder; a longer name is cut and gets a digest
PLAIN_WIDTH = 160  # columns of output that goes to no terminal
SHOWN = 4  # names that an error lists


class Side(NamedTuple):
    """Runs that are one side of a comparison. `name`: their name on the command line; `runs`: their folders."""

    name: str
    runs: tuple[str, ...]


def compare_runs(studies: Studies, texts: Sequence[str], out: Path | None, *, is_json: bool) -> None:
    """Write the report and its page into `out`/NAME (default: ROOT/reports/compare), and print the report. UserError:
    fewer than two sides, an unknown or ambiguous side, or a run that cannot be read."""
    sides = find_sides(studies, texts)
    study = load_sides(studies.runs, sides)
    name = "-vs-".join(side.name.replace("/", ".") for side in sides)
    name = name if len(name) <= NAME_CHARACTERS else f"{name[:NAME_CHARACTERS]}-{digest(name)[:8]}"
    folder = (out or studies.runs.parent / "reports" / "compare") / name
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    title = f"Comparison: {' and '.join(title for _, title in study.cells)}"
    command = f"realm-lab compare {' '.join(side.name for side in sides)}"
    with Console(stderr=True).status("writing the comparison"):
        write_report(study, folder, title, [command], explorer=True)
        page = write_page(folder)
    if is_json:
        print((folder / "summary.json").read_text(encoding="utf-8"))
        return
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
    with console.capture() as shown:
        console.print(Markdown(terminal_text(folder), hyperlinks=False))
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))
    if line := commits_line(study):
        print(line)
    print(f"all tables and figures: {page}")


def load_sides(runs: Path, sides: Sequence[Side]) -> StudyFrames:
    """Read the runs of the sides as a study: each side is a cell, and the first one the baseline."""
    titles = _titles(sides)
    cells: list[StudyCell] = []
    members: list[Run] = []
    base: dict[str, Any] = {}
    corpora: dict[str, dict[int, str]] = {}
    for side, title in zip(sides, titles, strict=True):
        records = {run: read_run(runs / run / "run.json") for run in side.runs}
        members += [replace(found, cell=title) for found in records.values()]
        corpora[title] = {found.seed: found.corpus_key for found in records.values()}
        first = next(iter(records.values()))
        mine = parameters_of(first)
        base = base or mine
        is_alike = not cells or first.system == cells[0].system  # options of two systems differ
        # all parameters that differ from the first side count as changes, since a comparison declares none
        names = [key for key in sorted(differing_parameters(base, mine)) if is_alike or not is_system_option(key)]
        changes = {key: mine.get(key) for key in names}
        cells.append(StudyCell(title, title, first.system, changes))
    cells[0] = replace(cells[0], changes={key: base.get(key) for cell in cells for key in cell.changes})
    seeds = {title: {member.seed for member in members if member.cell == title} for title in titles}
    alone = [title for title in titles[1:] if not seeds[titles[0]] & seeds[title]]
    if len(members) == len(sides):  # single runs are one pair, whatever their seeds
        members = [replace(member, seed=members[0].seed) for member in members]
    everything = tuple(sorted({member.seed for member in members}))
    own = tuple(metric for metric in METRICS.values() if metric.choice is not None)  # the custom metrics
    design = StudyRecord("compare", "", titles[0], tuple(cells), everything, tuple(members), own_metrics=own)
    study = load_runs(runs, design)
    for title in alone:
        study.problems.append(
            f"{title} has no seed in common with {titles[0]}: the difference includes that between the seeds."
        )
    for title in titles[1:]:
        if any(corpora[title].get(seed, corpus) != corpus for seed, corpus in corpora[titles[0]].items()):
            study.problems.append(
                f"{title} has another corpus than {titles[0]}, with other questions: the difference includes that "
                "between the corpora."
            )
    if len({commit for run in study.runs if (commit := commit_of(run))}) > 1:
        study.problems.append(f"Different commits computed the sides. {commits_line(study)}")
    names = [name for name in METRICS if one_name(name) == name]
    measured = [name for name in names if name in study.results and study.results[name].notna().any()]
    # No study declares the metrics of a comparison. The usual metrics and the custom ones of the sides' studies are
    # tested; other metrics are exploratory, if at least two sides have them.
    usual = (*DEFAULT_METRICS, *(metric.name for metric in own))
    declared = tuple(name for name in usual if name in measured) or tuple(measured[:1])
    known_to = {name: study.results.dropna(subset=[name])["cell"].nunique() for name in measured}
    others = tuple(name for name in measured if name not in declared and known_to[name] > 1)
    return replace(study, record=replace(study.record, metrics=declared, exploratory=others))


def _titles(sides: Sequence[Side]) -> list[str]:
    """Return the names of the sides without the key of a run or the name of a study, if the short name is unique."""
    short = [side.name.partition("/")[2] or side.name.rpartition("-")[0] for side in sides]
    counts = Counter(short)
    return [name if counts[name] == 1 else side.name for name, side in zip(short, sides, strict=True)]


def find_sides(studies: Studies, texts: Sequence[str]) -> list[Side]:
    """Return the sides in the given order. UserError: fewer than two, an unknown or ambiguous one, or two sides with
    the same runs."""
    if len(texts) < 2:
        example = "realm-lab compare default/warm_start default/realm"
        raise UserError(f"compare: name two runs or more, for example `{example}`")
    sides = [find_side(studies, text) for text in texts]
    if len({frozenset(side.runs) for side in sides}) < len(sides):
        raise UserError(f"compare: two of {', '.join(texts)} are the same runs; leave one out")
    return sides


def find_side(studies: Studies, text: str) -> Side:
    """Resolve one argument: a run's name or its first characters, STUDY/VARIANT or STUDY/VARIANT-sSEED. UserError: no
    such run, or one that was planned and has not started."""
    study, _, cell = text.partition("/")
    if study in (DEFAULT, *studies.names()):
        return _of_study(studies, text, studies.read(study), cell)
    runs = studies.runs
    name = Path(text).name if Path(text).is_dir() else text
    known = [found.parent.name for found in run_paths(runs)]
    matches = [name] if name in known else [run for run in known if name and run.startswith(name)]
    if len(matches) > 1:
        raise UserError(f"'{text}' is the beginning of {len(matches)} runs ({_some(matches)}); write more of the name")
    if not matches and cell and "/" not in cell:
        remedy = suggestion(study, studies.names())
        raise UserError(f"'{text}': no runs of study {study} here (see `realm-lab status`); {remedy}")
    if not matches:
        raise UserError(f"no run and no study '{text}' (see `realm-lab status`)", suggestion(name, known), path=runs)
    return Side(matches[0], (matches[0],))


def _of_study(studies: Studies, text: str, record: StudyRecord, name: str) -> Side:
    runs = {cell.name: tuple(run.name for run in record.of(cell.name)) for cell in record.cells}
    runs |= {f"{run.cell}-s{run.seed}": (run.name,) for run in record.runs}
    if absent := [run for run in runs.get(name, ()) if not (studies.runs / run / "run.json").exists()]:
        now = " with params.yaml as it is now" if record.name == DEFAULT else ""
        raise UserError(f"'{text}': {absent[0]} has not run{now}; run `{record.command}`")
    if name in runs and not runs[name]:
        raise UserError(f"'{text}' has no runs until all trials of its tuning have ended; run `{record.command}`")
    if name in runs:
        return Side(f"{record.name}/{name}", runs[name])
    if not name:
        cells = _some(f"{record.name}/{cell.name}" for cell in record.cells)
        raise UserError(f"'{text}' is a study; name a variant or run of it: {cells}, or {record.name}/VARIANT-sSEED")
    raise UserError(f"'{text}': study {record.name} has no such variant or run; {suggestion(name, runs)}")


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
