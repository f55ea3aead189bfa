"""`realm-lab reproduce`: compare reports with their data, with the runs that are here, or with a cell that is run
again.

A cell is run again by an ordinary sweep in a separate project, with the study file and the parameters of this project.
Paths in them stay relative to this project. Finished runs in that project are not repeated.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from realm_lab.engine.systems.identity import DEFAULT_SYSTEMS
from realm_lab.errors import UserError, suggestion
from realm_lab.lab.progress import say
from realm_lab.lab.project import studies_of
from realm_lab.lab.sweep import Sweep, find_study
from realm_lab.records.files import write_text
from realm_lab.records.study import DEFAULT, StudyRecord
from realm_lab.records.yaml_file import read_yaml

if TYPE_CHECKING:
    from realm_lab.evidence.reproduce import Check

EXIT_OFF = 1


def reproduce(
    root: Path,
    target: str | None = None,
    *,
    rerun: bool = False,
    is_silent: bool = False,
) -> tuple[int, list[dict[str, Any]]]:
    """Compare reports, and print the comparison unless `is_silent`. Returns 1 if a report differs from its data, a
    number is off or a run failed, else 0; and the fields of each study for --json. UserError: no such report or cell,
    or a rerun without the name of a cell."""
    from realm_lab.evidence.report.frames import load_runs
    from realm_lab.evidence.report.report_data import load_report
    from realm_lab.evidence.report.report_files import stale
    from realm_lab.evidence.reproduce import compare_runs, expected_folder

    studies = studies_of(root)
    name, _, cell = (target or "").partition("/")
    if rerun and not cell:
        raise UserError("reproduce: name the variant that is to be run again, for example `masking/random_span`")
    reports = Path(root) / "reports"
    names = sorted(
        {path.parent.name for folder in ("*", "reference/*") for path in reports.glob(f"{folder}/results.csv")}
    )
    if name and name not in names:
        raise UserError(f"no report of study '{name}'", suggestion(name, names), path=reports)
    if not names:
        raise UserError("no reports", "`realm-lab report` writes those of all runs here", path=reports)
    code = 0
    fields: list[dict[str, Any]] = []
    for study in [name] if name else names:
        folder = expected_folder(root, study)
        report = load_report(folder)
        expected, known = report.results, [one.name for one in report.record.cells]
        if cell and cell not in known:
            raise UserError(f"study {study} has no variant '{cell}'; {suggestion(cell, known)}")
        wrong = stale(folder)
        fields.append({"study": study, "stale": wrong, "run_again": None, "checks": []})
        if wrong and not is_silent:
            print(*(f"{study}: {line}" for line in wrong), sep="\n")
        code = EXIT_OFF if wrong else code
        is_here = study in studies.names()
        found = load_runs(studies.runs, studies.read(study)).results if is_here else expected[:0]
        if cell and (rerun or not (found[found["cell"] == cell]["status"] == "COMPLETE").any()):
            found = _run_again(Path(root), study, cell, report.record)
            is_done = not found.empty and (found[found["cell"] == cell]["status"] == "COMPLETE").all()
            fields[-1]["run_again"] = "complete" if is_done else "failed"
            if not is_done:
                if not is_silent:
                    print(f"{target}: failed")
                return EXIT_OFF, fields
        checks = compare_runs(expected, found, [cell] if cell else known)
        fields[-1]["checks"] = [
            check._asdict() | {"expected": check.expected._asdict(), "found": check.found._asdict()} for check in checks
        ]
        code = max(code, EXIT_OFF * any(check.state == "off" for check in checks))
        if not is_silent:
            _show(report.record, checks, is_stale=bool(wrong))
    return code, fields


def _show(record: StudyRecord, checks: list[Check], *, is_stale: bool) -> None:
    from realm_lab.evidence.reproduce import in_words

    shown = [check for check in checks if check.metric in record.metrics or check.state == "off"]
    print(*(in_words(check, record.name) for check in shown), sep="\n", end="\n" * bool(shown))
    states = [check.state for check in checks]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    rest = counts or f"no runs here; to run a variant again: realm-lab reproduce {record.name}/{record.baseline}"
    remedy = f"differs from its data; `realm-lab report {record.name}` renders it again"
    print(f"{record.name}: report {remedy if is_stale else 'as its data gives it'}; {rest}")


def _run_again(root: Path, study: str, cell: str, record: StudyRecord) -> pd.DataFrame:
    """Run a cell in runs/reproduce, and return the results."""
    from realm_lab.evidence.report.frames import load_study

    folder = root / "runs" / "reproduce"
    if study == DEFAULT:
        systems = {name: {"system": name} for name in DEFAULT_SYSTEMS}
        document: dict[str, Any] = {
            "question": record.question, "baseline": record.baseline, "seeds": list(record.seeds),
            "cells": systems,
        }  # fmt: skip
    else:
        document = copy.deepcopy(read_yaml(find_study(study, root)))
    _take_choices(document, record.tuning, cell)
    document.pop("figures", None)
    write_text(folder / "experiments" / f"{study}.yaml", json.dumps(document, indent=2))
    parameters = Path(root) / "params.yaml"
    if parameters.is_file():
        write_text(folder / "params.yaml", parameters.read_text(encoding="utf-8"))
    say(f"{study}/{cell} is run again in {folder}")
    Sweep(folder / "experiments" / f"{study}.yaml", folder, cells=(cell,), force=True).run()
    return load_study(folder / "runs", study).results


def _take_choices(document: dict[str, Any], tuning: dict[str, Any], cell: str) -> None:
    """Replace the tuning in a study's file by the values that tuning chose."""
    if document.pop("tune", None) is None:
        return
    entries = {name: entry or {} for name, entry in (document.get("cells") or {}).items()}
    for entry in entries.values():
        entry.pop("space", None)
    for name, found in tuning["cells"].items():
        values = {} if found["chosen"] is None else found["trials"][found["chosen"]]["values"]
        if name in entries:
            entries[name]["set"] = (entries[name].get("set") or {}) | values
        elif name == cell:  # a combination of axes, the only one that runs
            document["set"] = (document.get("set") or {}) | values
    if entries:
        document["cells"] = entries
