"""`realm-lab reproduce` on committed reports: agreement, noise, and errors."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from realm_lab.cli import main
from realm_lab.evidence.report.report import write_study_report
from realm_lab.evidence.report.report_data import load_report
from realm_lab.evidence.report.report_files import stale
from realm_lab.evidence.reproduce import compare_runs, in_words
from realm_lab.lab.study import Study, cells_of, read_study_file
from tests import tiny
from tests.evidence.report.synthetic import make_study
from tests.factories.finished import edit_finished

REPOSITORY = Path(__file__).resolve().parents[2]
REPORTS = REPOSITORY / "reports"
COMMITTED = sorted(path.parent for path in REPORTS.glob("**/results.csv"))
STUDY = """
question: Is it made again?
seeds: [0, 1]
baseline: realm
set: {warm_start.reader.steps: 2, warm_start.embedder.steps: 2, pretrain.steps: 2, finetune.steps: 2}
cells:
  realm: {title: REALM}
  longer: {title: longer, set: {pretrain.steps: 4}}
launcher: {default: inline}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    make_study(root / "runs")
    write_study_report(root, "table")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_a_committed_report_is_as_its_data_and_this_code_give_it(folder: Path) -> None:
    assert stale(folder) == [], f"`realm-lab report {folder.name}` renders it again"


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_a_committed_report_asks_the_question_of_its_study(folder: Path) -> None:
    record = load_report(folder).record
    if record.source:
        study = read_study_file(REPOSITORY / record.source)
        assert isinstance(study, Study)
        titles = {cell.name: cell.title for cell in cells_of(study)}
        assert (record.question, {cell.name: cell.title for cell in record.cells}) == (study.question, titles)


@pytest.mark.slow
def test_the_runs_that_made_a_report_agree(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "table/realm", "table/no_null", "--root", str(made)]) == 0  # its page is no report
    assert main(["reproduce", "--root", str(made)]) == 0
    told = capsys.readouterr().out
    assert "table/no_null: exact_match: expected 0.960 (± 0.035), found 0.960 over 3 seeds, p = 1: OK" in told
    assert "table: report as its data gives it; " in told
    text = (made / "reports" / "table" / "report.md").read_text(encoding="utf-8")
    assert "| realm-lab reproduce table/no_null | 0.960 ± 0.035 |" in text
    assert main(["reproduce", "tabel", "--root", str(made)]) == 2
    assert "no report of study 'tabel'; did you mean 'table'?" in capsys.readouterr().err


def test_without_reports_nothing_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--root", str(tmp_path)]) == 2
    assert "reports: no reports; `realm-lab report` writes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("report.md", "| 0.960 ± 0.010 |", "| 0.990 ± 0.010 |", "report.md: -| REALM | 0.990 ± 0.010 |"),
        ("summary.json", '"delta": -0.6933333333', '"delta": -0.5', 'summary.json: -        "delta": -0.5,'),
        ("results.csv", ",COMPLETE,0.95,", ",COMPLETE,0.99,", 'summary.json: -          "mean": 0.96,'),
    ],
)
def test_a_planted_number_is_found(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, old: str, new: str, told: str
) -> None:
    shutil.copytree(made / "reports", tmp_path / "reports")
    path = tmp_path / "reports" / "table" / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert main(["reproduce", "table", "--root", str(tmp_path)]) == 1
    assert f"table: {told}" in capsys.readouterr().out


def test_a_report_of_other_numbers_than_its_runs_is_off(made: Path, tmp_path: Path) -> None:
    """Also if results.csv, summary.json and report.md agree with each other."""
    shutil.copytree(made, tmp_path / "root")
    results = tmp_path / "root" / "runs"
    [path, *_] = sorted(results.glob("stages/evaluate-*/results.json"))
    edit_finished(path, exact_match=0.1)
    assert main(["reproduce", "table", "--root", str(tmp_path / "root")]) == 1


def test_noise_is_told_from_a_wrong_number() -> None:
    def table(*values: float, seconds: float) -> pd.DataFrame:
        rows = [("realm", seed, "key", value, seconds) for seed, value in enumerate(values)]
        return pd.DataFrame(rows, columns=["cell", "seed", "run_key", "exact_match", "wall_seconds"])

    expected = table(0.90, 0.92, 0.94, 0.92, seconds=1.0)
    [close] = compare_runs(expected, table(0.91, 0.93, seconds=2.0), ["realm"])
    assert (close.state, close.seeds) == ("within noise", 2)
    assert close.p == pytest.approx(0.58, abs=0.02)  # t = 0.01 / 0.0163 with 3 degrees of freedom
    assert "(± 0.052)" in in_words(close, "table"), "3.18 times 0.0163 · √(2/2): two new runs, not four"
    [far] = compare_runs(expected, table(0.6, 0.7, seconds=2.0), ["realm"])
    assert far.state == "off"
    [same] = compare_runs(expected, table(0.91, 0.92, seconds=1.0), ["realm"])
    assert same.state == "off", "the very run that made the report has another number"
    equal = table(0.90, 0.90, 0.90, seconds=1.0)
    [chance] = compare_runs(equal, table(0.90, 0.90, 0.93, seconds=2.0), ["realm"])
    assert chance.state == "within noise", "three seeds were equal by chance"
    assert "expected 0.900 (± 0.061), found 0.910" in in_words(chance, "table")  # 4.30 times 0.0173 · √(2/3)
    [other] = compare_runs(equal, table(0.94, 0.94, 0.94, seconds=2.0), ["realm"])
    assert other.state == "off"
    [two] = compare_runs(expected[:2], table(0.5, 0.6, seconds=2.0), ["realm"])
    assert (two.state, two.p) == ("unknown", None), "two seeds do not tell their spread"
    assert "±" not in in_words(two, "table")
    [one] = compare_runs(expected[:1], table(0.5, seconds=2.0), ["realm"])
    assert (one.state, one.p) == ("unknown", None)


@pytest.mark.slow
def test_a_cell_is_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cell is run again by a sweep in a separate project: the same numbers, until one of the report is changed."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "params.yaml").write_bytes((REPOSITORY / "tests" / "tiny.yaml").read_bytes())
    (tmp_path / "experiments" / "mine.yaml").write_text(STUDY.replace("[0, 1]", "[0, 1, 2]"))
    root = ["--root", str(tmp_path)]
    assert main(["sweep", "mine", *root]) == 0
    before = tiny.files(tmp_path / "runs" / "stages")
    assert main(["reproduce", "mine/longer", "--rerun", *root]) == 0
    told = capsys.readouterr().out
    assert "mine/longer: exact_match: expected " in told
    assert "off" not in told
    assert tiny.files(tmp_path / "runs" / "stages") == before, "run again in its own place"
    again = tmp_path / "runs" / "reproduce"
    assert (again / "reports" / "mine" / "results.csv").is_file()
    for found in again.glob("runs/stages/evaluate-*/results.json"):
        edit_finished(found, exact_match=0.987)
    assert main(["reproduce", "mine/longer", "--rerun", *root]) == 1
    assert "found 0.987 over 3 seeds, p = 0: off" in capsys.readouterr().out
