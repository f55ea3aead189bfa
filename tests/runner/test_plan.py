"""From a study to runs: keys, what cells change, seeds, overrides, and the studies that come with the project."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.errors import UserError
from realm_lab.runner.design import cells_of
from realm_lab.runner.plan import StudyPlan, plan_study, record_study
from realm_lab.runner.study import load_study
from realm_lab.systems.identity import plan_run
from realm_lab.tracking.run_dir import read_run_record
from realm_lab.tracking.study_record import read_study_record
from tests import tiny

CELLS = """
baseline: realm
cells:
  realm: {title: REALM, paper: table2.realm}
  warm: {system: warm_start}
  token: {set: {pretrain: {masking: random_token, refresh: {policy: never}}}}
"""
OWN_FILES = ("real_text.yaml", "real_news.yaml")  # planned only where their texts and checkpoints are
TUNED = ("table2", "masking", "staleness", "null_document", "trivial_candidate", "candidates_k", "corpora")
SHIPPED = sorted(
    path.name
    for path in (Path(__file__).parents[2] / "experiments").glob("*.yaml")
    if path.name not in ("dvc.yaml", *OWN_FILES) and not path.name.startswith("search")
)


def test_a_run_is_what_the_same_parameters_are_without_a_study(planned: Callable[..., StudyPlan]) -> None:
    plan = planned(CELLS)
    assert [(run.cell, run.seed) for run in plan.runs] == [(c, s) for c in ("realm", "warm", "token") for s in (0, 1)]
    changed = tiny.params({"pretrain.masking": "random_token", "pretrain.refresh.policy": "never"})
    assert plan.of("token")[1].plan == plan_run(changed, "realm", 1)
    assert plan.of("warm")[0].plan == plan_run(tiny.params(), "warm_start", 0)
    assert plan.of("token")[1].params == changed


def test_changes_are_of_the_resolved_parameters(planned: Callable[..., StudyPlan]) -> None:
    """What a cell sets to the baseline's value is no change."""
    plan = planned("baseline: a\ncells:\n  a:\n  b: {set: {pretrain.candidates: 6, pretrain.batch_size: 5}}\n")
    assert plan.cells[1].overrides == {"pretrain.candidates": 6, "pretrain.batch_size": 5}
    assert plan.cells[1].changes == plan.of("b")[0].changes == {"pretrain.batch_size": 5}


def test_the_same_run_in_two_studies_has_one_key_and_shares_its_beginning(planned: Callable[..., StudyPlan]) -> None:
    one, two = (
        planned(CELLS, "one"),
        planned("baseline: r\ncells:\n  r:\n  k: {set: {pretrain.candidates: 5}}\n", "two"),
    )
    assert {run.run_key for run in two.of("r")} == {run.run_key for run in one.of("realm")}
    assert two.of("k")[0].plan.stages["warm_start"] == one.of("realm")[0].plan.stages["warm_start"]
    assert two.of("k")[0].run_key not in {run.run_key for run in one.runs}


@pytest.mark.parametrize(("wanted", "seeds"), [(None, (4, 2)), (1, (4,)), (2, (4, 2)), (4, (0, 1, 2, 3))])
def test_seeds_of_the_command_line(write: Callable[..., Path], wanted: int | None, seeds: tuple[int, ...]) -> None:
    path = write(CELLS, head="question: q\nseeds: [4, 2]\n")
    plan = plan_study(path, path.parent, params_path=tiny.PARAMETERS, seeds=wanted)
    assert plan.seeds == seeds
    assert [run.seed for run in plan.of("token")] == list(seeds)


def test_no_seeds_are_refused(planned: Callable[..., StudyPlan]) -> None:
    with pytest.raises(UserError, match="--seeds 0: a study needs at least one"):
        planned(CELLS, seeds=0)


def test_the_command_line_goes_over_what_the_study_sets(planned: Callable[..., StudyPlan]) -> None:
    plan = planned("set: {pretrain.steps: 9}\n" + CELLS, overrides={"pretrain.steps": 7})
    assert {run.params.pretrain.steps for run in plan.runs} == {7}
    assert all(cell.overrides["pretrain.steps"] == 7 for cell in plan.cells)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "pretrain.masking",
            "line 7: cell 'token' changes 'pretrain.masking', which --set pretrain.masking would undo",
        ),
        ("pretrain.maskin", "--set pretrain.maskin: unknown parameter 'pretrain.maskin'; the nearest valid one is"),
        ("seeds", "give --seeds N"),
    ],
)
def test_the_command_line_must_not_undo_a_cell(planned: Callable[..., StudyPlan], key: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        planned(CELLS, overrides={key: "random_span"})
    assert message in str(caught.value)


def test_an_impossible_product_names_the_cell_and_the_remedy(planned: Callable[..., StudyPlan]) -> None:
    text = """
    baseline: {pretrain.null_document: encoded, pretrain.candidates: 6}
    axes:
      pretrain.null_document: ["off", encoded]
      pretrain.candidates: [1, 6]
    mode: product
    """
    with pytest.raises(UserError) as caught:
        planned(text)
    message = str(caught.value)
    assert "line 6: cell 'null_document=encoded,candidates=1': parameter 'pretrain': candidates must be" in message
    assert "'exclude'" in message
    plan = planned(text.rstrip() + "\n    exclude: [{pretrain.null_document: encoded, pretrain.candidates: 1}]\n")
    assert len(plan.cells) == 3


def test_two_points_that_are_one_run_are_refused(planned: Callable[..., StudyPlan]) -> None:
    text = "baseline: a\ncells: {a: {system: warm_start}}\naxes: {pretrain.initial_reader: [scratch]}\n"
    with pytest.raises(UserError, match="line 5: cells 'a' and 'initial_reader=scratch' are the same run"):
        planned(text)


def test_what_is_wrong_in_the_parameter_file_is_said_of_it(write: Callable[..., Path], tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("preset: smoke\npretrain:\n  steps: soon\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"params\.yaml, line 3: parameter 'pretrain\.steps'"):
        plan_study(write(CELLS), tmp_path)


def test_a_record_says_what_was_planned(planned: Callable[..., StudyPlan], tmp_path: Path) -> None:
    plan = planned(CELLS)
    record = record_study(plan, tmp_path)
    assert read_study_record(tmp_path / "runs" / "studies" / "study" / "study.json") == record
    assert record.baseline == "realm"
    assert record.source == "study.yaml"
    assert record.cell("token").changes == {"pretrain.masking": "random_token", "pretrain.refresh.policy": "never"}
    for member, run in zip(record.runs, plan.runs, strict=True):
        assert (member.cell, member.seed, member.run_key) == (run.cell, run.seed, run.run_key)
        assert read_run_record(tmp_path / "runs" / member.run / "run.json").run_key == run.run_key


def test_all_studies_are_there() -> None:
    named = (
        "table2 masking staleness staleness_by_rate null_document trivial_candidate candidates_k corpora quick smoke"
    )
    assert {f"{name}.yaml" for name in named.split()} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_study_of_the_project_can_be_planned(name: str, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("preset: toy\n", encoding="utf-8")
    plan = plan_study(repository / "experiments" / name, tmp_path)
    assert plan.study.question.endswith("?")
    assert all(cell.title for cell in plan.cells)
    assert len({cell.title for cell in plan.cells}) == len(plan.cells)
    assert plan.study.metrics
    assert len(plan.seeds) >= {"quick.yaml": 2, "smoke.yaml": 2}.get(name, 3)
    assert bool(plan.tuned) == (name.removesuffix(".yaml") in TUNED)


@pytest.mark.parametrize("name", OWN_FILES)
def test_a_study_of_ones_own_files_can_be_read(name: str, repository: Path) -> None:
    study = load_study(repository / "experiments" / name)
    assert study.question.endswith("?")
    assert cells_of(study)[0].name == study.baseline


def test_table2_has_the_papers_seven_rows(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("preset: toy\n", encoding="utf-8")
    plan = plan_study(repository / "experiments" / "table2.yaml", tmp_path)
    assert len(plan.cells) == len({cell.paper for cell in plan.cells if cell.paper}) == 7
    stale, fresh = (plan.of(cell)[0].params.pretrain.refresh.interval_steps for cell in ("stale_30x", "realm"))
    assert stale == 30 * fresh
    pretrained = {
        run.plan.stages["pretrain"] for c in ("realm", "realm_retriever", "realm_encoder") for run in plan.of(c)
    }
    assert len(pretrained) == len(plan.seeds)
