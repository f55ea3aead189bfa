"""Confounds of a comparison, and the notes on the code of its runs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from realm_lab.evidence.report.code_notes import code_notes
from realm_lab.evidence.report.confounds import (
    confounds,
    curve_notes,
    differing_parameters,
    parameters_of,
    rounding_notes,
)
from realm_lab.evidence.report.frames import load_study
from realm_lab.evidence.report.report import write_study_report
from realm_lab.records.files import read_json
from realm_lab.records.run import Run
from realm_lab.records.study import StudyRecord, write_study_record
from tests.evidence.report.synthetic import CELLS, edit, make_study, run_json, stage_folder
from tests.factories.finished import finished

pytestmark = pytest.mark.usefixtures("undrawn")


def _env(root: Path, study: StudyRecord, cell: str = "no_null", **more: Any) -> None:
    path = stage_folder(root / "runs", study, cell, 1, "pretrain") / "env.json"
    edit(path, lambda found: found.update(more))


def _envs(root: Path, study: StudyRecord, realm: dict[str, Any], no_null: dict[str, Any]) -> None:
    _env(root, study, "realm", **realm)
    _env(root, study, "no_null", **no_null)


def _run(root: Path, study: StudyRecord, seeds: tuple[int, ...], change: Callable[[dict[str, Any]], Any]) -> None:
    for seed in seeds:
        edit(run_json(root / "runs", study, "no_null", seed), change)


def _older_baseline(root: Path, study: StudyRecord, name: str, value: Any) -> None:
    """Make the baseline older than a parameter, and give a cell another value of this parameter."""
    edit(run_json(root / "runs", study, "realm", 1), lambda f: f["params"]["pretrain"].pop(name))
    _run(root, study, (1,), lambda f: f["params"]["pretrain"].update({name: value}))


def _launch(root: Path, study: StudyRecord, name: str) -> None:
    _env(root, study, launch={name: 4})
    _env(root, study, "realm", launch={name: 8})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r, s: None, None),
        # a parameter that an older record lacks has its default; options of other systems do not count
        (lambda r, s: _run(r, s, (1,), lambda f: f["params"]["pretrain"].pop("mask_rate")), None),
        (lambda r, s: _older_baseline(r, s, "mask_rate", 0.9),
         "no_null also differs from the baseline in pretrain.mask_rate."),
        (lambda r, s: _run(r, s, (1,), lambda f: f["params"].update(system_options={"dpr": {"steps": 5}})), None),
        (lambda r, s: _run(r, s, (1,), lambda f: f["params"].update(system_options={"realm": {"steps": 5}})),
         "no_null also differs from the baseline in system_options."),
        (lambda r, s: _run(r, s, (1,), lambda f: f.update(engine_version=2)), "runs of engine versions 1, 2 are"),
        (lambda r, s: _run(r, s, (1,), lambda f: f["inputs"].update(corpus="f" * 64)),
         "no_null, seed 1, was run on another corpus than the baseline."),
        (lambda r, s: _run(r, s, (0, 1, 2), lambda f: f["params"]["pretrain"].update(candidates=3)),
         "no_null also differs from the baseline in pretrain.candidates."),
        (lambda r, s: _run(r, s, (0, 1, 2), lambda f: f["params"]["pretrain"].update(null_document="encoded")),
         "no_null says that it changes pretrain.null_document, and its runs do not."),
        (lambda r, s: _run(r, s, (1,), lambda f: f.update(cell_key="e" * 64)),
         "the seeds of no_null differ in more than the seed."),
        (lambda r, s: _launch(r, s, "ranks"), "Runs differ in launch.ranks (4, 8): rounding differs"),
        (lambda r, s: _env(r, s, packages={"torch": "3.0"}), "Runs were made with torch 2.13.0 and "),
        (lambda r, s: _envs(r, s, {"vectors": "AVX2"}, {"vectors": "DEFAULT"}),
         "Runs were made with vector instructions AVX2 and DEFAULT:"),
    ],
)  # fmt: skip
def test_what_else_differs_is_a_confound(tmp_path: Path, study: StudyRecord, spoil: Any, message: str | None) -> None:
    spoil(tmp_path, study)
    frames = load_study(tmp_path / "runs", "table")
    found = [*dict.fromkeys(confounds(frames)), *rounding_notes(frames)]
    assert len(found) == (message is not None)
    assert message is None or message in found[0]


def test_a_parameter_that_a_system_fixes_is_no_confound(tmp_path: Path, study: StudyRecord) -> None:
    path = run_json(tmp_path / "runs", study, "warm_start", 1)
    edit(path, lambda found: found["params"]["finetune"].update(candidates=3))
    differs = "Confounded: warm_start also differs from the baseline in finetune.candidates."
    assert [*confounds(load_study(tmp_path / "runs", "table"))] == [differs]
    edit(path, lambda found: found.update(fixed=["finetune.candidates"]))
    assert [*confounds(load_study(tmp_path / "runs", "table"))] == []


def test_curves_that_were_measured_otherwise_are_named(tmp_path: Path, study: StudyRecord) -> None:
    asked = {"evaluate.interval_steps": 8, "evaluate.questions": 5, "pretrain.watch.interval_steps": 10}
    had = {"evaluate": {"interval_steps": 8, "questions": 7}, "pretrain": {"watch": {"interval_steps": 20}}}
    for cell in ("realm", "no_null"):
        path = stage_folder(tmp_path / "runs", study, cell, 0, "pretrain") / "config.yaml"
        path.write_text(f"stage: pretrain\nparams:\n  evaluate: {json.dumps(had['evaluate'])}\n"
                        f"  pretrain: {json.dumps(had['pretrain'])}\n")  # fmt: skip
        finished(path.parent)
    cells = [replace(cell, changes=cell.changes | {"evaluate.questions": 7} if cell.name == "no_null" else cell.changes)
             for cell in study.cells]  # fmt: skip
    write_study_record(tmp_path / "runs", replace(study, observes=asked, cells=tuple(cells)))
    realm, no_null = curve_notes(load_study(tmp_path / "runs", "table"))
    assert realm.startswith(
        "Curves and flags of realm were measured with evaluate.questions = 7, not 5, pretrain.watch.interval_steps = "
        "20, not 10; to measure again, delete runs/stages/pretrain-"
    )
    assert "questions" not in no_null


def test_runs_of_different_code_are_a_confound(tmp_path: Path, study: StudyRecord) -> None:
    for cell, code in (("no_null", "old"), ("realm", "new")):
        for seed in (0, 1, 2):
            path = stage_folder(tmp_path / "runs", study, cell, seed, "evaluate") / "code.json"
            edit(path, lambda found: found.update(modules={"realm_lab.records.metrics": code}))  # noqa: B023
    write_study_report(tmp_path, "table")
    summary = read_json(tmp_path / "reports" / "table" / "summary.json")
    assert ["realm_lab.records.metrics" in text for text in summary["confounds"]] == [True]
    assert ["realm_lab.records.metrics" in text for text in summary["code"]] == [True]
    head = (tmp_path / "reports" / "table" / "report.md").read_text().partition("**Compared with")[0]
    assert "**Attention, this voids the comparison.**" in head, "before the verdict"
    accepted = {"modules": {"realm_lab.records.metrics": "new"}, "before": "", "by": "me", "at": 0.0}
    for seed in (0, 1, 2):
        path = stage_folder(tmp_path / "runs", study, "no_null", seed, "evaluate") / "code.json"
        edit(path, lambda found: found.update(accepted=[accepted]))
    write_study_report(tmp_path, "table")
    summary = read_json(tmp_path / "reports" / "table" / "summary.json")
    assert (summary["confounds"], any("by me" in text for text in summary["code"])) == ([], True)


def test_names_of_changed_files_keep_their_capitals(tmp_path: Path, study: StudyRecord) -> None:
    path = stage_folder(tmp_path / "runs", study, "no_null", 1, "evaluate") / "code.json"
    edit(path, lambda found: found.update(files={"data/Facts.jsonl": "of a file that is gone"}))
    [note] = code_notes(load_study(tmp_path / "runs", "table"))[1]
    assert note.startswith("Computed by other code: evaluate of 1 run")
    assert "data/Facts.jsonl" in note


def test_a_study_of_corpora_is_not_blamed_for_them(tmp_path: Path) -> None:
    same = replace(CELLS[3], changes={"corpus.pretrain_corpus": "same"})
    study = make_study(tmp_path / "runs", cells=(CELLS[0], same))
    _run(tmp_path, study, (0, 1, 2), lambda found: found["inputs"].update(corpus="f" * 64))
    assert [*confounds(load_study(tmp_path / "runs", "table"))] == []


def test_parameters_that_are_gone_stay_readable() -> None:
    gone = {"pretrain": {"over_retrieve": 9, "steps": 5}, "model": {"projection_norm": True}}
    found = parameters_of(Run("realm", 0, "a" * 64, "realm-s0-aaaaaaaaaaaa", system="realm", params=gone))
    assert found["pretrain.over_retrieve"] == 9
    assert found["model.projection_norm"] is True
    assert found["pretrain.steps"] == 5
    assert found["model.projection"] == "drawn"
    assert differing_parameters(found, found | {"pretrain.over_retrieve": 0}) == {"pretrain.over_retrieve"}
