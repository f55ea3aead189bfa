"""`realm-lab claims`: our own texts hold, lies in them are found, and so are results that no longer carry a text."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from realm_lab.cli import main
from realm_lab.errors import UserError
from realm_lab.reporting.bound_results import BoundResults
from realm_lab.reporting.claims import check, markdown

ROOT = Path(__file__).resolve().parents[2]
STUDY = {
    "design": {"baseline": "base", "metrics": ["acc"]},
    "cells": {"base": {"collapsed": 0}, "up": {"collapsed": 1}, "same": {"collapsed": 0}},
    "comparisons": {
        "acc": {
            "up": {"finding": "higher", "improves": True, "direction": "higher", "corrected_p": 0.03125, "delta": 0.2},
            "same": {"finding": "inconclusive", "improves": None, "direction": None, "corrected_p": 0.5, "delta": 0.01},
        }
    },
}
RESULTS = "study,cell,seed,run_key,status,acc\n" + "".join(
    f"one,{cell},{seed},k,COMPLETE,{value}\n"
    for cell, values in {"base": (0.5, 0.6), "up": (0.7, 0.8), "same": (0.5, 0.62)}.items()
    for seed, value in enumerate(values)
)
CLAIMS = """
text.md:
- study: one
  rows: {base: base, up: up}
  columns: [{accuracy: acc}, {"p": acc p}]
- study: one
  claims:
  - up is {better = up acc} by {up acc difference} (p = {up acc p}, {up seeds} seeds)
  - '{no difference = same acc} of same'
- source: measured
  where: log.md, First
  claims: [7 of 9]
"""
TEXT = """# A title with 2 `0.3` [links](http://1.2)

| | accuracy | p |
|---|---|---|
| base | .550 | |
| up | .750 | .031 |

So up is **better** by .200
(p = .031, two seeds), no difference of same; 7 of 9.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "reports" / "reference" / "one"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(STUDY))
    (folder / "results.csv").write_text(RESULTS)
    (tmp_path / "claims.yaml").write_text(CLAIMS.replace("is {better", "is **{better").replace("acc} by", "acc}** by"))
    (tmp_path / "text.md").write_text(TEXT.replace("title with 2", "title with"))
    (tmp_path / "log.md").write_text("# First\n7 of 9\n# Second\n8\n")
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_text_that_its_results_carry(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checked = check(project, [])
    assert checked.problems == []
    assert checked.bound == 3 + 4 + 1 + 2  # of the table, of the sentence, the verdict after it, two of the log
    assert main(["--root", str(project), "claims"]) == 0
    assert "all hold" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (".750", ".751", 6),
        (".200", "−.200", 8),
        ("two seeds", "three seeds", 9),
        ("**better**", "**worse**", 8),
        ("no difference", "higher", 9),
        ("7 of 9", "7 of 8", 9),
        ("of same", "of same, in 5 places", 9),
        ("of same", "of same, which is significant", 9),
        ("of same", "of [one](reports/two/report.md)", 9),
    ],
)
def test_a_changed_text_is_found(project: Path, old: str, new: str, line: int) -> None:
    edit(project / "text.md", old, new)
    problems = check(project, []).problems
    assert line in [one.line for one in problems if one.path == "text.md"]
    assert all(one.found and one.remedy for one in problems)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("summary.json", '"higher", "improves"', '"inconclusive", "improves"'),
        ("summary.json", "0.03125", "0.0625"),
        ("summary.json", '"inconclusive"', '"lower"'),
        ("results.csv", "up,1,k,COMPLETE,0.8", "up,1,k,COMPLETE,0.9"),
        ("results.csv", "up,1,k,COMPLETE", "up,1,k,FAILED"),
        ("results.csv", "one,up", "one,another"),
    ],
)
def test_a_changed_result_is_found(project: Path, file: str, old: str, new: str) -> None:
    edit(project / "reports" / "reference" / "one" / file, old, new)
    assert check(project, []).problems


def test_a_source_must_have_the_numbers(project: Path) -> None:
    edit(project / "log.md", "7 of 9", "7 of 10")
    [problem] = check(project, []).problems
    assert "9" in problem.found


def test_latex_binds_in_the_text(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = r"""\documentclass{article} % 99
\begin{document}
Up has \claim{one/up acc}{$.750$} \cite{x2020}, \claim{one/up acc}{better} than base;
same is \claim{one/same acc}{no better}, \claim{paper: Table 2}{38\,\%} there.
\end{document}
"""
    (project / "paper.tex").write_text(text)
    assert check(project, ["paper.tex"]).problems == []
    (project / "paper.tex").write_text(text.replace(".750", ".760").replace("no better", "worse").replace("Up", "4"))
    assert main(["--root", str(project), "claims", "paper.tex", "--json"]) == 1
    assert [one["line"] for one in json.loads(capsys.readouterr().out)["problems"]] == [3, 3, 4]


def test_markdown_has_a_row_for_each_problem(project: Path) -> None:
    edit(project / "text.md", ".750", ".751")
    shown = markdown(check(project, []))
    assert len([line for line in shown.splitlines() if line.startswith("| text.md:6 |")]) == 1


@pytest.mark.parametrize(
    ("claims", "needle"),
    [
        ("text.md:\n- studdy: one\n", "line 2"),
        ("text.md:\n- source: rumour\n  where: x\n  claims: [a]\n", "line 2"),
        ("text.md:\n- source: paper\n  claims: [a]\n", "where"),
        ("text.md:\n- study: one\n  claims:\n  - a\n  - {up acc}\n", "line 5"),
        ("gone.md: []\n", "gone.md"),
    ],
)
def test_a_malformed_claims_file_is_one_error(project: Path, claims: str, needle: str) -> None:
    (project / "claims.yaml").write_text(claims)
    with pytest.raises(UserError, match=needle):
        check(project, [])


@pytest.mark.parametrize(
    "query", ["up", "up acc middle", "uq acc", "up acd", "two/up acc", "base acc p", "a b c d e f"]
)
def test_a_query_without_a_result_is_a_problem_with_a_remedy(project: Path, query: str) -> None:
    edit(project / "claims.yaml", "{up acc difference}", f"{{{query}}}")
    assert [one.line for one in check(project, []).problems] == [8]


# A changed digit, a wrong sign, p or number of seeds, another verdict or study, and numbers in exchanged rows. A lie
# whose text is gone needs another text: the test names it.
README, FINDINGS = "README.md", "docs/findings.md"
LIES = [
    (README, r"REALM scores \.725", "REALM scores .752"),
    (README, r"retriever \.219", "retriever .291"),
    (README, r"names and dates \.725, random tokens \.209", "names and dates .209, random tokens .725"),
    (README, r"costs a little", "gains a little"),
    (README, r"BM25 is ahead in recall@1", "BM25 is worse in recall@1"),
    (README, r"difference, \.876 versus \.849, is not significant", "difference, .876 versus .849, is significant"),
    (README, r"a little: \.619, versus \.649", "a little: .649, versus .619"),
    (README, r"significantly lower for all 4", "significantly higher for all 4"),
    (README, r"lower for all 4 others", "lower for all 5 others"),
    (README, r"On eight fresh seeds", "On six fresh seeds"),
    (README, r"rises from", "falls from"),
    (README, r"reference/table2/report\.md", "reference/masking/report.md"),
    (FINDINGS, r"recall@5 −\.030", "recall@5 .030"),
    (FINDINGS, r"finds less than", "finds more than"),
    (FINDINGS, r"each of six seeds \(−\.019\)", "each of six seeds (−.091)"),
    (FINDINGS, r"7,150 questions", "7,510 questions"),
    (FINDINGS, r"Eight fresh seeds, study", "Nine fresh seeds, study"),
    (FINDINGS, r"REALM is not significantly ahead", "REALM is significantly ahead"),
    (FINDINGS, r"\| \.808 \| \.672 \|", "| .808 | .067 |"),
    (FINDINGS, r"is ruled out\n  \(\[encoder", "is possible\n  ([encoder"),
    (FINDINGS, r"\.267 and \.313", ".276 and .313"),
    (FINDINGS, r"by itself gains \.040", "by itself gains .004"),
    (FINDINGS, r"\.180 \| equivalent within", ".180 | significantly lower within"),
    (FINDINGS, r"REALM answers more than each of nine", "REALM answers fewer than each of nine"),
    (FINDINGS, r"Six fresh seeds, p = \.031 for each", "Six fresh seeds, p = .013 for each"),
    (FINDINGS, r"\| RAG \| (.*) \| 6\.78 \|", "| RAG | .234 | .427 | .040 | .562 | 7.68 |"),
    (FINDINGS, r"12\.7 · 10¹², gives \.491", "12.7 · 10¹², gives .419"),
    (FINDINGS, r"\*\*No significant difference\.\*\*", "**A better signal.**"),
    (FINDINGS, r"\| leave one out \|", "| leave two out |"),
    (FINDINGS, r"\| PathRetriever \| \.114 \| \.125", "| PathRetriever | .114 | .012"),
    (FINDINGS, r"PathRetriever is higher than", "PathRetriever is lower than"),
    (FINDINGS, r"\| facts as pictures \| −3\.17", "| facts as pictures | 3.17"),
    (FINDINGS, r"of two of six runs", "of two of eight runs"),
    (FINDINGS, r"makes no difference larger than \.04", "makes no difference larger than .02"),
    (FINDINGS, r"does not rise\s+significantly", "rises significantly"),
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our texts, with all that they are bound to."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "docs").mkdir()
    for name in (README, FINDINGS, "claims.yaml"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("reports", "experiments", "pyproject.toml", "LICENSE"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def results() -> BoundResults:
    return BoundResults(ROOT)


@pytest.mark.slow
def test_our_texts_hold(results: BoundResults) -> None:
    assert check(ROOT, [], results).problems == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "truth", "lie"), LIES)
def test_a_planted_lie_is_found(checkout: Path, results: BoundResults, name: str, truth: str, lie: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    changed, count = re.subn(truth, lambda _: lie, text, count=1)
    assert count, "the text is no longer there: plant another lie of this kind"
    try:
        (checkout / name).write_text(changed, encoding="utf-8")
        assert check(checkout, [name], results).problems
    finally:
        (checkout / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", [README, FINDINGS])
def test_another_digit_anywhere_is_found(checkout: Path, results: BoundResults, name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    try:
        changed = re.sub(r"(?<= )(−?)\.(\d)(\d\d)(?= )", lambda old: f"{old[1]}.{9 - int(old[2])}{old[3]}", text)
        (checkout / name).write_text(changed, encoding="utf-8")
        lines = {
            number
            for number, (old, new) in enumerate(zip(text.splitlines(), changed.splitlines(), strict=True), 1)
            if old != new
        }
        assert lines
        assert lines - {one.line for one in check(checkout, [name], results).problems if one.path == name} == set()
    finally:
        (checkout / name).write_text(text, encoding="utf-8")
