"""The grid of a study: which runs it adds, that they are those of a product study, and what is refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from realm_lab.errors import UserError
from realm_lab.runner.plan import StudyPlan, plan_study, record_study
from realm_lab.runner.preview import plan_as_json, show_plan
from realm_lab.runner.standing import members_of_record
from realm_lab.runner.tasks import tasks_of
from realm_lab.tracking.study_record import read_study_record
from tests.runner.conftest import PARAMETERS

Planned = Callable[..., StudyPlan]
CELLS = """
baseline: realm
cells:
  realm:
  warm: {system: warm_start}
  reset: {title: its reader is reset, set: {finetune.initial_reader: warm_start}}
  token: {set: {pretrain.masking: random_token}}
"""
RATE = "pretrain.retriever.learning_rate"
TUNE = f"tune: {{parameter: {RATE}, values: [0.001, 0.002], seeds: [1]}}\n"


@pytest.fixture
def plan(planned: Planned) -> StudyPlan:
    return planned(f"set: {{{RATE}: 0.001}}\n" + CELLS + TUNE)


def test_every_cell_that_pretrains_is_run_at_every_other_value(plan: StudyPlan) -> None:
    names = ["realm,learning_rate=0.002", "reset,learning_rate=0.002", "token,learning_rate=0.002"]
    assert [cell.name for cell in plan.cells] == ["realm", "warm", "reset", "token"]
    assert [one.cell.name for one in plan.tuned] == names
    assert [(run.cell, run.seed) for run in plan.runs[8:]] == [(name, 1) for name in names]
    assert {run.params.pretrain.retriever.learning_rate for run in plan.runs[8:]} == {0.002}
    assert plan.tuned[1].cell.title == "its reader is reset, learning rate = 0.002"
    assert plan.of("token,learning_rate=0.002")[0].changes == {"pretrain.masking": "random_token"}, "at the same value"


def test_the_runs_are_those_of_a_product_of_cells_and_values(planned: Planned, plan: StudyPlan) -> None:
    product = planned(
        f"""
        baseline: {{masks: salient, {RATE}: 0.001}}
        axes:
          masks: {{salient: {{}}, token: {{pretrain.masking: random_token}}}}
          {RATE}: [0.001, 0.002]
        mode: product
        """,
        "product",
    )
    ours = {run.run_key for run in plan.runs if run.seed == 1 and run.cell.split(",")[0] in ("realm", "token")}
    assert ours == {run.run_key for run in product.runs if run.seed == 1}
    assert len(ours) == 4


def test_cells_that_differ_in_fine_tuning_alone_share_the_pretraining_of_each_value(plan: StudyPlan) -> None:
    one, two = (plan.of(f"{cell},learning_rate=0.002")[0].plan for cell in ("realm", "reset"))
    assert one.stages["pretrain"] == two.stages["pretrain"]
    assert one.run_key != two.run_key


def test_the_record_keeps_the_grid_apart_and_everything_together(plan: StudyPlan, tmp_path: Path) -> None:
    record = record_study(plan, tmp_path)
    assert read_study_record(tmp_path / "runs" / "studies" / "study" / "study.json") == record
    assert [cell.name for cell in record.cells] == ["realm", "warm", "reset", "token"]
    assert len(record.runs) == 8
    tuning = record.tuning
    assert tuning is not None
    assert (tuning.parameter, tuning.values, tuning.own, tuning.seeds) == (RATE, (0.001, 0.002), 0.001, (1,))
    assert tuning.by == "cloze_exact_match"
    assert [(run.cell, run.seed) for run in tuning.runs] == [(run.cell, run.seed) for run in plan.runs[8:]]
    assert tuning.name_at("token", 0.002) == "token,learning_rate=0.002"
    assert tuning.name_at("token", 0.001) == "token"
    assert tuning.name_at("warm", 0.002) == "warm", "it is the same at every value"
    whole = record.everything()
    assert len(whole.runs) == 11
    assert whole.cell("token,learning_rate=0.002").changes == {"pretrain.masking": "random_token"}
    assert [member.cell for member in members_of_record(tmp_path, record)] == [run.cell for run in plan.runs]
    assert replace(record, tuning=None).everything() == replace(record, tuning=None)


def test_the_grid_is_in_the_tasks_and_in_both_previews(plan: StudyPlan, tmp_path: Path) -> None:
    assert {"token,learning_rate=0.002"} <= {cell for task in tasks_of(plan, tmp_path) for cell in task.cells}
    entry = plan_as_json(plan, tmp_path)[-1]
    assert (entry["cell"], entry["overrides"][RATE]) == ("token,learning_rate=0.002", 0.002)
    text = io.StringIO()
    show_plan(plan, tmp_path, Console(file=text, width=200))
    assert f"grid: {RATE} = 0.002" in text.getvalue()
    assert "11 runs of 4 cells, 3 of them of the grid" in text.getvalue()
    assert "not pre-trained, so the same at every value: warm" in text.getvalue()


def test_fewer_seeds_leave_those_of_the_grid_that_are_among_them(planned: Planned) -> None:
    text = f"set: {{{RATE}: 0.001}}\n" + CELLS + TUNE
    assert planned(text, seeds=1).tuned_seeds == ()
    assert len(planned(text, seeds=1).runs) == 4
    assert planned(text, seeds=3).tuned_seeds == (1,)


REFUSALS = [
    ("tune: {parameter: pretrain.retriever.learning_rat, values: [1, 2], seeds: [0]}", "the nearest valid one is"),
    ("tune: {parameter: pretrain.retriever, values: [1, 2], seeds: [0]}", "is a section; name a parameter in it"),
    ("tune: {parameter: finetune.steps, values: [1, 2], seeds: [0]}", "'finetune.steps' is no parameter of pre-train"),
    ("tune: {parameter: pretrain.masking, values: [random_token, random_span], seeds: [0]}", "leave one of the two"),
    (
        f"tune: {{parameter: {RATE}, values: [0.002, 0.003], seeds: [0]}}",
        "0.001, which the cells have otherwise, is",
    ),
    (f"tune: {{parameter: {RATE}, values: [0.001, 1.0e-3], seeds: [0]}}", "tune.values: 0.001 is there twice"),
    (f"tune: {{parameter: {RATE}, values: [0.001], seeds: [0]}}", "tune.values: list should have at least 2 items"),
    (f"tune: {{parameter: {RATE}, values: [0.001, many], seeds: [0]}}", "input should be a valid number"),
    (
        f"tune: {{parameter: {RATE}, values: [0.001, 0.002], seeds: [0, 7]}}",
        "7 is no seed of the study; choose among",
    ),
    (f"tune: {{parameter: {RATE}, values: [0.001, 0.002], seeds: [0, 0]}}", "tune.seeds: 0 is named twice"),
    (f"tune: {{parameter: {RATE}, values: [0.001, 0.002]}}", "'tune.seeds' is missing; list the seeds of the study"),
    (f"tune: {{parameter: {RATE}, values: [0.001, 0.002], seeds: [0], by: exact_match}}", "the nearest one is 'cloze_"),
    (f"tune: {{parameter: {RATE}, value: [0.001, 0.002], seeds: [0]}}", "unknown key 'value' of tune; the nearest"),
    (f"tune: {{parameter: {RATE}, values: [0.001, 0.002], seeds: []}}", "tune.seeds: list should have at least 1"),
]


@pytest.mark.parametrize(("tune", "message"), REFUSALS)
def test_a_wrong_grid_is_refused_with_its_line(write: Callable[..., Path], tune: str, message: str) -> None:
    path = write(f"set: {{{RATE}: 0.001}}\n{CELLS.strip()}\n{tune}\n")
    with pytest.raises(UserError) as caught:
        plan_study(path, path.parent, params_path=PARAMETERS)
    said = str(caught.value)
    line = 9 if "leave one of the two" in message else 10
    assert f"line {line}: " in said, said
    assert message in said


def test_the_command_line_must_not_set_what_the_grid_varies(planned: Planned) -> None:
    with pytest.raises(UserError, match=rf"'tune' varies '{RATE}', which --set {RATE} would undo; leave it away"):
        planned(f"set: {{{RATE}: 0.001}}\n" + CELLS + TUNE, overrides={RATE: 0.001})
