"""The chain of plans, looks and verdicts: drops, edits and deletions are found, and named by their line."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from realm_lab import UserError
from realm_lab.cli import parser as cli
from realm_lab.evidence.ledger import NAME, deviations, note_look, note_plan, plan_of, read_ledger, verify
from realm_lab.records.code import CodeReader
from realm_lab.records.run import Run
from realm_lab.records.study import StudyCell, StudyRecord, write_study_record

FOUND = {"exact_match": {"a": "lower"}}


def record_of(seeds: int, cells: tuple[str, ...] = ("base", "a"), name: str = "s", change: str = "") -> StudyRecord:
    """A study; `change` is in the keys of its last cell."""
    runs = tuple(
        Run(cell, seed, f"{name}-{cell}-{seed}{change * (cell == cells[-1])}", f"{cell}-s{seed}")
        for cell in cells
        for seed in range(seeds)
    )
    made = tuple(StudyCell(cell, cell, "realm", {}) for cell in cells)
    return StudyRecord(name, "?", "base", made, tuple(range(seeds)), runs, ("exact_match",), source=f"{name}.yaml")


class Project:
    """A folder in which studies are planned and looked at, without training anything."""

    def __init__(self, root: Path) -> None:
        self.root, self.runs = root, root / "runs"
        self.path = self.runs / NAME

    def plan(self, record: StudyRecord, text: str = "seeds", complete: int = 0) -> None:
        """Plan a study, as a sweep does first."""
        file = self.root / record.source
        file.write_text(text, encoding="utf-8")
        note_plan(self.runs, record, file, complete)
        write_study_record(self.runs, record)

    def look(self, name: str = "s", results: str = "cell,seed\n", complete: int = 8) -> None:
        """Look at a study, as a report does at its end."""
        folder = self.root / "reports" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.csv").write_text(results, encoding="utf-8")
        compared = {"exact_match": {"a": {"finding": FOUND["exact_match"]["a"]}}}
        summary = {"plan": plan_of(self.runs, name), "coverage": {"complete": complete}, "comparisons": compared}
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        note_look(self.runs, name, folder / "results.csv", complete, FOUND)

    def rewrite(self, change: Callable[[list[str]], list[str]]) -> None:
        """Edit the ledger by hand."""
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        self.path.write_text("".join(change(lines)), encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Planned, looked at twice, with a second study in between: lines plan, look, verdict, plan (t), look."""
    made = Project(tmp_path)
    made.plan(record_of(8))
    made.look()
    made.plan(record_of(2, name="t"))
    made.look(results="cell,seed\na,1\n")
    return made


def told_of(project: Project, name: str = "s") -> dict[str, Any]:
    """The plan of a study, as its report has it."""
    told = plan_of(project.runs, name)
    assert told is not None
    return told


def kinds(project: Project) -> list[tuple[str, str]]:
    return [(line.fields["kind"], line.fields["study"]) for line in read_ledger(project.path)]


def test_what_is_noted_and_what_is_no_news(project: Project) -> None:
    expected = [("plan", "s"), ("look", "s"), ("verdict", "s"), ("plan", "t"), ("look", "s")]
    assert kinds(project) == expected
    project.plan(record_of(8))
    project.look(results="cell,seed\na,1\n")
    project.look("t", complete=0)
    project.look("never planned")
    assert kinds(project) == expected
    assert verify(project.root)[1] == []
    told = told_of(project)
    assert (told["line"], told["complete"], told["deviations"]) == (1, 0, [])
    assert plan_of(project.runs, "never planned") is None


def test_an_edited_comment_is_no_other_code(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(project.root)
    monkeypatch.setattr("realm_lab.evidence.ledger.package_modules", lambda: ["ledger_code"])
    monkeypatch.setattr("realm_lab.evidence.ledger.code_reader", lambda _: CodeReader())
    for number, text in enumerate(("STEPS = 1\n", "STEPS = 1  # enough\n", "STEPS = 2\n")):
        (project.root / "ledger_code.py").write_text(text)
        project.plan(record_of(8))
        assert len(kinds(project)) == 5 + (1, 1, 2)[number]


@pytest.mark.parametrize("name", ["complete", "runs", "study"])
def test_a_plan_without_one_of_its_fields_is_one_error(project: Project, name: str) -> None:
    project.rewrite(lambda lines: [lines[0].replace(f'"{name}"', '"other"'), *lines[1:]])
    with pytest.raises(UserError, match="line 1: not a line of a ledger"):
        plan_of(project.runs, "s")


@pytest.mark.parametrize("place", range(4))
def test_a_deleted_or_edited_line_is_found(project: Project, place: int) -> None:
    whole = project.path.read_text(encoding="utf-8").splitlines(keepends=True)
    edited = [*whole[:place], whole[place].replace('"at": 1', '"at": 2'), *whole[place + 1 :]]
    for lines, first in ((whole[:place] + whole[place + 1 :], place + 1), (edited, place + 2)):
        project.path.write_text("".join(lines), encoding="utf-8")
        assert [problem.line for problem in verify(project.root)[1]] == [first], "the first that does not follow"


def test_a_deleted_end_is_found_by_what_it_described(project: Project) -> None:
    project.rewrite(lambda lines: lines[:4])
    assert [problem.line for problem in verify(project.root)[1]] == [2], "results.csv is not that of the last look"
    project.path.unlink()
    project.plan(record_of(8))
    assert {problem.study for problem in verify(project.root)[1]} == {"s"}, "its report names the first plan"
    project.path.unlink()
    with pytest.raises(UserError):
        verify(project.root)


@pytest.mark.parametrize("cut", [1, 2])
def test_an_end_that_was_cut_off_is_found(project: Project, cut: int) -> None:
    """Cut off only the verdict, or the look as well."""
    project.look()
    project.rewrite(lambda lines: lines[: 3 - cut])
    assert [(problem.line, problem.study) for problem in verify(project.root)[1]] == [(3 - cut, "s")]


def test_an_edited_finding_is_found(project: Project) -> None:
    summary = project.root / "reports" / "s" / "summary.json"
    summary.write_text(summary.read_text(encoding="utf-8").replace("lower", "higher"), encoding="utf-8")
    assert [(one.study, "summary.json" in one.what) for one in verify(project.root)[1]] == [("s", True)]


def test_a_dropped_seed_is_found(project: Project) -> None:
    write_study_record(project.runs, record_of(7))  # only in the record
    assert [(one.line, one.study) for one in verify(project.root)[1]] == [(1, "s")]
    project.plan(record_of(7), "seeds: 7")  # by a sweep, which notes it
    assert [(one.line, one.study) for one in verify(project.root)[1]] == [(6, "s")]
    assert len(told_of(project)["deviations"]) == 1


def test_an_edited_study_is_found(project: Project) -> None:
    (project.root / "s.yaml").write_text("seeds, edited", encoding="utf-8")
    assert [(one.line, one.study) for one in verify(project.root)[1]] == [(1, "s")]
    project.plan(record_of(8), "seeds, edited")
    assert verify(project.root)[1] == [], "a comment changes no run"
    project.plan(record_of(8, change="x"), "seeds, edited again")
    assert [(one.line, one.study) for one in verify(project.root)[1]] == [(7, "s")]


def test_line_ends_that_git_changed_are_no_edit(project: Project) -> None:
    project.plan(record_of(8), "seeds\nmore\n")
    project.look(results="cell,seed\na,2\n")
    for name in ("s.yaml", "reports/s/results.csv"):
        written = project.root / name
        written.write_bytes(written.read_bytes().replace(b"\n", b"\r\n"))
    assert verify(project.root)[1] == []


def test_a_broken_record_hides_no_other_study(project: Project) -> None:
    (project.runs / "studies" / "s" / "study.json").write_text('{"name": "s"}', encoding="utf-8")
    (project.root / "t.yaml").unlink()
    assert [(one.line, one.study) for one in verify(project.root)[1]] == [(1, "s"), (4, "t")]


def test_other_results_and_a_dropped_study_are_found(project: Project) -> None:
    (project.root / "reports" / "s" / "results.csv").write_text("cell,seed\na,2\n", encoding="utf-8")
    assert [(one.line, one.study) for one in verify(project.root)[1]] == [(5, "s")]
    (project.runs / "studies" / "t" / "study.json").unlink()
    assert [(one.line, one.study) for one in verify(project.root)[1]] == [(5, "s"), (4, "t")]


def test_deviations_are_changes_after_a_look(project: Project) -> None:
    project.plan(record_of(3, name="t"))  # nothing was seen of t
    project.plan(record_of(9, ("base", "a", "b")))
    project.plan(replace(record_of(9, ("base", "b")), delta={"exact_match": 0.02}, declared="same sign"))
    found = {
        study: [(one.change, one.name, one.is_removal) for one in deviations(lines)]
        for study in ("s", "t")
        if (lines := [line for line in read_ledger(project.path) if line.fields["study"] == study])
    }
    assert found["t"] == []
    assert found["s"] == [
        ("seed added", "8", False),
        ("variant added", "b", False),
        ("variant dropped", "a", True),
        ("design changed", "delta", True),
        ("design changed", "declared", True),
    ]


def test_a_plan_that_was_taken_back_before_any_run_is_no_deviation(project: Project) -> None:
    project.plan(record_of(2), "2", complete=8)
    project.plan(record_of(8), "8", complete=8)
    lines = [line for line in read_ledger(project.path) if line.fields["study"] == "s"]
    assert [line.fields["kind"] for line in lines[-2:]] == ["plan", "plan"]
    assert deviations(lines) == []
    project.plan(record_of(2), "2", complete=8)
    project.look(results="cell,seed\na,2\n")
    project.plan(record_of(8), "8", complete=8)
    lines = [line for line in read_ledger(project.path) if line.fields["study"] == "s"]
    changed = [*(("seed dropped", seed) for seed in "234567"), *(("seed added", seed) for seed in "234567")]
    assert [(one.change, one.name) for one in deviations(lines)] == changed, "the two seeds were looked at"


def test_a_report_names_the_last_plan_before_any_result(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for seeds in (6, 7, 8):
        project.plan(record_of(seeds), f"seeds: {seeds}")
    project.look()
    project.plan(record_of(9), "nine", complete=8)
    told = told_of(project)
    assert (told["line"], told["complete"], len(told["deviations"])) == (3, 0, 1)
    project.plan(record_of(8, name="late"), complete=5)  # the runs were there before their plan
    assert told_of(project, "late")["complete"] == 5


def test_runs_that_tuning_chose_and_that_were_there_are_counted(tmp_path: Path) -> None:
    """Another study may have made these runs. No plan can name them until tuning has chosen."""
    project, trial = Project(tmp_path), {"values": {"finetune.steps": 2}, "by_seed": [0.5]}
    tuning = {"trials": 1, "seeds": [9], "metric": "exact_match_dev", "sampler": "latin"}
    one, whole = {"space": {}, "trials": [trial], "chosen": 0}, record_of(8)
    for chosen, runs, complete in ((None, (), 0), (0, whole.runs, 8)):
        cells = dict.fromkeys(("base", "a"), one | {"chosen": chosen})
        project.plan(replace(whole, runs=runs, tuning=tuning | {"cells": cells}), complete=complete)
    assert [kind for kind, _ in kinds(project)] == ["plan", "tuning", "plan"]
    told = told_of(project)
    assert (told["line"], told["complete"], told["deviations"]) == (3, 8, [])


def test_a_line_that_a_killed_process_did_not_finish_is_written_again(project: Project) -> None:
    whole = project.path.read_text(encoding="utf-8")
    project.path.write_text(whole + whole.splitlines()[0][:40], encoding="utf-8")
    assert verify(project.root)[1] == []
    project.look(results="cell,seed\nb,2\n")
    assert project.path.read_text(encoding="utf-8").startswith(whole)
    lines, problems = verify(project.root)
    assert (lines[-1].fields["kind"], problems) == ("look", [])


def test_the_command(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--root", str(project.root), "status", "--ledger"]
    assert cli.main(given) == 0
    capsys.readouterr()
    project.rewrite(lambda lines: lines[1:])
    assert cli.main([*given, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [problem["line"] for problem in told["problems"]] == [1]
    project.rewrite(lambda lines: ["nonsense\n", *lines])
    assert cli.main(given) == 2
    assert "line 1" in capsys.readouterr().err
