"""Which runs a person means: a run's folder, its name or the beginning of it, or a cell of a study."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from realm_lab.errors import UserError
from realm_lab.tracking.run_dir import run_record_paths
from realm_lab.tracking.study_record import StudyRecord, read_study_record, study_folder, study_record_paths

SHOWN = 4  # names in an error


class Side(NamedTuple):
    """One of several things to compare. `name` is how it can be typed again, `runs` are folders by seed."""

    name: str
    runs: tuple[str, ...]


def find_sides(runs: Path, texts: Sequence[str]) -> list[Side]:
    """Every side, in the order given.

    Raises:
        UserError: fewer than two, one that is unknown or ambiguous, or the same runs twice.
    """
    if len(texts) < 2:
        raise UserError(
            "compare: name two runs or more, for example `realm-lab compare default/warm_start default/realm`"
        )
    sides = [find_side(runs, text) for text in texts]
    for place, side in enumerate(sides):
        for before, other in enumerate(sides[:place]):
            if set(side.runs) == set(other.runs):
                raise UserError(f"'{texts[before]}' and '{texts[place]}' are the same: {side.name}; leave one out")
    return sides


def find_side(runs: Path, text: str) -> Side:
    """What one argument of the command line means; `runs` is the project's folder of runs."""
    path = Path(text)
    if (path / "run.json").is_file():
        if path.resolve().parent != runs.resolve():
            raise UserError(f"{text}: not a run under {runs}; name the project's folder with --root DIR")
        return Side(path.resolve().name, (path.resolve().name,))
    name = text.rstrip("/").removeprefix("runs/")
    if "/" in name:
        return _of_study(runs, text, *name.split("/", 1))
    known = [found.parent.name for found in run_record_paths(runs)]
    matches = [name] if name in known else [run for run in known if run.startswith(name)]
    if name and len(matches) == 1:
        return Side(matches[0], (matches[0],))
    if name and matches:
        raise UserError(f"'{text}' is the beginning of {len(matches)} runs ({_some(matches)}); write more of the name")
    studies = [found.parent.name for found in study_record_paths(runs)]
    if name in studies:
        study = read_study_record(study_folder(runs, name) / "study.json")
        cells = _some(f"{name}/{cell.name}" for cell in study.cells)
        raise UserError(f"'{text}' is a study; name its cells or their runs: {cells}, or {name}/CELL-sSEED")
    raise UserError(f"{runs}: no run '{text}'; {_nearest(name, [*known, *(f'{study}/CELL' for study in studies)])}")


def _of_study(runs: Path, text: str, study: str, cell: str) -> Side:
    path = study_folder(runs, study) / "study.json"
    if not path.is_file():
        known = [found.parent.name for found in study_record_paths(runs)]
        raise UserError(f"'{text}': there is no study '{study}'; {_nearest(study, known)}")
    record = read_study_record(path).everything()
    if cell in {found.name for found in record.cells}:
        return Side(f"{study}/{cell}", tuple(run.run for run in record.of(cell)))
    of_seed = re.fullmatch(r"(.+)-s(\d+)", cell)
    if of_seed and of_seed[1] in {found.name for found in record.cells}:
        chosen = [run for run in record.of(of_seed[1]) if run.seed == int(of_seed[2])]
        if chosen:
            return Side(f"{study}/{cell}", (chosen[0].run,))
        seeds = ", ".join(str(run.seed) for run in record.of(of_seed[1]))
        raise UserError(f"'{text}': the study has seeds {seeds or 'none'} of {of_seed[1]}; choose one of them")
    raise UserError(f"'{text}': study {study} has no such cell; {_nearest(cell, _names(record))}")


def _names(record: StudyRecord) -> list[str]:
    return [cell.name for cell in record.cells] + [f"{run.cell}-s{run.seed}" for run in record.runs]


def _nearest(name: str, known: Sequence[str]) -> str:
    if not known:
        return "there are none"
    return f"the nearest are {_some(difflib.get_close_matches(name, known, n=3, cutoff=0.0))}"


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
