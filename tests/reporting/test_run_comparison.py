"""`realm-lab compare` on run folders made of formulas: who is meant, what differs, and how sure that is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from realm_lab import cli
from realm_lab.errors import UserError
from realm_lab.reporting.run_comparison import RunComparison, as_json
from realm_lab.reporting.run_comparison_page import build
from realm_lab.reporting.run_selection import find_side, find_sides
from realm_lab.tracking.study_record import StudyRecord
from tests.reporting import studies

SEEDS = tuple(range(6))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyRecord]:
    root = tmp_path_factory.mktemp("made")
    return root, studies.make_study(root / "runs", SEEDS)


@pytest.fixture
def root(tmp_path: Path, made: tuple[Path, StudyRecord]) -> Path:
    """A copy of the study's runs, to be changed."""
    shutil.copytree(made[0] / "runs", tmp_path / "runs")
    return tmp_path


@pytest.fixture
def study(made: tuple[Path, StudyRecord]) -> StudyRecord:
    return made[1]


def folder_of(study: StudyRecord, cell: str, seed: int) -> str:
    return next(run.run for run in study.of(cell) if run.seed == seed)


def stage_folder(root: Path, run: str, stage: str) -> Path:
    return root / "runs" / str(json.loads((root / "runs" / run / "run.json").read_text())["stages"][stage])


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def compared(root: Path, *texts: str) -> dict[str, Any]:
    return as_json(RunComparison(root / "runs", texts))


def difference(found: dict[str, Any], metric: str, side: str) -> dict[str, Any]:
    [item] = [item for item in found["differences"] if (item["metric"], item["side"]) == (metric, side)]
    return dict(item)


def test_a_run_is_meant_by_folder_name_or_beginning(root: Path, study: StudyRecord) -> None:
    name = folder_of(study, "realm", 3)
    runs = root / "runs"
    for text in (name, name[:-4], f"runs/{name}", f"{runs / name}/"):
        assert find_side(runs, text) == (name, (name,))
    assert find_side(runs, "table/realm-s3") == ("table/realm-s3", (name,))
    assert find_side(runs, "table/realm").runs == tuple(folder_of(study, "realm", seed) for seed in SEEDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("realm-s2", r"'realm-s2' is the beginning of 3 runs \(realm-s2-.*\); write more of the name"),
        ("raelm-s2-abc", r"no run 'raelm-s2-abc'; the nearest are realm-s2-"),
        ("", "no run ''; the nearest are "),
        (
            "table",
            r"'table' is a study; name its cells or their runs: table/realm, table/warm_start, .*table/CELL-sSEED",
        ),
        ("tabel/realm", "there is no study 'tabel'; the nearest are table"),
        ("table/random_tokn", "study table has no such cell; the nearest are random_token"),
        ("table/realm-s7", r"'table/realm-s7': the study has seeds 0, 1, 2, 3, 4, 5 of realm; choose one"),
    ],
)
def test_what_cannot_be_found_is_named_with_the_nearest(root: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_side(root / "runs", text)


def test_a_run_of_another_project_is_refused(root: Path, study: StudyRecord, tmp_path_factory: Any) -> None:
    name = folder_of(study, "realm", 0)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / name
    shutil.copytree(root / "runs" / name, elsewhere)
    with pytest.raises(UserError, match=r"not a run under .*--root DIR"):
        find_side(root / "runs", str(elsewhere))


def test_two_different_sides_are_needed(root: Path, study: StudyRecord) -> None:
    with pytest.raises(UserError, match="name two runs or more"):
        find_sides(root / "runs", ["table/realm"])
    with pytest.raises(UserError, match=r"'table/realm-s0' and 'realm-s0-.*' are the same"):
        find_sides(root / "runs", ["table/realm-s0", folder_of(study, "realm", 0)])


def test_groups_are_compared_over_seeds(root: Path) -> None:
    found = compared(root, "table/realm", "table/random_token", "table/no_null")
    item = difference(found, "exact_match", "table/random_token")
    ours = [studies.exact_match("random_token", seed, 2) for seed in SEEDS]
    theirs = [studies.exact_match("realm", seed, 0) for seed in SEEDS]
    assert item["delta"] == pytest.approx(np.subtract(ours, theirs).mean())
    assert item["interval_over_seeds"] == pytest.approx(list(stats.ttest_rel(ours, theirs).confidence_interval(0.95)))
    assert item["corrected_p"] == item["smallest_corrected_p"] == 2 * 2 / 64  # Holm: two sides beside the first
    assert (item["seeds"], item["questions"]) == (list(SEEDS), 600)
    assert item["interval_over_questions"][0] < item["delta"] < item["interval_over_questions"][1]
    assert found["parameters"] == {
        "pretrain.masking": {
            "table/realm": "salient_span",
            "table/random_token": "random_token",
            "table/no_null": "salient_span",
        },
        "pretrain.null_document": {
            "table/realm": "encoded",
            "table/random_token": "encoded",
            "table/no_null": "off",
        },
    }
    assert found["warnings"] == []


def test_two_runs_are_compared_over_questions_and_no_seed_is_claimed(root: Path, study: StudyRecord) -> None:
    first, second = folder_of(study, "realm", 1), folder_of(study, "random_token", 1)
    item = difference(compared(root, first, second), "exact_match", second)
    ours, theirs = studies.exact_match("random_token", 1, 2), studies.exact_match("realm", 1, 0)
    deltas = np.array([float(n < 100 * ours) - float(n < 100 * theirs) for n in range(100)])
    assert item["delta"] == pytest.approx(deltas.mean()) == pytest.approx(ours - theirs)
    half = 1.96 * deltas.std() / 10  # the normal approximation, to be near
    assert item["interval_over_questions"] == pytest.approx([deltas.mean() - half, deltas.mean() + half], abs=0.02)
    assert (item["seeds"], item["interval_over_seeds"], item["corrected_p"]) == ([], None, None)
    assert (item["questions"], item["finding"]) == (100, "lower, for these two models")
    utility = difference(compared(root, first, second), "retrieval_utility_end", second)
    assert (utility["interval_over_questions"], utility["finding"]) == (None, "one run each")


def test_a_single_run_in_a_group_claims_no_seed_and_costs_the_others_no_power(root: Path) -> None:
    found = compared(root, "table/realm", "table/random_token", "table/warm_start-s2")
    one = difference(found, "exact_match", "table/warm_start-s2")
    assert one["delta"] == pytest.approx(studies.exact_match("warm_start", 2, 1) - studies.exact_match("realm", 2, 0))
    assert (one["seeds"], one["corrected_p"], one["questions"]) == ([], None, 100)
    assert one["finding"] == "lower, for these two models"
    assert difference(found, "exact_match", "table/random_token")["corrected_p"] == 2 / 64


def test_questions_of_another_corpus_are_not_paired_by_their_ids(root: Path, study: StudyRecord) -> None:
    first, second = folder_of(study, "realm", 0), folder_of(study, "random_token", 1)
    for run, word in ((first, "here"), (second, "there")):
        path = stage_folder(root, run, "evaluate") / "eval" / "predictions.jsonl"
        rows = [json.loads(line) | {"question": f"What is {word}?"} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = compared(root, first, second)
    item = difference(found, "exact_match", second)
    assert (item["questions"], item["interval_over_questions"], item["finding"]) == (0, None, "one run each")
    assert any("random_token" not in text and "no seed in common" in text for text in found["warnings"])


def test_an_unfinished_run_is_said_and_what_is_there_is_compared(root: Path, study: StudyRecord) -> None:
    first, second = folder_of(study, "realm", 0), folder_of(study, "random_token", 0)
    pretrain = stage_folder(root, second, "pretrain")
    edit(pretrain / "status.json", lambda found: found.update(state="PREEMPTED", step=5))
    lines = (pretrain / "metrics.jsonl").read_text().splitlines()
    (pretrain / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines if json.loads(line)["step"] <= 5))
    for stage in ("finetune", "evaluate"):
        shutil.rmtree(stage_folder(root, second, stage))
    document = build(RunComparison(root / "runs", [first, second]))
    assert any("stage pretrain is PREEMPTED at step 5 of 10" in warning for warning in document.warnings)
    assert document.verdict.startswith("Nothing to compare yet")
    [so_far] = [block for block in document.sections[1].blocks if block.kind == "table"]
    [row] = so_far.frame[so_far.frame["metric"].str.startswith("retrieval utility")].itertuples(index=False, name=None)
    assert row[1:] == ("5", "4.750", "4.000")  # step x level of the formula


def test_a_stage_that_both_share_is_drawn_for_both(root: Path, study: StudyRecord) -> None:
    first, second = folder_of(study, "realm", 0), folder_of(study, "no_null", 0)
    shared = json.loads((root / "runs" / first / "run.json").read_text())["stages"]["pretrain"]
    edit(root / "runs" / second / "run.json", lambda found: found["stages"].update(pretrain=shared))
    found = RunComparison(root / "runs", [first, second])
    assert [len(part.points[part.points["metric"] == "retrieval_utility"]) for part in found.parts] == [3, 3]


def test_other_engines_and_corpora_are_warned_of(root: Path, study: StudyRecord) -> None:
    second = root / "runs" / folder_of(study, "no_null", 0) / "run.json"
    edit(second, lambda found: found.update(engine_version=2, inputs={"corpus": "f" * 64}))
    warnings = compared(root, "table/realm-s0", "table/no_null-s0")["warnings"]
    assert warnings == [
        "The runs were made by different engine versions (1, 2).",
        "Seed 0: the systems were run on different corpora.",
    ]


def test_the_terminal_and_the_page_say_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "table/realm", "table/warm_start", "table/random_token", "--root", str(root)]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    page = Path(printed.splitlines()[-1])
    assert page == root / "reports/compare/table.realm-vs-table.warm_start-vs-table.random_token/index.html"
    text = (page.parent / "report.md").read_text()
    assert {path.name for path in (page.parent / "figures").glob("*.png")} == {"curves.png", "deltas.png"}
    for part in ("random_token", "salient_span", "exact match", "−0.7", "warm_start", "c" * 12):
        assert part in printed
        assert part in text.replace("\\_", "_")
    assert "(system)" in text
    before = {path: path.read_bytes() for path in page.parent.rglob("*") if path.is_file()}
    assert cli.main([*arguments, "--json", "--out", str(root / "reports" / "compare")]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(page)
    assert {path: path.read_bytes() for path in page.parent.rglob("*") if path.is_file()} == before


def test_one_run_is_too_few(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "table/realm", "--root", str(root)]) == 2
    assert "name two runs or more" in capsys.readouterr().err


def test_a_long_list_of_runs_is_still_a_folder_name(root: Path, study: StudyRecord) -> None:
    names = [folder_of(study, "realm", seed) for seed in SEEDS]
    found = RunComparison(root / "runs", names).name
    assert len(found) < 100
    assert found != RunComparison(root / "runs", [*names[:-1], folder_of(study, "no_null", 5)]).name
