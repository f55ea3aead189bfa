"""The report of a study: its numbers by hand, its verdicts, and what it says about designs that are not clean."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from realm_lab.errors import UserError
from realm_lab.reporting.confounds import confounds
from realm_lab.reporting.published import published
from realm_lab.reporting.study_comparison import as_json, finding, verdict
from realm_lab.reporting.study_contents import StudyContents
from realm_lab.runner.collect import collect
from realm_lab.tracking.study_record import StudyRecord
from tests.reporting import studies

Make = Callable[..., StudyRecord]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyRecord]:
    """The study as `make()` makes it, once."""
    runs = tmp_path_factory.mktemp("made") / "runs"
    return runs, studies.make_study(runs)


@pytest.fixture
def make(tmp_path: Path, made: tuple[Path, StudyRecord]) -> Make:
    def make(*arguments: Any, **options: Any) -> StudyRecord:
        if not arguments and not options:
            shutil.copytree(made[0], tmp_path / "runs")
            return made[1]
        return studies.make_study(tmp_path / "runs", *arguments, **options)

    return make


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def run_json(tmp_path: Path, study: StudyRecord, cell: str, seed: int) -> Path:
    [run] = [run for run in study.of(cell) if run.seed == seed]
    return tmp_path / "runs" / run.run / "run.json"


def report(tmp_path: Path, name: str = "table") -> str:
    return (collect(tmp_path, name) / "report.md").read_text()


def warnings(tmp_path: Path) -> list[str]:
    """What would stand at the top of the report, without drawing it."""
    contents = StudyContents(tmp_path / "runs", "table")
    return confounds(contents.study, contents.collection)


def test_deltas_are_those_of_the_given_numbers(tmp_path: Path, make: Make) -> None:
    make(tuple(range(6)))
    found = as_json(StudyContents(tmp_path / "runs", "table").results)["exact_match"]["random_token"]
    ours = [studies.exact_match("random_token", seed, 2) for seed in range(6)]
    theirs = [studies.exact_match("realm", seed, 0) for seed in range(6)]
    deltas = np.subtract(ours, theirs)
    assert found["deltas"] == pytest.approx({str(seed): delta for seed, delta in enumerate(deltas)})
    assert found["interval"] == pytest.approx(list(stats.ttest_rel(ours, theirs).confidence_interval(0.95)))
    assert (found["n"], found["p"]) == (6, 2 / 64)
    assert found["corrected_p"] == found["smallest_corrected_p"] == 3 * 2 / 64  # Holm, three cells beside the baseline
    low, high = found["per_example_interval"]
    assert low < deltas.mean() < high


def test_the_verdict_groups_the_cells_and_claims_no_more_than_there_is(tmp_path: Path, make: Make) -> None:
    make(tuple(range(6)))
    text = report(tmp_path)
    assert "not distinguishable: no null document (+0.000)" in text
    assert "lower in each of 6 seeds, too few to be significant: warm start only" in text
    one = studies.CELLS[:2]
    make(tuple(range(6)), name="pair", cells=one)
    assert "**Which part pays? By exact match, against REALM (0.960, n = 6): lower: warm start only" in report(
        tmp_path, "pair"
    )


def test_the_verdict_says_what_other_measures_can_tell(tmp_path: Path, make: Make) -> None:
    cells = tuple(cell for cell in studies.CELLS if cell.name in ("realm", "no_null"))
    study = make(tuple(range(6)), cells=cells)
    said = "not distinguishable: no null document (+0.000)."
    assert f"{said}**" in report(tmp_path), "nothing else differs"
    for run in study.of("no_null"):
        stage = json.loads((tmp_path / "runs" / run.run / "run.json").read_text())["stages"]["evaluate"]
        edit(tmp_path / "runs" / stage / "results.json", lambda found: found.update(recall_at_5=0.0))
    text = report(tmp_path)
    assert f"{said} Significant in other measures: lower recall@5, zero-shot: no null document (−0." in text
    assert text.count("Significant in other measures") == 1
    results = StudyContents(tmp_path / "runs", "table").results
    costs = [result._replace(metric="wall_seconds") for result in results[1:]]
    assert "Significant" not in verdict(study, [results[0], *costs]), "a cost is no result"


@pytest.mark.parametrize(
    ("deltas", "corrected", "smallest", "words"),
    [
        ((-0.1, -0.2, -0.1), 0.01, 0.01, "lower"),
        ((0.1, 0.1, 0.11), 0.25, 0.25, "higher in each of 3 seeds, too few to be significant"),
        ((0.1, 0.1, -0.11), 0.25, 0.25, "not distinguishable"),
        ((0.1, 0.2, 0.3, 0.1, 0.2, 0.4), 0.06, 0.03, "not distinguishable"),
    ],
)
def test_findings(deltas: tuple[float, ...], corrected: float, smallest: float, words: str) -> None:
    from realm_lab.reporting.statistics import compare

    comparison = compare(dict(enumerate(deltas)), dict.fromkeys(range(len(deltas)), 0.0))
    assert finding(comparison, corrected, smallest) == words
    assert finding(None, None, None) == "no data"


def test_the_report_has_its_parts_and_is_the_same_again(tmp_path: Path, make: Make) -> None:
    make()
    text = report(tmp_path)
    for part in (
        "## Results",
        "## Figures",
        "## Cost",
        "## What each cell changes",
        "## Coverage",
        "## How to reproduce",
    ):
        assert part in text
    assert "pretrain.masking = random_token" in text
    assert "random &lt;tokens&gt;" in text
    assert "Kendall's tau 1.00" in text
    assert len(re.findall(r"\| BM25, the same passages +\| +3 +\| +0\.625 ± 0\.000 ", text)) == 1  # of recall@5 alone
    assert "−0.069" in text  # the paper's baseline below its REALM
    folder = tmp_path / "reports" / "table"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["verdict"] in text.replace("\\_", "_").replace("&lt;", "<").replace("&gt;", ">")
    assert summary["comparisons"]["exact_match"].keys() == {"warm_start", "random_token", "no_null"}
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 12
    before = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path in before if path.suffix == ".png"} == {
        "deltas.png",
        "curves.png",
        "cost.png",
        "staleness.png",
        "utility_by_masking.png",
    }
    for name in ("old.png", "mine.png"):
        (folder / "figures" / name).write_bytes(b"")
    with (folder / "report.md").open("a") as file:
        file.write("![of an earlier version](figures/old.png)")
    report(tmp_path)
    (folder / "figures" / "mine.png").unlink()  # no report named it, so it was still there
    assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert "<tokens>" not in (folder / "index.html").read_text()


def test_a_missing_seed_and_a_failed_cell_are_said_at_the_top(tmp_path: Path, make: Make) -> None:
    study = make(skip=(("no_null", 1),))
    record = json.loads(run_json(tmp_path, study, "random_token", 2).read_text())
    edit(
        tmp_path / "runs" / record["stages"]["evaluate"] / "status.json",
        lambda found: found.update(state="FAILED", error="out of memory"),
    )
    text = report(tmp_path)
    top = text.split("## Results")[0]
    assert "Incomplete: " in top
    assert (
        "random\\_token, seed 2: stage evaluate is FAILED" in text
        or "random_token, seed 2: stage evaluate is FAILED" in text
    )
    assert "out of memory" in text
    found = as_json(StudyContents(tmp_path / "runs", "table").results)["exact_match"]
    assert (found["no_null"]["n"], found["random_token"]["n"], found["warm_start"]["n"]) == (2, 2, 3)


def test_a_clean_study_has_no_warning(tmp_path: Path, make: Make) -> None:
    make()
    assert warnings(tmp_path) == []
    assert "> **Attention" not in report(tmp_path)


def test_cells_that_share_pre_training_both_have_its_curves(tmp_path: Path, make: Make) -> None:
    study = make()
    for seed in (0, 1, 2):
        path = run_json(tmp_path, study, "no_null", seed)
        found = json.loads(path.read_text())
        shared = json.loads(run_json(tmp_path, study, "realm", seed).read_text())["stages"]["pretrain"]
        path.write_text(json.dumps(found | {"stages": found["stages"] | {"pretrain": shared}}))
    contents = StudyContents(tmp_path / "runs", "table")
    ages = contents.rows.groupby("label")["index_staleness_steps"].mean()
    assert ages["no_null"] == ages["realm"] == 4.0
    pretrain = contents.points[contents.points["stage"] == "pretrain"]
    assert {*pretrain["label"]} == {"realm", "random_token", "no_null"}


def test_another_engine_version_is_caught(tmp_path: Path, make: Make) -> None:
    study = make()
    edit(run_json(tmp_path, study, "no_null", 1), lambda found: found.update(engine_version=2))
    assert warnings(tmp_path) == ["Confounded: runs of engine versions 1, 2 are compared."]
    assert "> **Attention.** Confounded: runs of engine versions 1, 2 are compared." in report(tmp_path)


def test_other_data_are_caught(tmp_path: Path, make: Make) -> None:
    study = make()
    edit(run_json(tmp_path, study, "no_null", 1), lambda found: found["inputs"].update(corpus="f" * 64))
    assert warnings(tmp_path) == ["Confounded: no_null, seed 1, was run on another corpus than the baseline."]


def test_a_study_of_corpora_is_not_blamed_for_them(tmp_path: Path, make: Make) -> None:
    same = replace(studies.CELLS[3], changes={"corpus.pretrain_corpus": "same"})
    study = make(cells=(studies.CELLS[0], same))
    for seed in (0, 1, 2):
        edit(run_json(tmp_path, study, "no_null", seed), lambda found: found["inputs"].update(corpus="f" * 64))
    assert warnings(tmp_path) == []
    assert "different corpora" not in report(tmp_path)


def test_a_second_changed_parameter_is_caught(tmp_path: Path, make: Make) -> None:
    study = make()
    for seed in (0, 1, 2):
        edit(run_json(tmp_path, study, "no_null", seed), lambda found: found["params"]["pretrain"].update(candidates=3))
    assert warnings(tmp_path) == ["Confounded: no_null also differs from the baseline in pretrain.candidates."]


def test_a_change_that_was_not_made_is_caught(tmp_path: Path, make: Make) -> None:
    study = make()
    for seed in (0, 1, 2):
        edit(
            run_json(tmp_path, study, "no_null", seed),
            lambda found: found["params"]["pretrain"].update(null_document="encoded"),
        )
    told = "Confounded: no_null says that it changes pretrain.null_document, and its runs do not."
    assert warnings(tmp_path) == [told]


def test_seeds_that_differ_in_more_than_the_seed_are_caught(tmp_path: Path, make: Make) -> None:
    study = make()
    edit(run_json(tmp_path, study, "realm", 2), lambda found: found.update(cell_key="e" * 64))
    assert warnings(tmp_path) == ["Confounded: the seeds of realm differ in more than the seed."]


def test_a_study_that_is_not_there_is_named(tmp_path: Path, make: Make) -> None:
    make()
    with pytest.raises(UserError, match=r"no such study has been swept; run .*sweep experiments/maskin\.yaml.*table"):
        collect(tmp_path, "maskin")


def test_an_unknown_published_system_is_named(tmp_path: Path, make: Make) -> None:
    make(cells=(replace(studies.CELLS[0], paper="table2.raelm"), studies.CELLS[1]))
    with pytest.raises(UserError, match=r"no such published system; choose table2\.realm, "):
        report(tmp_path)


def test_the_registry_holds_the_papers_table() -> None:
    found = published("table2.stale_30x")
    assert found.values == {"exact_match": 0.287, "recall_at_5": 0.151}
    assert found.baseline == {"exact_match": 0.382, "recall_at_5": 0.385}
    assert "Table 2" in found.source
