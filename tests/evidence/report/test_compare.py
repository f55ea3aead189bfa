"""`realm-lab compare` on run folders made of formulas: who is meant, what differs, and how sure that is."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm_lab.cli import main
from realm_lab.errors import UserError
from realm_lab.evidence.compare import find_side, find_sides, load_sides
from realm_lab.evidence.report.report import write_report, write_study_report
from realm_lab.records.files import read_json
from realm_lab.records.study import Studies, StudyRecord, write_study_record
from tests import tiny
from tests.evidence.report.synthetic import edit, exact_match, make_study, stage_folder
from tests.factories.finished import finished

pytestmark = pytest.mark.usefixtures("undrawn")
SEEDS = (0, 1, 2)


def folder_of(study: StudyRecord, cell: str, seed: int) -> str:
    return next(run.name for run in study.of(cell) if run.seed == seed)


def compared(root: Path, *texts: str) -> dict[str, Any]:
    study = load_sides(root / "runs", find_sides(Studies(root / "runs"), texts))
    return write_report(study, root / "reports" / "compare")


def test_a_run_is_meant_by_folder_name_or_beginning(made: tuple[Path, StudyRecord]) -> None:
    runs, study = made[0] / "runs", made[1]
    name = folder_of(study, "realm", 1)
    for text in (name, name[:-4], f"{runs / name}/"):
        assert find_side(Studies(runs), text) == (name, (name,))
    assert find_side(Studies(runs), "table/realm-s1") == ("table/realm-s1", (name,))
    assert find_side(Studies(runs), "table/realm").runs == tuple(folder_of(study, "realm", seed) for seed in SEEDS)


def test_variants_whose_tuning_has_not_ended_have_no_runs(made: tuple[Path, StudyRecord]) -> None:
    runs, study = made[0] / "runs", made[1]
    write_study_record(runs, replace(study, name="tuning", runs=()))
    with pytest.raises(UserError, match="'tuning/realm' has no runs until"):
        find_sides(Studies(runs), ["tuning/realm", "tuning/no_null"])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["realm-s2"], r"'realm-s2' .* 3 runs \(realm-s2-.*\)"),
        (["raelm-s2-abc"], r"'raelm-s2-abc' .*choose from: realm-s0-"),
        (["table"], r"'table' is a study; .*table/realm, .*table/VARIANT-sSEED"),
        (["tabel/realm"], r"'tabel/realm': .*'table'"),
        (["table/random_tokn"], "'random_token'"),
        (["table/realm-s0", "table/realm-s0"], "same runs"),
        ([], "two runs"),
    ],
)
def test_what_cannot_be_found_is_named_with_the_nearest(
    made: tuple[Path, StudyRecord], texts: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        find_sides(Studies(made[0] / "runs"), [*texts, "table/no_null"] if len(texts) == 1 else texts)


def test_groups_are_compared_over_seeds(tmp_path: Path) -> None:
    make_study(tmp_path / "runs", tuple(range(6)))
    write_study_report(tmp_path, "table")
    summary = compared(tmp_path, "table/realm", "table/random_token", "table/no_null")
    item = summary["comparisons"]["exact_match"]["random_token"]
    theirs = read_json(tmp_path / "reports" / "table" / "summary.json")["comparisons"]["exact_match"]["random_token"]
    same = ("n", "deltas", "interval", "per_example_interval", "p", "corrected_p")
    assert {name: item[name] for name in same} == {name: theirs[name] for name in same}, "as in the study's own report"
    text = (tmp_path / "reports" / "compare" / "report.md").read_text()
    assert "pretrain.null_document = off" in text
    assert summary["warnings"] == []


def test_two_runs_are_one_pair_and_no_seed_is_claimed(made: tuple[Path, StudyRecord]) -> None:
    first, second = folder_of(made[1], "realm", 0), folder_of(made[1], "random_token", 1)
    found = compared(made[0], first, second)
    item = found["comparisons"]["exact_match"]["realm-s1"]
    ours, theirs = exact_match("random_token", 1, 2), exact_match("realm", 0, 0)
    deltas = np.array([float(n < 100 * ours) - float(n < 100 * theirs) for n in range(100)])
    half = 1.96 * deltas.std() / 10  # the normal approximation, to be near
    assert item["delta"] == pytest.approx(deltas.mean()) == pytest.approx(ours - theirs)
    assert item["per_example_interval"] == pytest.approx([deltas.mean() - half, deltas.mean() + half], abs=0.02)
    assert (item["interval"], item["corrected_p"]) == (None, 1.0)
    assert item["finding"] == "one pair of models"
    utility = found["comparisons"]["retrieval_utility_end"]["realm-s1"]
    assert (utility["per_example_interval"], utility["finding"]) == (None, "too few seeds")
    assert any("no seed" in text for text in found["warnings"])


def test_questions_are_paired_by_their_texts_and_those_of_an_article_are_not_independent(
    tmp_path: Path, study: StudyRecord
) -> None:
    def found(**fields: Callable[[str, int], str]) -> dict[str, Any]:
        """The comparison of two runs whose predictions have more fields, made of cell and number."""
        for cell, seed in (("realm", 0), ("random_token", 1)):
            path = stage_folder(tmp_path / "runs", study, cell, seed, "evaluate") / "eval" / "predictions.jsonl"
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            rows = [row | {name: of(cell, n) for name, of in fields.items()} for n, row in enumerate(rows)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            finished(path.parents[1])
        sides = folder_of(study, "realm", 0), folder_of(study, "random_token", 1)
        item: dict[str, Any] = compared(tmp_path, *sides)["comparisons"]["exact_match"]["realm-s1"]
        return item

    alone = np.ptp(found()["per_example_interval"])
    in_articles = found(cluster=lambda cell, number: f"article {number // 5}")
    assert np.ptp(in_articles["per_example_interval"]) > 1.5 * alone, "those that were lost are neighbours"
    of_others = found(question=lambda cell, number: f"of {cell}?")
    assert (of_others["per_example_interval"], of_others["finding"]) == (None, "too few seeds")


def test_a_system_that_retrieves_nothing_is_compared_and_says_so(
    tmp_path: Path, study: StudyRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "system closed_book retrieves no passages"
    for seed in SEEDS:
        folder = stage_folder(tmp_path / "runs", study, "no_null", seed, "evaluate")
        edit(folder / "results.json", lambda found: found.update(recall_at_5=None, not_measured={"retrieval": reason}))
        examples = [one | {"candidates": []} for one in json.loads((folder / "eval" / "explorer.json").read_text())]
        (folder / "eval" / "explorer.json").write_text(json.dumps([one for one in examples if "prediction" in one]))
        finished(folder)
    assert main(["compare", "table/realm", "table/no_null", "--root", str(tmp_path)]) == 0
    page = Path(capsys.readouterr().out.splitlines()[-1].removeprefix("all tables and figures: "))
    recall = page.with_name("report.md").read_text().partition("**Recall@5, zero-shot**")[2].partition("\n\n**")[0]
    assert "| no_null | – | 0 | – | – | not measured |" in recall
    assert f"| {reason} |" in page.with_name("report.md").read_text().partition("**Not measured**")[2]
    asked = page.read_text().partition('id="explorer"')[2].split("<details ")
    of_city_5 = [one for one in asked if "what is the capital of land5" in one and 'data-seed="0"' in one]
    assert [f"No passages: {reason}." in one for one in of_city_5] == [False, True], "side by side, one without any"


def test_a_page_replaces_no_file(
    tmp_path: Path, made: tuple[Path, StudyRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    (mine := tmp_path / "thesis.md").write_text("mine")
    arguments = ["compare", "table/realm", "table/random_token", "--root", str(made[0]), "--out", str(mine)]
    assert main(arguments) == 2
    assert str(mine) in capsys.readouterr().err
    assert mine.read_text() == "mine"


def test_the_terminal_and_the_report_say_the_same(
    tmp_path: Path, made: tuple[Path, StudyRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    sides = ["table/realm", "table/warm_start", "table/random_token"]
    arguments = ["compare", *sides, "--root", str(made[0]), "--out", str(tmp_path)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    page = Path(printed.splitlines()[-1].removeprefix("all tables and figures: "))
    assert page == tmp_path / "table.realm-vs-table.warm_start-vs-table.random_token" / "report.html"
    text = (page.parent / "report.md").read_text()
    for part in ("random_token", "salient_span", "Exact match", "−0.7", "system warm_start"):
        assert part in printed
        assert part in text.replace("\\_", "_")
    for part in ("95 %, questions", "Recall@1, zero-shot", "Paired differences"):
        assert (part in text, part in printed) == (True, False), "only the page has it"
    before = tiny.files(page.parent)
    assert {Path(name).name for name in before} >= {"report.md", "report.html", "deltas.png", "curves.png"}
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparisons"]["exact_match"].keys() == {"warm_start", "random_token"}
    assert tiny.files(page.parent) == before


def test_two_commits_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_study(tmp_path / "runs", (0,))
    command = ["compare", "table/realm-s0", "table/random_token-s0", "--root", str(tmp_path)]
    last = stage_folder(tmp_path / "runs", study, "random_token", 0, "evaluate")
    edit(last / "env.json", lambda found: found.update(git_commit="d" * 40))
    (last / "code.patch").write_text("not committed")
    assert main(command) == 0
    printed = capsys.readouterr().out
    for text in ("c" * 10, "d" * 10, str(last / "code.patch")):
        assert text in printed
    [summary] = (tmp_path / "reports").rglob("summary.json")
    assert "Different commits" in summary.read_text()
