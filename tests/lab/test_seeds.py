"""Rules for the seeds of a study: until decided within a time, and a custom one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.lab.plan import plan_study
from realm_lab.lab.results import Results
from realm_lab.lab.study import StudyPlan
from realm_lab.lab.wanted import record_study, wanted
from realm_lab.records.study import read_study_record, study_folder
from tests.factories.errors import refused
from tests.factories.interleaved import meanwhile
from tests.lab.conftest import PARAMETERS, leave

STUDY = "baseline: a\nmetrics: [recall_at_5]\ncells: {a: , b: {system: warm_start}}\n"
Planned = Callable[[str], StudyPlan]


@pytest.fixture
def with_seeds(write: Callable[..., Path], tmp_path: Path) -> Planned:
    """Plan two cells with this rule."""

    def made(rule: str) -> StudyPlan:
        path = write(STUDY, head=f"question: q\nseeds: {rule}\ndelta: {{recall_at_5: 0.001}}\n")
        return plan_study(path, tmp_path, params_path=PARAMETERS)

    return made


def end(root: Path, plan: StudyPlan) -> None:
    """Complete the runs that a plan wants, a seed in twelve minutes: its two cells share six. b differs from a by
    another amount at each seed."""
    record_study(plan, root)
    for run in wanted(plan, Results(root)):
        value = 0.5 if run.cell == "a" else 0.5 + 0.1 * (-1) ** run.seed
        for stage in ("prepare", *run.stages):
            seconds = {"warm_start": 360.0, "evaluate": 180.0}.get(stage, 0.0)
            leave(root, run, stage, "COMPLETE", {"recall_at_5": value}, wall_seconds=seconds)


def rounds(root: Path, planned: Planned, rule: str) -> list[int]:
    """Return the number of seeds that a plan wants each time, until it wants no others."""
    found, plan = list[int](), planned(rule)
    while (seeds := {run.seed for run in wanted(plan, Results(root))}) != {*range(found[-1] if found else 0)}:
        found.append(len(seeds))
        end(root, plan)
    return found


@pytest.mark.slow
def test_seeds_are_taken_as_long_as_the_time_lasts(with_seeds: Planned, tmp_path: Path) -> None:
    assert rounds(tmp_path, with_seeds, "{until: decided, within: 10 min}") == [4], "never below at_least"
    assert rounds(tmp_path, with_seeds, "{until: decided, within: 1.2 h}") == [5, 6]  # .2 h a seed
    assert rounds(tmp_path, with_seeds, "{until: decided, within: 90 min}") == [7]
    assert rounds(tmp_path, with_seeds, "{until: decided, at_most: 8}") == [8]


def test_two_hosts_that_record_different_results_at_once_leave_one_record(with_seeds: Planned, tmp_path: Path) -> None:
    one, two = (with_seeds(f"{{until: decided, at_most: {most}}}") for most in (8, 9))
    with meanwhile("study.json", lambda: record_study(two, tmp_path)):
        assert record_study(one, tmp_path).until == (4, 8)
    assert read_study_record(study_folder(tmp_path / "runs", "study") / "study.json").until == (4, 9)


RULE = """
from realm_lab import SeedRule

class Narrow(SeedRule):
    width: float

def until_narrow(study, results, options: Narrow):
    wide = results.pivot(index="seed", columns="cell", values=study.metrics[0])
    delta = (wide["b"] - wide["a"]).dropna()
    is_wide = 4 * delta.std() / len(delta) ** 0.5 > options.width
    return {"b": len(delta) + int(is_wide)}

def without(study, results):
    return {}
"""


@pytest.mark.slow
def test_a_custom_rule_takes_seeds(with_seeds: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_seeds.py").write_text(RULE)
    rule = "{{until: 'own_seeds:until_narrow', width: {}, at_most: 9}}".format
    assert rounds(tmp_path, with_seeds, rule(0.18)) == [4, 5, 6]
    assert with_seeds(rule(0.1)).design.until is None, "no p is corrected for looks"
    with refused("'width'"):
        with_seeds("{until: 'own_seeds:until_narrow', wide: 0.1}")
    with refused("realm_lab.SeedRule"):
        with_seeds("{until: 'own_seeds:without'}")
