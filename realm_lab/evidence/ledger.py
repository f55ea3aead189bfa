"""runs/ledger.jsonl: plans, tuning, looks and verdicts in the order of time; a line has the hash of the line before.

A line is an object with `before` (SHA-256 of the line before, "" in the first), `at`, `kind` and `study`:

    plan      before the first run, and after each change: the design, with digests of the study's file and of the code.
              A run's key covers its parameters and data. `changes`: the differences from the plan before.
    tuning    the values chosen for each cell, and the number of trials; the next plan has the runs with these values
    look      a report of new results: how many runs were complete, and the digest of results.csv
    verdict   the findings, if they differ from the verdict before

A line that was edited or deleted breaks the chain at the next line. The last lines are protected by the files that they
describe: the study's record, its YAML file, its results, and its report with the hash of the plan.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from realm_lab.errors import UserError
from realm_lab.records.code import package_modules
from realm_lab.records.code_record import code_reader
from realm_lab.records.files import digest, read_json
from realm_lab.records.lease import exclusive
from realm_lab.records.study import StudyRecord, read_study_record, study_folder

NAME = "ledger.jsonl"
HASH_CHARACTERS = 16  # of the hash that a report names
FIELDS = {  # of each kind of line, those that are read
    "plan": ("complete", "runs", "file"),
    "tuning": ("choice",),
    "look": ("complete", "results"),
    "verdict": ("findings",),
}
REMEDY = "restore it from a copy; a ledger is never repaired by hand"


class Line(NamedTuple):
    """One line; `hash` is the hash of its text."""

    number: int  # from 1
    hash: str
    fields: dict[str, Any]


class Deviation(NamedTuple):
    """A change of the design after results were seen. `is_removal`: something was dropped or replaced, not added."""

    line: int
    change: str  # seed added, seed dropped, variant added, variant dropped, variant changed, design changed
    name: str
    is_removal: bool

    def __str__(self) -> str:
        return f"{self.change}: {self.name} (line {self.line})"


class Problem(NamedTuple):
    """A line that breaks the chain, that files contradict, or that drops or replaces something after a look."""

    line: int
    study: str
    what: str


def note_plan(runs: Path, record: StudyRecord, file: Path, complete: int) -> None:
    """Add the plan of a study, unless it equals the last plan noted. `complete`: the number of complete runs of this
    plan and of the last one."""
    with exclusive(runs / NAME) as ledger:
        assert ledger is not None  # `exclusive` waits for the lock
        lines = _whole_lines(ledger, runs / NAME)
        last = _last(lines, record.name, "plan")
        reader = code_reader(runs)
        code = digest(reader.reached(package_modules()))  # without comments
        reader.save()
        plan = _design(record) | {"file": digest_text(file), "code": code}
        if last and {name: last.fields.get(name) for name in plan} == plan:
            return
        if last and "tune" in plan and plan["tune"] == last.fields.get("tune") and not record.runs:
            return  # the trials run again with other code; the plan is noted once they have chosen the runs
        choice, tuned = _choice(record), _last(lines, record.name, "tuning")
        if choice and (tuned is None or tuned.fields["choice"] != choice):
            trials = sum(len(cell["trials"]) for cell in record.tuning["cells"].values())
            _add(ledger, lines, "tuning", record.name, {"trials": trials, "choice": choice})
        changes = _changes(last.fields, plan) if last else []
        _add(ledger, lines, "plan", record.name, {"complete": complete, **plan, "changes": changes})


def findings_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return metric -> cell -> finding of a summary.json, as the line of a verdict has them."""
    found = summary["comparisons"].items()
    return {metric: {cell: one["finding"] for cell, one in cells.items()} for metric, cells in found}


def note_look(runs: Path, study: str, results: Path, complete: int, findings: Mapping[str, Any]) -> None:
    """Add a look if a planned study has new results, and a verdict if it has new findings; nothing without a complete
    run."""
    if not complete or not (runs / NAME).exists():
        return
    with exclusive(runs / NAME) as ledger:
        assert ledger is not None
        lines = _whole_lines(ledger, runs / NAME)
        if not _last(lines, study, "plan"):
            return
        seen, look = _last(lines, study, "look"), digest_text(results)
        if seen is None or seen.fields["results"] != look:
            _add(ledger, lines, "look", study, {"complete": complete, "results": look})
        found = _last(lines, study, "verdict")
        if found is None or found.fields["findings"] != findings:
            _add(ledger, lines, "verdict", study, {"findings": dict(findings)})


def plan_of(runs: Path, study: str) -> dict[str, Any] | None:
    """Return the part of a report about a study's plan; None if no plan was noted. The plan is the last one before any
    result, or else the first one. `complete`: the runs complete when it was noted. `deviations`: all changes after
    results were seen. Plans with runs are preferred to plans noted before tuning chose the runs."""
    path = runs / NAME
    lines = [line for line in read_ledger(path) if line.fields["study"] == study] if path.exists() else []
    plans = [line for line in lines if line.fields["kind"] == "plan"]
    plans = [line for line in plans if line.fields["runs"]] or plans
    if not plans:
        return None
    unseen = itertools.takewhile(lambda line: line.fields["kind"] != "look" and not line.fields.get("complete"), lines)
    plan = (plans[:1] + [line for line in unseen if line in plans])[-1]
    return {
        "line": plan.number,
        "hash": plan.hash[:HASH_CHARACTERS],
        "complete": plan.fields["complete"],
        "deviations": [str(one) for one in deviations(lines)],
    }


def last_look(runs: Path, study: str) -> Line | None:
    """The last look at a study's results; None without one, or without a ledger."""
    path = runs / NAME
    return _last(read_ledger(path), study, "look") if path.exists() else None


def deviations(lines: list[Line]) -> list[Deviation]:
    """Return the deviations of a study whose lines are given: changes after the first look, or in a plan that was noted
    when runs were already complete. A plan that was replaced before any look or further complete run does not count."""
    looks = [line.number for line in lines if line.fields["kind"] == "look"]
    kept: list[Line] = []
    last: Line | None = None
    for line in lines:
        is_plan = line.fields["kind"] == "plan"
        known = last.fields["complete"] if last and kept else 0
        if last and (line.fields["kind"] == "look" or (is_plan and line.fields["complete"] > known)):
            kept.append(last)
        last = line if is_plan else last
    kept += [last] if last else []
    return [
        Deviation(now.number, change, name, not change.endswith("added"))
        for before, now in itertools.pairwise(kept)
        if now.fields["complete"] or (looks and looks[0] < now.number)
        for change, name in _changes(before.fields, now.fields)
    ]


def read_ledger(path: Path) -> list[Line]:
    """Read every line, unverified. UserError: there is no ledger, or a line is not an object with a ledger's fields."""
    try:
        return _parsed(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        raise UserError("no ledger here", path=path, remedy="`realm-lab sweep` starts one with a plan") from None


def verify(root: Path) -> tuple[list[Line], list[Problem]]:
    """Return the ledger's lines and its faults; needs no network.

    The chain is checked first. Nothing after a broken line can be trusted, so only that line is returned. Otherwise the
    record, the YAML file, the results and the report of every study must agree with its last lines in the ledger.
    """
    path = root / "runs" / NAME
    lines = read_ledger(path)
    before = ""
    for line in lines:
        if line.fields["before"] != before:
            what = "it does not follow the line before: one was edited, deleted or moved"
            return lines, [Problem(line.number, line.fields["study"], what)]
        before = line.hash
    studies = dict.fromkeys(line.fields["study"] for line in lines)
    return lines, [problem for study in studies for problem in _contradictions(root, study, lines)]


def _contradictions(root: Path, study: str, lines: list[Line]) -> Iterator[Problem]:
    """Yield differences between the disk and the last lines of a study, and removals after results were seen."""
    runs, mine = root / "runs", [line for line in lines if line.fields["study"] == study]
    plan, look = _last(mine, study, "plan"), _last(mine, study, "look")
    if plan is None:
        yield Problem(mine[0].number, study, "no plan of this study comes before it")
        return
    record_path = study_folder(runs, study) / "study.json"
    if not record_path.exists():
        yield Problem(plan.number, study, f"{record_path} is gone: the study was dropped")
        return
    try:
        record = read_study_record(record_path)
    except UserError as error:
        yield Problem(plan.number, study, str(error))
        return
    for change, name in _changes(plan.fields, _design(record)):
        yield Problem(plan.number, study, f"{record_path} is another plan; {change}: {name}")
    file = root / record.source
    if not record.source or not file.is_file():
        yield Problem(plan.number, study, f"the study's file {record.source} is gone")
    elif digest_text(file) != plan.fields["file"]:
        yield Problem(plan.number, study, f"{record.source} was edited; run the study again to note it as a change")
    results = root / "reports" / study / "results.csv"
    summary = results.with_name("summary.json")
    reported = read_json(summary) if results.exists() and summary.exists() else {}
    if look and results.exists() and digest_text(results) != look.fields["results"]:
        yield Problem(look.number, study, f"{results} has other results")
    elif not look and reported.get("coverage", {}).get("complete"):
        yield Problem(plan.number, study, f"{results} has results, and no look at them follows: lines are missing")
    last = _last(mine, study, "verdict")
    if look and reported and (last is None or last.fields["findings"] != findings_of(reported)):
        what = "has other findings" if last else "has a verdict, and none follows: lines are missing"
        yield Problem((last or look).number, study, f"{summary} {what}")
    told = reported.get("plan") or {}
    known = {line.hash[:HASH_CHARACTERS]: line.number for line in mine if line.fields["kind"] == "plan"}
    if told.get("line") and told["hash"] not in known:
        yield Problem(told["line"], study, f"the plan that {summary} names is not in the ledger")
    for one in deviations(mine):
        if one.is_removal:
            yield Problem(one.line, study, f"after results were seen, {one.change}: {one.name}")


def digest_text(path: Path) -> str:
    """Return the SHA-256 of a text file as hex, with CRLF counted as LF, since Git may convert line ends."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def _design(record: StudyRecord) -> dict[str, Any]:
    """Return the design of a study as a plan notes it: baseline, metrics, rules, tuning, and the keys of runs."""
    keys: dict[str, dict[str, str]] = {}
    for run in record.runs:
        keys.setdefault(run.cell, {})[str(run.seed)] = run.run_key
    metrics = {"metrics": [*record.metrics], "exploratory": [*record.exploratory], "delta": record.delta}
    until: dict[str, Any] = {"until": [*record.until]} if record.until else {}
    until |= {"declared": record.declared} if record.declared else {}
    tune: dict[str, Any] = {}
    if record.tuning:
        tune = {name: record.tuning[name] for name in ("trials", "seeds", "metric", "sampler")}
        tune = {"tune": tune | {"space": {name: one["space"] for name, one in record.tuning["cells"].items()}}}
    return {"baseline": record.baseline, **metrics, **until, **tune, "runs": keys}


def _choice(record: StudyRecord) -> dict[str, Any]:
    """Return the values that tuning chose for each cell; empty before it has chosen."""
    cells = record.tuning.get("cells", {})
    chosen = {name: one["trials"][one["chosen"]] for name, one in cells.items() if one["chosen"] is not None}
    return {name: {"values": trial["values"], "by_seed": trial["by_seed"]} for name, trial in chosen.items()}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[list[str]]:
    """Return [change, name] for each seed, cell and other field that differs between two plans. Seeds that a rule of
    the design adds are no change, and neither are the runs that a planned tuning chose."""
    old, new = before["runs"], now["runs"]
    if before.get("tune") and before.get("tune") == now.get("tune") and not (old and new):
        old = new
    seeds = [{seed for cell in runs.values() for seed in cell} for runs in (old, new)]
    planned = before.get("until") is not None and before.get("until") == now.get("until")
    found = [["seed added", seed] for seed in sorted(seeds[1] - seeds[0], key=int) if not planned]
    found += [["seed dropped", seed] for seed in sorted(seeds[0] - seeds[1], key=int)]
    found += [["variant added", name] for name in new if name not in old]
    found += [["variant dropped", name] for name in old if name not in new]
    for name in (name for name in old if name in new):
        if any(new[name].get(seed, key) != key for seed, key in old[name].items()):
            found.append(["variant changed", name])
    names = ("baseline", "metrics", "exploratory", "delta", "until", "declared", "tune")
    return found + [["design changed", name] for name in names if before.get(name) != now.get(name)]


def _last(lines: list[Line], study: str, kind: str) -> Line | None:
    mine = (line for line in reversed(lines) if line.fields["study"] == study and line.fields["kind"] == kind)
    return next(mine, None)


def _add(ledger: IO[str], lines: list[Line], kind: str, study: str, fields: dict[str, Any]) -> None:
    """Write the next line, and add it to `lines`."""
    before = lines[-1].hash if lines else ""
    found = {"before": before, "at": round(time.time(), 3), "kind": kind, "study": study, **fields}
    text = json.dumps(found, ensure_ascii=False)
    ledger.write(f"{text}\n")
    lines.append(_line_of(text, len(lines) + 1, Path(ledger.name)))


def _whole_lines(ledger: IO[str], path: Path) -> list[Line]:
    """Return the lines of the locked file, and remove an unfinished last line, which a killed process left."""
    text = ledger.read()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        ledger.truncate(len(whole.encode()))
    return _parsed(whole, path)


def _parsed(text: str, path: Path) -> list[Line]:
    """Parse the lines; text after the last newline is an unfinished line, and left out."""
    return [_line_of(line, number, path) for number, line in enumerate(text.split("\n")[:-1], 1)]


def _line_of(text: str, number: int, path: Path) -> Line:
    try:
        fields = json.loads(text)
        if not {"before", "at", "kind", "study", *FIELDS.get(fields.get("kind"), ())} <= fields.keys():
            raise ValueError
    except (ValueError, AttributeError):
        raise UserError("not a line of a ledger", path=path, line=number, remedy=REMEDY) from None
    return Line(number, hashlib.sha256(text.encode()).hexdigest(), fields)
