"""`realm-lab claims`: our own texts hold, lies in them are found, and so are results that no longer carry a text."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from realm_lab.cli import main
from realm_lab.errors import UserError
from realm_lab.evidence.bound_results import BoundResults
from realm_lab.evidence.claims import check, markdown
from realm_lab.evidence.report.edited import results_digest
from realm_lab.evidence.report.frames import read_results
from realm_lab.evidence.report.report import report
from realm_lab.evidence.report.report_data import KEYS
from realm_lab.records.files import digest_file, read_json, write_json
from tests.factories.errors import refused

ROOT = Path(__file__).resolve().parents[2]
METRIC = "exact_match"
VALUES = {
    "base": (0.50, 0.52, 0.54, 0.56, 0.58, 0.60, 0.50, 0.60),
    "up": (0.70, 0.72, 0.74, 0.76, 0.78, 0.80, 0.70, 0.80),
    "same": (0.51, 0.51, 0.55, 0.55, 0.59, 0.59, 0.51, 0.59),
    "down": (0.20, 0.21, 0.22, 0.23, 0.24, 0.25, 0.51, 0.20),  # significantly, though seed 6 is higher
}
RUNS = [(cell, seed) for cell, values in VALUES.items() for seed in range(len(values))]
DESIGN = {
    "name": "one",
    "question": "?",
    "baseline": "base",
    "cells": [{"name": cell, "title": cell, "system": "realm", "changes": {}} for cell in VALUES],
    "seeds": [*range(8)],
    "metrics": [METRIC],
}
STUDY: dict[str, Any] = {name: {} if name in ("cost", "not_measured") else [] for name in KEYS} | {
    "design": DESIGN,
    "runs": [{"cell": cell, "seed": seed, "run": f"{cell}-{seed}"} for cell, seed in RUNS],
    "comparisons": {},
}
RESULTS = f"study,cell,seed,run_key,status,{METRIC},engine_version,collapsed,flags,not_measured\n" + "".join(
    f"one,{cell},{seed},k,COMPLETE,{VALUES[cell][seed]},2,{int(cell == 'up' and seed == 0)},,\n" for cell, seed in RUNS
)
CLAIMS = """
text.md:
- study: one
  claims:
  - |-
    | | accuracy | p |
    |---|---|---|
    | base | {base exact_match} | |
    | up | {up exact_match} | {up exact_match p} |
  - 'So up is {better = up exact_match} by {up exact_match difference} (p = {up exact_match p}, {up seeds} seeds)'
  - '{no difference = same exact_match} of same'
- source: measured
  where: log.md, First
  claims: [7 of 9]
"""
TEXT = """# A title with 2 `0.3` [links](http://1.2)

| | accuracy | p |
|---|---|---|
| base | .550 | |
| up | .750 | .016 |

So up is **better** by .200
(p = .016, eight seeds), no difference of same; 7 of 9.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "reports" / "reference" / "one"
    folder.mkdir(parents=True)
    (folder / "results.csv").write_text(RESULTS)
    digest = results_digest(read_results(folder / "results.csv"))
    (folder / "summary.json").write_text(json.dumps(STUDY | {"results": digest}))
    (tmp_path / "claims.yaml").write_text(
        CLAIMS.replace("is {better", "is **{better").replace("match} by", "match}** by")
    )
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
        ("eight seeds", "six seeds", 9),
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
        ("results.csv", "up,1,k,COMPLETE,0.72", "up,1,k,COMPLETE,0.82"),
        ("results.csv", "up,1,k,COMPLETE", "up,1,k,FAILED"),
        ("results.csv", "same,1,k,COMPLETE,0.51", "same,1,k,COMPLETE,0.91"),
        ("summary.json", '"results": "', '"results": "0'),
        ("results.csv", "one,up", "one,another"),
    ],
)
def test_a_changed_result_is_found(project: Path, file: str, old: str, new: str) -> None:
    edit(project / "reports" / "reference" / "one" / file, old, new)
    assert check(project, []).problems


def test_findings_are_computed_from_the_results(project: Path) -> None:
    """A finding in summary.json that was edited by hand changes nothing."""
    edited = json.dumps({METRIC: {"same": {"finding": "higher", "improves": True, "per_example_interval": None}}})
    edit(project / "reports" / "reference" / "one" / "summary.json", '"comparisons": {}', f'"comparisons": {edited}')
    assert check(project, []).problems == []
    edit(project / "text.md", "no difference of", "higher than")
    edit(project / "claims.yaml", "{no difference = same exact_match} of", "{higher = same exact_match} than")
    assert "same" in check(project, []).problems[0].found


def test_results_are_those_of_the_last_look(project: Path) -> None:
    """Both files are edited alike, and the ledger is not: `claims` and `report` refuse them."""
    folder = project / "reports" / "one"
    shutil.move(project / "reports" / "reference" / "one", folder)
    line = {"before": "", "at": 0, "kind": "look", "study": "one", "complete": 32}
    (project / "runs").mkdir()
    (project / "runs" / "ledger.jsonl").write_text(
        json.dumps(line | {"results": digest_file(folder / "results.csv")}) + "\n"
    )
    (folder / "report.md").write_text("")
    assert check(project, []).problems == []
    edit(folder / "results.csv", "up,1,k,COMPLETE,0.72,", "up,1,k,COMPLETE,0.72001,")
    digest = results_digest(read_results(folder / "results.csv"))
    write_json(folder / "summary.json", read_json(folder / "summary.json") | {"results": digest})
    assert "line 1" in check(project, []).problems[0].found
    with refused("line 1", "restore"):
        report(project, "one")


def test_worse_needs_significance_and_not_the_same_sign_on_each_seed(project: Path) -> None:
    (project / "text.md").write_text("down is worse.")
    (project / "claims.yaml").write_text("text.md:\n- claims: ['down is {worse = one/down exact_match}']\n")
    assert check(project, []).problems == []
    (project / "text.md").write_text("down is better.")
    assert check(project, []).problems


def test_best_is_the_lowest_where_less_is_better(project: Path) -> None:
    folder, rank = project / "reports" / "reference" / "one", "cloze_gold_rank_end"
    for name in ("results.csv", "summary.json"):
        text = (folder / name).read_text().replace(METRIC, rank)
        (folder / name).write_text(text)
    digest = results_digest(read_results(folder / "results.csv"))
    write_json(folder / "summary.json", read_json(folder / "summary.json") | {"results": digest})
    for first, second in (("down", "up"), ("up", "down")):
        (project / "text.md").write_text(f"{first} is best, {second} is worst.")
        claim = f"{first} is {{best = one/{first} {rank}}}, {second} is {{worst = one/{second} {rank}}}."
        (project / "claims.yaml").write_text(f"text.md:\n- claims: ['{claim}']\n")
        assert (check(project, []).problems == []) is (first == "down")


@pytest.mark.parametrize(
    "text",
    [
        "down is never {lower}",
        "down {cannot be lower}",
        "down isn't {lower}",
        "down does not really {fall behind}",
        "down {is hardly lower}",
        "saved without being {lower}",
        "down is anything but significantly {worse}",
        "it {no longer falls}",
        "it {costs nothing}",
        "it is by no means {lower}",
        "down is {lower} in no run",
        "down is far from {worse}",
        "it fails to be {lower}",
        "it is {lower than ever thought}",
        "it is {never lower = lower}",
    ],
)
def test_a_verdict_that_a_negation_turns_does_not_hold(project: Path, text: str) -> None:
    """All texts are about a cell that is significantly lower."""
    template = re.sub(r"\{([^=]*?)(?: = (\w+))?\}", r"{\1 = one/down exact_match \2}", text)
    (project / "text.md").write_text(re.sub(r"\{(.*?)(?: = \w+)?\}", r"\1", text))
    (project / "claims.yaml").write_text(f'text.md:\n- claims: ["{template}"]\n')
    assert check(project, []).problems


@pytest.mark.parametrize(
    "text",
    [
        "No pre-training is {lower}",
        "without a reader it is {significantly lower}",
        "it {costs a little}",
        "It falls, but is {not equal}",
        "not only that: it {falls}",
        "It {loses much = lower}",
    ],
)
def test_a_verdict_beside_other_negations_holds(project: Path, text: str) -> None:
    cell = "same" if "equal" in text else "down"
    template = re.sub(r"\{([^=]*?)(?: = (\w+))?\}", rf"{{\1 = one/{cell} exact_match \2}}", text)
    (project / "text.md").write_text(re.sub(r"\{(.*?)(?: = \w+)?\}", r"\1", text))
    (project / "claims.yaml").write_text(f'text.md:\n- claims: ["{template}"]\n')
    assert [one for one in check(project, []).problems if one.says.casefold() != "falls"] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| | accuracy | p |", "| | recall | p |"),
        ("So up", "**So** up"),
        ("So up", "As declared, up"),
        ("So up", "The criterion is met: up"),
        ("So up", "On real text up"),
        ("So up", "On GPUs up"),
        ("So up", "Does it help? No. So up"),
        ("So up", "No run shows that up"),
    ],
)
def test_what_a_reader_takes_for_an_outcome_is_quoted(project: Path, old: str, new: str) -> None:
    edit(project / "text.md", old, new)
    assert check(project, []).problems
    if new.endswith(" up"):
        edit(project / "claims.yaml", "'So up", f"'{new}")
        assert check(project, []).problems == []


@pytest.mark.parametrize(
    "lie",
    ["So *nobody* found that up is **", "By now up is no longer **", "It is doubtful if up is **", "Up is ** not"],
)
def test_no_word_of_a_sentence_with_a_verdict_is_free(project: Path, lie: str) -> None:
    """A sentence with a negation, of any form, is another sentence than the bound one."""
    edit(project / "text.md", "So up is **", lie)
    assert check(project, []).problems


def test_another_page_with_a_number_of_a_study_is_named(project: Path) -> None:
    page = project / "other.md"
    page.write_text("# Title\n## Part\nIt is .751 ([one](reports/reference/one/report.md)).\n## End\nIt is .800.\n")
    [problem] = check(project, []).problems
    assert (problem.path, problem.line, problem.says) == ("other.md", 3, ".751")
    assert check(project, ["text.md"]).problems == []
    with (project / "claims.yaml").open("a") as file:
        file.write("other.md, Part:\n- claims: ['It is {one/up exact_match}']\n")
    [problem] = check(project, []).problems
    assert (problem.line, problem.found) == (3, "one/up exact_match mean is 0.75")
    edit(page, ".751", ".750")
    assert check(project, []).problems == []
    edit(page, "## Part", "## Parts")
    with refused("no heading 'Part'"):
        check(project, [])


def test_skipped_words_are_not_quoted(project: Path) -> None:
    (project / "text.md").write_text("It is **surely so** here.")
    (project / "claims.yaml").write_text("text.md:\n- claims: ['It is ... here.']\n")
    assert [one.says for one in check(project, []).problems] == ["surely so"]


def test_another_claims_file(project: Path) -> None:
    """The paper is in a folder with separate claims."""
    paper = project / "paper"
    paper.mkdir()
    shutil.move(project / "claims.yaml", paper / "mine.yaml")
    shutil.move(project / "text.md", paper / "text.md")
    assert main(["--root", str(project), "claims", "--claims", str(paper / "mine.yaml")]) == 0
    with refused("no such file"):
        check(project, ["paper.tex"], source=paper / "gone.yaml")


def test_a_source_must_have_the_numbers(project: Path) -> None:
    edit(project / "log.md", "7 of 9", "7 of 10")
    [problem] = check(project, []).problems
    assert "9" in problem.found


def test_latex_binds_in_the_text(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = r"""\documentclass{article} % 99
\begin{document}
Up has \claim{one/up exact_match}{$.750$} \cite{x2020}, \claim{one/up exact_match}{better} than base;
same is \claim{one/same exact_match}{no better}, \claim{paper: Table 2}{38\,\%} there.
\end{document}
"""
    (project / "paper.tex").write_text(text)
    assert check(project, ["paper.tex"]).problems == []
    (project / "paper.tex").write_text(text.replace(".750", ".760").replace("no better", "worse").replace("Up", "4"))
    assert main(["--root", str(project), "claims", "paper.tex", "--json"]) == 1
    assert [one["line"] for one in json.loads(capsys.readouterr().out)["problems"]] == [3, 3, 4]


@pytest.mark.parametrize(
    ("number", "holds"),
    [
        (r"\textbf{.750}", True),
        (r"\num{0.750}", True),
        (r"\num{0,750}", True),
        ("0{,}750", True),
        (r"$\mathbf{\num{.75}}$", True),
        (r"\SI{75}{\percent}", True),
        (r"\num{7.5e-1}", True),
        (r"$7.5\times10^{-1}$", True),
        (r"\textbf{.751}", False),
        ("0{,}075", False),
        (r"\num{7.5e-2}", False),
    ],
)
def test_numbers_of_latex(project: Path, number: str, holds: bool) -> None:
    text = rf"\begin{{document}} \claim{{one/up exact_match}}{{{number}}} \end{{document}} 5"
    (project / "paper.tex").write_text(text)
    assert (check(project, ["paper.tex"]).problems == []) is holds


@pytest.mark.parametrize(("text", "number"), [("4.9x", "4.9x"), ("5e-2", "5e-2"), (r"\textbf{.79}", ".79")])
def test_unbound_numbers_are_whole(project: Path, text: str, number: str) -> None:
    (project / "paper.tex").write_text(f"It has {text} more.")
    assert [one.says for one in check(project, ["paper.tex"]).problems] == [number]


def test_comments_of_latex_are_not_read(project: Path) -> None:
    lines = [
        r"% \claim{one/up exact_match}{.1}",
        r"\\% 4",
        r"\begin{comment}",
        "5",
        r"\end{comment}",
        r"\iffalse 6 \fi",
    ]
    (project / "paper.tex").write_text("\n".join([*lines, r"\input{x} % 7"]))
    (project / "x.tex").write_text("fine")
    assert check(project, ["paper.tex"]).problems == []


def test_files_that_latex_includes_are_read(project: Path) -> None:
    paper = project / "paper"
    (paper / "sections").mkdir(parents=True)
    (paper / "main.tex").write_text("\\begin{document}\n\\input{sections/a}\n\\include{gone}\n% \\input{no}\n")
    (paper / "sections" / "a.tex").write_text("0.999, significantly higher. \\input{sections/b.tex}\\input{main}\n")
    (paper / "sections" / "b.tex").write_text("\\claim{one/up exact_match}{.751}\n")
    checked = check(project, ["paper/main.tex"])
    assert checked.files == [f"paper/{name}.tex" for name in ("main", "sections/a", "sections/b")]
    told = [(Path(one.path).name, one.line, one.says) for one in checked.problems]
    texts = [("a.tex", 1, word) for word in ("0.999", "significantly", "higher")]
    assert told == [("main.tex", 3, "\\include{gone}"), *texts, ("b.tex", 1, ".751")]


def test_each_paper_has_its_sections(project: Path) -> None:
    for name, number in (("one", ".751"), ("two", ".752")):
        (project / name / "sections").mkdir(parents=True)
        (project / name / "main.tex").write_text("\\input{sections/a}\n")
        (project / name / "sections" / "a.tex").write_text(f"\\claim{{one/up exact_match}}{{{number}}}\n")
    checked = check(project, ["one/main.tex", "two/main.tex"])
    assert [one.path for one in checked.problems] == ["one/sections/a.tex", "two/sections/a.tex"]


def test_a_text_in_latin_1_is_one_error(project: Path) -> None:
    (project / "paper.tex").write_bytes("Größe".encode("latin-1"))
    with refused("UTF-8"):
        check(project, ["paper.tex"])


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
        ("text.md:\n- study: one\n  claims:\n  - a\n  - {up exact_match}\n", "line 5"),
        ("text.md:\n- study: one\n  claims:\n", "line 3"),
        ("text.md: 3\n", "line 1.* a list of groups"),
        ("text.md: {study: one}\n", "line 1.* a list of groups"),
        ("text.md:\n- study: one\n  claims: a text\n", "line 3"),
        ("gone.md: []\n", "gone.md"),
    ],
)
def test_a_malformed_claims_file_is_one_error(project: Path, claims: str, needle: str) -> None:
    (project / "claims.yaml").write_text(claims)
    with pytest.raises(UserError, match=needle):
        check(project, [])


@pytest.mark.parametrize(
    "query",
    [
        "up",
        "up exact_match middle",
        "uq exact_match",
        "up acd",
        "two/up exact_match",
        "base exact_match p",
        "a b c d e f",
        "up - base|up exact_match",
        "up status",
    ],
)
def test_a_query_without_a_result_is_a_problem_with_a_remedy(project: Path, query: str) -> None:
    edit(project / "claims.yaml", "{up exact_match difference}", f"{{{query}}}")
    assert [one.line for one in check(project, []).problems] == [8]


# A wrong sign or number of seeds, another verdict or study, and numbers in exchanged rows. A lie whose text is gone
# needs another text: the test names it.
README, FINDINGS = "README.md", "docs/findings.md"
LIES = [
    (README, r"exact match \.930, with random spans \.184", "exact match .184, with random spans .930"),
    (README, r"BM25 leads\*\*", "BM25 trails**"),
    (README, r"evidence@5 \.326, start \.280", "evidence@5 .280, start .326"),
    (FINDINGS, r"equally much in evidence@5", "less in evidence@5"),
    (README, r"\.141 \| inconclusive", ".141 | lower"),
    (README, r"−\.762 \| \.008 \| lower", "−.762 | .008 | higher"),
    (README, r"eight fresh seeds", "six fresh seeds"),
    (README, r"reference/table2_robust/report\.md", "reference/masking/report.md"),
    (FINDINGS, r"REALM − Inverse Cloze Task: evidence@5 \+\.047", "REALM − Inverse Cloze Task: evidence@5 −.047"),
    (FINDINGS, r"\| REALM finds less \|", "| REALM finds more |"),
    (FINDINGS, r"\*\*No significant difference\.\*\*", "**A better signal.**"),
    (FINDINGS, r"\| leave one out \|", "| leave two out |"),
    (FINDINGS, r"makes no difference larger than \.04", "makes no difference larger than .02"),
    # No number and no verdict: an answer in bold, a header of a table, what was declared.
    (README, r"eight fresh seeds, as declared", "eight fresh seeds, as nobody declared"),
    (README, r"The retriever carries the gain", "The reader carries the gain"),
    (README, r"Nothing has run at the paper's scale, nor", "Everything has run at the paper's scale, and"),
    (
        FINDINGS,
        r"without a reader, makes no significant difference",
        "without a reader, makes a significant difference",
    ),
    (FINDINGS, r"\| Another one than Z \|", "| Z itself |"),
    (FINDINGS, r"Not declared,\s+p uncorrected", "Declared, p corrected"),
    (FINDINGS, r"stale query tower \| p \| current query tower", "current query tower | p | stale query tower"),
    (FINDINGS, r"is missed: it is below on five", "is met: it is above on five"),
    (FINDINGS, r"not REALM's \.754", "as much as REALM's .754"),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", [README, FINDINGS])
def test_another_digit_anywhere_is_found(checkout: Path, results: BoundResults, name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    try:
        changed = re.sub(
            r"(?<=[ (])(−?)\.(\d)(\d\d)(?=[ ,;.)])", lambda old: f"{old[1]}.{9 - int(old[2])}{old[3]}", text
        )
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
