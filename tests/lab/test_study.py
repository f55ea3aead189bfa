"""A study: its file, its cells and axes, their runs, and refusals with line and remedy."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.engine.systems.identity import plan_run
from realm_lab.engine.systems.registry import system_of
from realm_lab.lab.effective import study_digests
from realm_lab.lab.plan import default_plan, plan_study
from realm_lab.lab.preview import in_every_cell
from realm_lab.lab.rules.space import Tuning
from realm_lab.lab.study import CellEntry, Pruning, Search, Study, StudyPlan, cells_of, read_study_file, value_in_name
from realm_lab.lab.sweep import part_of
from realm_lab.lab.wanted import record_study
from realm_lab.records.metrics import METRICS, chosen_by
from realm_lab.records.run import read_run
from realm_lab.records.study import read_study_record
from tests import tiny
from tests.factories.errors import refused
from tests.lab.conftest import PARAMETERS
from tests.lab.made_search import write_search

Write = Callable[..., Path]
Planned = Callable[..., StudyPlan]
GOOD = "baseline: a\ncells:\n  a:\n  b: {set: {pretrain.candidates: 5}}\n"
B = "baseline: a\ncells:\n  a:\n  b: "  # whose value is in line 6
CELLS = """
baseline: realm
cells:
  realm: {title: REALM, paper: table2.realm}
  warm: {system: warm_start}
  reset: {title: its reader is reset, set: {finetune.initial_reader: warm_start}}
  token: {set: {pretrain: {masking: random_token, refresh: {policy: never}}}}
"""
AXES = """
axes:
  pretrain.candidates: [4, 6, 8]
  refresh:
    often: {pretrain.refresh.interval_steps: 5}
    never: {pretrain.refresh.policy: never}
"""
BASE = "baseline: {pretrain.candidates: 6, refresh: often}\n"
SHIPPED = {path.stem: path for path in sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))}
OWN_FILES = ["two_sources", "table1_real", "crosslingual", *(name for name in SHIPPED if name.startswith("real_"))]
PLANNED = [name for name in SHIPPED if name not in ("dvc", *OWN_FILES) and not name.startswith("search")]


def refuses(path: Path, word: str, **fields: object) -> None:
    """Expect that a study is refused with this word and these fields."""
    with refused(word, path=path, **fields):
        plan_study(path, path.parent, params_path=PARAMETERS)


REFUSALS = [
    (B + "{set: {pretrain.changes: true}}\n", 6, "pretrain.changes: must not be true or false"),
    # keys
    (GOOD + "cell: {}\n", 7, "'cells'"),
    ("baseline: a\ncells:\n  a: {pretrain.steps: 5}\n", 5, "under 'set:'"),
    ("baseline: a\ncells:\n  a: {titel: A}\n", 5, "'title'"),
    ("baseline: a\ncells:\n  a:\n    system: relm\n", 6, "variant 'a': parameter 'system'"),
    ("baseline: a\ncells:\n  a:\n    paper: table9.realm\n", 6, "'table9.realm'"),
    ("baseline: a\ncells:\n  a:\n  a: {system: warm_start}\n", 6, 'duplicate key "a"'),
    ("baseline: a\ncells:\n  a:\n    system:\n      name: dpr\n      stepz: 3\n", 8, "'steps'"),
    ("baseline: a\ncells:\n  a: {system: {steps: 1}}\n", 5, "write NAME"),
    (B + "\n    system: {name: dpr, steps: 1}\n    set: {system_options.dpr.steps: 2}\n", 7, "set twice"),
    (GOOD + "metrics: [exact_match, recall_at5]\n", 7, "'recall_at_5'"),
    (GOOD + "set: {launch.device: tpu}\n", 7, "'launch.device'"),
    (GOOD + "metrics: [f1, f1]\n", 7, "f1 is listed twice"),
    (GOOD + "delta:\n  exact_mach: 0.1\n", 8, "'exact_match'"),
    (GOOD + "metrics:\n- retrieval_utility\n- retrieval_utility_end\n", 9, "listed twice"),
    (GOOD + "not_run:\n  c: no time\n  b: no time\n", 9, "'b' is a variant"),
    # names that YAML reads as dates, numbers or true
    ("baseline: 2024-01-01\ncells:\n  2024-01-01:\n", 5, "read as a date; put it in quotes"),
    ("baseline: {w: a}\naxes:\n  w:\n    a: {pretrain.steps: 5}\n    8: {pretrain.steps: 6}\n", 7, "in quotes"),
    (GOOD + "launcher: {slurm: {partition: 2024}}\n", 7, "in quotes"),
    (B + "\n    space: {pretrain.steps: {choices: [2, 3]}}\n", 7, "no 'tune'"),
    # launchers
    (GOOD + "launcher: {default: cloud}\n", 7, "parameter 'launcher.default': no launcher 'cloud'"),
    (GOOD + "launcher: {slurm: {timeout_min: 2}}\n", 7, "signal_delay_s"),
    # parameters
    (B + "\n    set:\n      pretrain.candidate: 5\n", 8, "'pretrain.candidates'"),
    (GOOD + "set: {pretrain.refresh: never}\n", 7, "'pretrain.refresh' is a section"),
    (GOOD + "set: {pretrain.steps: 5, pretrain: {steps: 6}}\n", 7, "'pretrain.steps' is set twice"),
    (GOOD + "set: {seeds: [1]}\n", 7, "key 'seeds'"),
    (B + "{set: {pretrain.masking: salint}}\n", 6, "variant 'b': parameter 'pretrain.masking'"),
    (B + "{set: {launch.ranks: 2}}\n", 6, "the study's 'set'"),
    (B + "\n    set:\n      finetune.steps: 9\n      pretrain.candidates: 1\n", 9, "null document alone"),
    # baseline and names
    ("cells:\n  a:\n", None, "'baseline' is missing"),
    ("baseline: c\ncells:\n  aa:\n", 3, "'c' is no variant; choose from: aa"),
    ("baseline: c\n", 3, "'c' is no variant; add cells or axes"),
    ("baseline: {pretrain.steps: 5}\ncells:\n  a:\n", 3, "points are for axes"),
    ("baseline: a b\ncells: {a b: {}}\n", 4, "variant 'a b': use letters"),
    ("baseline: a\ncells:\n  a: {title: x}\n  b: {title: x, set: {pretrain.steps: 5}}\n", 6, "the same title, 'x'"),
    # overlaps
    (B + "\n", 6, "'a' and 'b' are the same run: they have identical parameters"),
    (
        "baseline: a\ncells:\n  a: {system: warm_start}\n"
        "  b: {system: warm_start, set: {pretrain.initial_reader: scratch}}\n",
        6,
        "matter to no stage of the run (pretrain.initial_reader is warm_start and scratch)",
    ),
    # axes
    (BASE + AXES.strip() + "\ncells: {a: }\n", 4, "'cells' or 'axes'"),
    ("baseline: {refresh: often}\n" + AXES.strip(), 3, "no point of axis 'pretrain.candidates'"),
    ("baseline: {refresh: oftn, pretrain.candidates: 6}\n" + AXES.strip(), 3, "'oftn' is no point of axis 'refresh'"),
    ("baseline: {refesh: often}\n" + AXES.strip(), 3, "'refesh' is no axis"),
    ("baseline: {pretrain.steps: 5}\naxes: {pretrain.steps: []}\n", 4, "axis 'pretrain.steps' has no points"),
    ("baseline: {pretrain.steps: 5}\naxes: {pretrain.steps: [5, 5]}\n", 4, "point '5' is listed twice"),
    ("baseline: {pretrain.masking: a:m}\naxes: {pretrain.masking: ['a:m', 'b:m']}\n", 4, "called 'masking=m'"),
    ("baseline: {refresh: a}\naxes: {refresh: [{pretrain.steps: 5}]}\n", 4, "list values, or name points"),
    ("baseline: {a: x, b: y}\naxes: {a: {x: {pretrain.steps: 5}}, b: {y: {pretrain.steps: 6}}}\n", 4, "both set"),
    ("baseline: {a: x}\naxes: {a: {x: {}, y z: {pretrain.steps: 6}}}\n", 4, "'y z' cannot name a variant"),
    (
        "baseline: {pretrain.null_document: encoded, pretrain.candidates: 6}\naxes:\n"
        '  pretrain.null_document: ["off", encoded]\n  pretrain.candidates: [1, 6]\n',
        6,
        "variant 'null_document=encoded,candidates=1'",
    ),
]


@pytest.mark.parametrize(("text", "line", "words"), REFUSALS)
def test_a_wrong_file_is_refused(write: Write, text: str, line: int | None, words: str) -> None:
    refuses(write(text), words, line=line)


def test_code_of_a_user_that_fails_is_refused_before_any_work(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy_of_mine.py").write_text("def policy(settings): return {}['interval']\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = B + "{set: {pretrain.refresh.policy: policy_of_mine:policy}}\n"
    refuses(write(text), "failed with KeyError in policy_of_mine.py, line 1", line=6)


METRIC = """
import numpy as np
from realm_lab import Metric, register_metric
brevity = register_metric(Metric("brevity", "brevity of answers", unit="words", better="down"))
taken = Metric("f1", "another F1")
curve = Metric("height", "height", "curve")
def mask(request, generator): return np.arange(1)
"""


def test_a_metric_of_a_users_module_is_named_by_place_or_once_the_cells_import_it(
    planned: Planned, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_metrics.py").write_text(METRIC)
    monkeypatch.syspath_prepend(tmp_path)
    refuses(write(GOOD + "metrics: [brevity]\n"), "'brevity'")
    try:
        masked = B + "{set: {pretrain.masking: own_metrics:mask}}\n"
        record = record_study(planned(masked + "metrics: [f1, brevity]\ndelta: {brevity: 2}\n"), tmp_path)
        assert [metric.title for metric in record.own_metrics] == ["brevity of answers"]
        by_place = record_study(planned(GOOD + "metrics: [f1, own_metrics:brevity]\n"), tmp_path)
        assert by_place.metrics == record.metrics == ("f1", "brevity")
        assert by_place.own_metrics == record.own_metrics
        path = tmp_path / "runs" / "studies" / "study" / "study.json"
        del METRICS["brevity"]
        assert read_study_record(path) == by_place
        assert METRICS["brevity"].unit == "words", "the record is enough to show it"
        for name, message in (
            ("taken", "another metric is called 'f1'"),
            ("curve", "is of source 'results'"),
            ("gone", "no function or class 'gone'"),
        ):
            refuses(write(GOOD + f"metrics: [own_metrics:{name}]\n"), message, line=7)
        refuses(write(GOOD + "metrics: [brevity, own_metrics:brevity]\n"), "listed twice")
    finally:
        METRICS.pop("brevity", None)
        sys.modules.pop("own_metrics", None)


def test_digests_of_a_search_ask_for_no_trial(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(tiny.PARAMETERS.read_bytes())
    assert study_digests(write_search(tmp_path), tmp_path)["changes"] == []
    assert not (tmp_path / "runs" / "studies").exists()


@pytest.mark.slow
def test_the_code_of_a_custom_metric_is_in_the_digests_that_dvc_compares(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params.yaml").write_bytes(tiny.PARAMETERS.read_bytes())
    (tmp_path / "letters.py").write_text("def letters(predictions):\n    return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        without = study_digests(write(GOOD), tmp_path)
        found = study_digests(write(GOOD + "metrics: [letters:letters]\n"), tmp_path)
        assert (found["keys"], found["code"] == without["code"]) == (without["keys"], False)
    finally:
        METRICS.pop("letters", None)
        sys.modules.pop("letters", None)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ("seeds: []", "at least 1"),
        ("seeds: [0, 1, 0]", "0 is listed twice"),
        ("seeds: [true]", "seeds.0 must be a whole number"),
        ("", "'seeds' is missing"),
        ("seeds: {until: decided, at_least: 9, at_most: 8}", "at_least is 9"),
        ("seeds: {until: decided, at_least: 4, at_most: 17}", "at most 16"),
        ("seeds: {until: tired, at_least: 4, at_most: 8}", "decided"),
        ("seeds: {until: decided, at_least: 4, at_most: 8, patience: 2}", "'patience'"),
        ("seeds: {until: decided, within: soon}", "90 min, 2 h or 1 d, not soon"),
    ],
)
def test_wrong_seeds_are_refused(write: Write, seeds: str, message: str) -> None:
    refuses(write(GOOD, head=f"question: q\n{seeds}\n"), message)


def test_every_key_is_explained_on_the_page_in_the_words_of_the_model(repository: Path) -> None:
    page = (repository / "docs" / "study_file.md").read_text(encoding="utf-8")
    for model in (Study, CellEntry, Tuning, Search, Pruning):
        for name, field in model.model_fields.items():
            assert f"| `{name}` | {' '.join((field.description or '').split())} |" in page, f"{model.__name__}.{name}"
    metrics = (repository / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert all(f"`{metric}`" in metrics for metric in (*METRICS, *chosen_by()))


def test_axes_make_every_combination_the_baseline_first(write: Write) -> None:
    study = read_study_file(write(BASE + AXES))
    assert isinstance(study, Study)
    found = cells_of(study)
    names = "6,often 4,often 4,never 6,never 8,often 8,never".split()
    assert [cell.name for cell in found] == [f"candidates={name}" for name in names]
    never = {"pretrain.candidates": 4, "pretrain.refresh.policy": "never"}
    assert (found[2].overrides, found[2].title) == (never, "candidates = 4, never")
    assert found[2].points == {"pretrain.candidates": "4", "refresh": "never"}


def test_a_run_is_what_the_same_parameters_are_without_a_study(planned: Planned) -> None:
    plan = planned(CELLS)
    assert [(run.cell, run.seed) for run in plan.runs[:4]] == [("realm", 0), ("realm", 1), ("warm", 0), ("warm", 1)]
    changed = tiny.params({"pretrain.masking": "random_token", "pretrain.refresh.policy": "never"})
    assert plan.of("token")[1].stages == plan_run(changed, "realm", 1).stages
    assert plan.of("warm")[0].stages == plan_run(tiny.params(), "warm_start", 0).stages
    assert [cell.title for cell in plan.cells[:2]] == ["REALM", "warm start only"]


@pytest.mark.parametrize(
    ("cells", "changes", "title"),
    [
        ("b: {system: dpr, set: {system_options.dpr.negatives: 2}}", {"negatives": 2}, "DPR, negatives = 2"),
        ("b: {system: dpr, set: {system_options.dpr: {negatives: 2, steps: 20}}}", {"negatives": 2}, None),
        ("b: {system: {name: dpr, negatives: 2}}", {"negatives": 2}, "DPR, negatives = 2"),
    ],
)
def test_a_change_of_options_is_the_option_that_changes(
    planned: Planned, tmp_path: Path, cells: str, changes: dict[str, int], title: str | None
) -> None:
    plan = planned(f"preset: smoke\nbaseline: a\ncells:\n  a: {{system: dpr}}\n  {cells}\n")
    wanted = {f"system_options.dpr.{name}": value for name, value in changes.items()}
    record = record_study(plan, tmp_path)
    assert plan.cells[1].changes == record.cell("b").changes == wanted
    assert title is None or plan.cells[1].title == title
    recorded = read_run(tmp_path / "runs" / record.of("b")[0].name / "run.json").params["system_options"]
    assert {name: recorded["dpr"][name] for name in changes} == changes
    assert recorded.keys() == {"dpr"}, "the options of other systems are no parameters of the run"


def test_a_systems_cell_is_known_by_its_system_and_an_option_by_its_default(planned: Planned) -> None:
    """A parameter that a cell does not change has the value of the system."""
    text = "baseline: a\ncells:\n  a: {system: drqa, set: {system_options.drqa.articles: 2}}\n  b: {system: drqa}\n"
    plan = planned(text)
    assert plan.cells[1].changes == {"system_options.drqa.articles": 5}
    assert plan.cells[1].title == system_of("drqa").title
    options = planned("baseline: {system_options.dpr.steps: 7}\naxes: {system_options.dpr.steps: [7]}\n")
    assert options.cells[0].overrides == {"system_options.dpr.steps": 7}


def test_what_params_yaml_changes_in_every_cell_is_told(write: Write, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("preset: smoke\npretrain: {masking: random_span, batch_size: 5}\n")
    plan = plan_study(write("set: {pretrain.batch_size: 6}\n" + GOOD), tmp_path, overrides={"pretrain.steps": 7})
    assert (
        plan.design.common
        == record_study(plan, tmp_path).common
        == {"pretrain.masking": "random_span", "pretrain.steps": 7}
    )
    assert in_every_cell(plan).endswith("pretrain.masking = random_span, pretrain.steps = 7")
    varying = plan_study(write(B + "{set: {pretrain.masking: random_token}}\n"), tmp_path)
    assert "WARNING: variants of this study vary pretrain.masking: its baseline" in in_every_cell(varying)
    with refused("'a' and 'b'", "params.yaml sets pretrain.masking = random_span"):
        plan_study(write(B + "{set: {pretrain.masking: random_span}}\n"), tmp_path)


def test_the_first_seeds_are_a_part_of_the_study(write: Write) -> None:
    path = write(CELLS, head="question: q\nseeds: [4, 2]\n")
    plan = plan_study(path, path.parent, params_path=tiny.PARAMETERS)
    assert [run.seed for run in part_of(plan, plan.runs, ["token"], 1)] == [4]
    with refused("--seeds 3", "2"):
        part_of(plan, plan.runs, (), 3)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("pretrain.masking", "variant 'token' changes 'pretrain.masking'"),
        ("seeds", "give --seeds N"),
        ("preset", "--preset: "),
    ],
)
def test_the_command_line_goes_over_the_study_but_undoes_no_cell(planned: Planned, key: str, message: str) -> None:
    text = "preset: toy\nset: {pretrain.steps: 9}\n"
    plan = planned(text + CELLS, overrides={"pretrain.steps": 7, "preset": "smoke"})
    assert {(run.params.preset, run.params.pretrain.steps) for run in plan.runs} == {("smoke", 7)}
    assert planned(CELLS, overrides={"launch.device": "cuda"}), "a job may run on another machine, which has a GPU"
    with refused() as caught:
        planned(CELLS, overrides={key: "random_span"})
    assert message in str(caught.value)


@pytest.mark.parametrize("name", PLANNED)
def test_a_study_of_the_project_can_be_planned(name: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("preset: toy\n", encoding="utf-8")
    plan = plan_study(SHIPPED[name], tmp_path)
    assert plan.design.question.endswith("?")
    assert len({cell.title for cell in plan.cells}) == len(plan.cells)
    two = "quick", "smoke", "gate_threshold", "table2_robust_rates", "candidate_source_rates", "repair_maps"
    few = {"own_text": 1, "learning_rates": 1} | dict.fromkeys(two, 2)
    assert len(plan.seeds) >= few.get(name, 3)


@pytest.mark.parametrize("name", OWN_FILES)
def test_a_study_of_ones_own_files_can_be_read(name: str) -> None:
    study = read_study_file(SHIPPED[name])
    assert isinstance(study, Study)
    first = cells_of(study)[0]
    assert first.name == study.baseline


def test_table2_has_the_papers_seven_rows_and_quick_shares_the_default_runs(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("preset: toy\n", encoding="utf-8")
    plan = plan_study(SHIPPED["table2"], tmp_path)
    assert len({cell.paper for cell in plan.cells if cell.paper}) == 7
    stale, fresh = (plan.of(cell)[0].params.pretrain.refresh.interval_steps for cell in ("stale_30x", "realm"))
    assert stale == 30 * fresh
    quick = plan_study(SHIPPED["quick"], tmp_path)
    default = {run.run_key for run in default_plan(quick.runs[0].params).runs}
    assert default < {run.run_key for run in quick.runs}


@pytest.mark.parametrize(
    ("value", "part"),
    [("0.001", "0.001"), ("a.b:C", "C"), ("{name: span, share: 0.3}", "span+share=0.3"), ("[4, 2]", "4+2")],
)
def test_a_value_names_cells_without_what_folders_cannot_have(value: str, part: str) -> None:
    assert value_in_name(value) == part
