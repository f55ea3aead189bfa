"""`tune` in a study: the same trials for every cell, chosen on development seeds, then the study's own seeds."""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from realm_lab.cli import main
from realm_lab.engine.params.load import flatten
from realm_lab.evidence.ledger import verify
from realm_lab.evidence.report.report_files import stale
from realm_lab.lab.housekeeping import unneeded
from realm_lab.lab.plan import plan_study
from realm_lab.lab.reproduce import _take_choices
from realm_lab.lab.results import Results
from realm_lab.lab.rules.space import Dimension, hypercube
from realm_lab.lab.rules.tune import tuned
from realm_lab.lab.study import StudyPlan
from realm_lab.lab.sweep import part_of
from realm_lab.lab.tracking.views import read_groups
from realm_lab.lab.wanted import record_study, wanted
from realm_lab.records.files import read_json
from realm_lab.records.run import Run
from realm_lab.records.study import Studies, read_study_record
from realm_lab.records.yaml_file import parse_yaml
from tests.factories.errors import refused
from tests.lab.conftest import leave
from tests.lab.test_sweep import make_project

Planned = Callable[..., StudyPlan]
RATE = "finetune.reader.learning_rate"
STUDY = """
question: Which is better when each has its best rate?
seeds: [0, 1]
baseline: realm
set: {warm_start.reader.steps: 2, warm_start.embedder.steps: 2, pretrain.steps: 2, finetune.steps: 2}
tune: {trials: 2, seeds: [10, 11], space: {finetune.reader.learning_rate: {choices: [3.0e-3, 5.0e-3]}}}
cells:
  realm: {}
  warm_start: {system: warm_start, space: {finetune.steps: {choices: [2, 3]}}}
metrics: [recall_at_5]
"""
TUNE = "{trials: 13, seeds: [10, 11], space: {finetune.reader.learning_rate: {low: 1.0e-3, high: 1.0e-2, log: true}}}"
CELLS = """
baseline: realm
cells:
  realm: {}
  warm_start: {system: warm_start}
"""


def study(tune: str = TUNE, cells: str = CELLS) -> str:
    return f"tune: {tune}\n{cells}"


@pytest.mark.slow
def test_cells_are_tuned_and_then_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_project(tmp_path, STUDY)
    arguments = ["sweep", "mini", "--root", str(root), "--launcher", "inline"]
    assert main([*arguments, "--dry-run"]) == 0
    assert "4 trials are left, each of 2 runs; then 4 runs" in capsys.readouterr().out
    assert main([*arguments, "--seeds", "1", "--dry-run", "--json"]) == 0
    assert {run["seed"] for run in json.loads(capsys.readouterr().out)} == {10, 11}, "a choice needs every trial"
    assert main(arguments) == 0
    runs = root / "runs"
    record = read_study_record(runs / "studies" / "mini" / "study.json")
    assert [folder.name for folder in (runs / "studies").iterdir()] == ["mini"]
    assert {run.seed for run in record.runs} == {0, 1}
    assert {run.seed for run in record.trials} == {10, 11}
    assert Counter((run.cell, run.trial) for run in record.trials) == dict.fromkeys(
        itertools.product(("realm", "warm_start"), (0, 1)), 2
    )
    for name, parameter in {"realm": RATE, "warm_start": "finetune.steps"}.items():
        found = record.tuning["cells"][name]
        means = [sum(trial["by_seed"]) / 2 for trial in found["trials"]]
        assert found["chosen"] == means.index(max(means)), "of equal ones the first"
        run = read_json(runs / record.of(name)[0].name / "run.json")
        assert flatten(run["params"])[parameter] == found["trials"][found["chosen"]]["values"][parameter]
    folder = root / "reports" / "mini"
    summary = read_json(folder / "summary.json")
    for cell in summary["tuning"]["cells"].values():
        assert cell["expected"][-1] == pytest.approx(cell["best"])
        assert cell["at_edge"] == list(cell["chosen"]), "of two choices each is at an edge"
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert re.search(r"finetune\.steps = [23]† of 2/3 ", text)
    assert stale(folder) == [], "the report is rendered again from its own data"
    lines, problems = verify(root)
    assert problems == []
    assert [line.fields["kind"] for line in lines] == ["plan", "tuning", "plan", "look", "verdict"]
    before = (folder / "results.csv").read_bytes()
    (runs / "studies" / "mini" / "study.json").unlink()  # nothing is needed but complete runs
    assert main(arguments) == 0
    assert read_study_record(runs / "studies" / "mini" / "study.json") == record
    assert (folder / "results.csv").read_bytes() == before
    assert len(verify(root)[0]) == len(lines)


def end(root: Path, run: Run) -> None:
    """Write the results of a trial's run: the best rate is 4e-3, and seeds differ; none above 9e-3."""
    rate = flatten(run.params)[RATE]
    for stage in run.stages:
        results = {"exact_match_dev": 1 - abs(rate - 4e-3) + 0.1 * run.seed} if stage == "evaluate" else {}
        leave(root, run, stage, "FAILED" if results and rate > 9e-3 else "COMPLETE", results)


def pending(plan: StudyPlan, root: Path) -> list[Run]:
    """The runs of trials that have not ended."""
    results = Results(root)
    return [run for run in wanted(plan, results) if run.trial is not None and results.outcome(run) is None]


def outcome(planned: Planned, root: Path, in_order: Callable[[list[Run]], list[Run]]) -> dict[str, Any]:
    plan = planned(study())
    while left := pending(plan, root):
        for run in in_order(left):
            end(root, run)
    return tuned(plan, Results(root)).as_data()


@pytest.mark.slow
def test_trials_and_choice_do_not_depend_on_the_order_of_the_runs(planned: Planned, tmp_path: Path) -> None:
    at_once = outcome(planned, tmp_path, lambda runs: runs)
    for folder in (tmp_path / "runs" / "stages").iterdir():
        for path in folder.iterdir():
            path.unlink()
    in_pieces = outcome(planned, tmp_path, lambda runs: runs[::-1][:3])
    assert at_once == in_pieces
    for cell in at_once["cells"].values():
        rates = [trial["values"][RATE] for trial in cell["trials"]]
        assert len(set(rates)) == 13
        assert rates[0] == 3e-3, "the first one is the cell as it is"
        ended = [rate for rate, trial in zip(rates, cell["trials"], strict=True) if trial["state"] == "complete"]
        assert rates[cell["chosen"]] == min(ended, key=lambda rate: abs(rate - 4e-3))
        assert cell["at_edge"] == []
    first = wanted(planned(study()), Results(tmp_path))[0]
    assert first.params.finetune.reader.learning_rate == rates[cell["chosen"]]


@pytest.mark.parametrize(
    ("tune", "cells", "field"),
    [
        (TUNE.replace("[10, 11]", "[10, 1]"), CELLS, "tune.seeds: 1"),
        (TUNE.replace("trials: 13", "trials: 13, metric: exact_match"), CELLS, "development data"),
        (TUNE, CELLS.replace("{}", f"{{set: {{{RATE}: 2.0e-3}}}}"), f"'{RATE}' is set for variant 'realm'"),
        ("{trials: 3, seeds: [10]}", CELLS, "variant 'realm' has no space"),
        (
            "{trials: 3, seeds: [10], sampler: grid}",
            CELLS.replace("{}", "{space: {finetune.steps: {choices: [12, 24]}}}"),
            "2 combinations",
        ),
        (
            "{trials: 5, seeds: [10], space: {finetune.steps: {choices: [12, 24]}}}",
            CELLS,
            "only 2 combinations",
        ),
        (
            "{trials: 2, seeds: [10], metric: recall_at_5, space: {pretrain.steps: {low: 4, high: 12}}}",
            CELLS,
            "no stage 'pretrain'",
        ),
    ],
)
def test_what_would_be_unfair_is_refused_with_its_place(planned: Planned, tune: str, cells: str, field: str) -> None:
    with refused(field) as caught:
        planned(study(tune, cells))
    assert caught.value.line


GRID = f"{{trials: 2, seeds: [10], sampler: grid, space: {{{RATE}: {{choices: [3.0e-3, 9.5e-3]}}}}}}"


def test_failed_trials_run_again_only_if_asked(planned: Planned, tmp_path: Path) -> None:
    plan = planned(study(GRID))
    for run in wanted(plan, Results(tmp_path)):
        end(tmp_path, run)
    assert {run.trial for run in wanted(plan, Results(tmp_path))} == {None}
    again = Results(tmp_path, retry_failed=True)
    assert tuned(plan, again).left == 2
    trials = wanted(plan, again)
    assert {run.trial for run in trials} == {0, 1}
    again.ended |= {run.run_key for run in trials}  # they failed again
    assert {run.trial for run in wanted(plan, again)} == {None}


def test_too_many_seeds_are_refused_before_the_trials(planned: Planned, tmp_path: Path) -> None:
    plan = planned(study(GRID))
    with refused("--seeds 3: study study has 2"):
        part_of(plan, wanted(plan, Results(tmp_path)), (), 3)


def test_variants_that_tuning_made_equal_are_named(planned: Planned, tmp_path: Path) -> None:
    own = "{{set: {{{}}}, space: {{{}: {{choices: {}}}}}}}".format
    a, b = own("", "finetune.steps", [12, 24]), own("finetune.steps: 24", RATE, [3e-3, 9.5e-3])
    plan = planned(study(GRID, f"baseline: a\ncells:\n  a: {a}\n  b: {b}\n"))
    for run in wanted(plan, Results(tmp_path)):
        for stage in run.stages:
            found = {"exact_match_dev": run.params.finetune.steps - flatten(run.params)[RATE]}
            leave(tmp_path, run, stage, "COMPLETE", found if stage == "evaluate" else {})
    with refused("tuning made variants 'a' and 'b' the same run"):
        wanted(plan, Results(tmp_path))


AXES = "baseline: {pretrain.steps: 4}\naxes: {pretrain.steps: [4, 6]}\n"


@pytest.mark.parametrize(("cells", "again"), [(CELLS, "warm_start"), (AXES, "steps=6")])
def test_a_cell_that_is_run_again_has_the_values_that_were_chosen(
    planned: Planned, tmp_path: Path, cells: str, again: str
) -> None:
    text = study(f"{{trials: 2, seeds: [10], space: {{{RATE}: {{choices: [3.0e-3, 4.0e-3]}}}}, sampler: grid}}", cells)
    for run in pending(planned(text), tmp_path):
        end(tmp_path, run)
    results = Results(tmp_path)
    trials = tuned(planned(text), results)
    document = parse_yaml(text, "")
    assert [*trials.choices[again].values()] == [4e-3]
    _take_choices(document, trials.as_data(), again)
    found = planned("".join(f"{key}: {json.dumps(value)}\n" for key, value in document.items()))
    assert found.tuning is None
    own = wanted(planned(text), results)
    assert [run.run_key for run in found.of(again)] == [run.run_key for run in own if run.cell == again]


@pytest.mark.slow
def test_trials_are_shown_while_a_study_is_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_project(tmp_path, STUDY)
    plan = plan_study(root / "experiments" / "mini.yaml", root)
    record = record_study(plan, root)
    assert (len(record.runs), len(record.trials)) == (0, 8)
    assert main(["status", "mini", "--json", "--root", str(root)]) == 0
    shown = json.loads(capsys.readouterr().out)["runs"]
    assert {run["run"] for run in shown} == {run.name for run in record.trials}
    assert len({run["cell"] for run in shown}) == 4
    groups = read_groups(Studies(root / "runs"), [])
    assert {name: len(members) for name, (_, members) in groups.items()} == {"mini": 0, "trials of mini": 8}
    assert unneeded(root) == [], "runs of trials are kept"


def test_an_edge_is_an_end_of_numbers_or_the_outer_part_of_a_range() -> None:
    assert [Dimension(choices=[1, 3, 9]).is_edge(value) for value in (1, 3, 9)] == [True, False, True]
    assert not Dimension(choices=["never", "always"]).is_edge("never")
    rates = Dimension(low=1e-4, high=1e-2, log=True)
    assert [rates.is_edge(value) for value in (1.1e-4, 1.4e-4, 9e-3)] == [True, False, True]


def test_a_hypercube_has_a_value_in_each_part_of_every_range() -> None:
    count = 7
    space = {
        "rate": Dimension(low=1e-4, high=1e-2, log=True),
        "share": Dimension(low=0.0, high=1.0),
        "steps": Dimension(low=10, high=10 + 5 * count - 1),
        "kind": Dimension(choices=[*"abc"]),
        "even": Dimension(low=0, high=2 * count - 2, step=2),
    }
    own = {"rate": 1e-3, "share": 0.5, "steps": 20, "kind": "a", "even": 2}
    points = hypercube(space, own, count, 0)
    assert points == hypercube(space, own, count, 0) != hypercube(space, own, count, 1)
    assert sorted(int(count * math.log(one["rate"] / 1e-4, 100)) for one in points) == [*range(count)]
    assert sorted(int(count * one["share"]) for one in points) == [*range(count)]
    assert sorted((one["steps"] - 10) // 5 for one in points) == [*range(count)]
    assert sorted(one["even"] for one in points) == [*range(0, 2 * count, 2)]
    assert {one["kind"] for one in points} == {*"abc"}
    assert all(value in space[name] for one in points for name, value in one.items())
