"""The LaTeX tables and PDF figures of a report."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from realm_lab.cli import main
from realm_lab.evidence.report.paper import latex, table
from realm_lab.records.study import StudyRecord, write_study_record
from tests import tiny


def test_text_is_escaped_for_latex() -> None:
    assert latex("50 % of $x_1$ & {a} \\b #1 ~^") == (
        r"50 \% of \$x\_1\$ \& \{a\} \textbackslash{}b \#1 \textasciitilde{}\textasciicircum{}"
    )
    assert latex("10⁶ and 10¹²") == "10$^6$ and 10$^1$$^2$"
    assert latex("0.9 ± 0.1, −0.3, é 中") == r"0.9 $\pm$ 0.1, $-$0.3, é 中"


def test_other_scripts_are_kept_with_a_note_on_the_engine() -> None:
    found = table([{"cell": "数据"}], "caption", "label")
    assert "数据" in found
    assert found.startswith("% ")
    assert "XeLaTeX" in found.splitlines()[0]
    assert "XeLaTeX" not in table([{"cell": "größe ≥ 4 — ✓"}], "caption", "label")


def test_a_label_has_no_comment() -> None:
    assert r"\label{tab:top-5-}" in table([{"cell": "a"}], "caption", "top-5 %")


@pytest.mark.slow
def test_every_table_and_figure_is_there_for_a_paper(tmp_path: Path, study: StudyRecord) -> None:
    cells = (replace(study.cells[0], title="50 % \\of {REALM}_1 & $x$ ✓"), *study.cells[1:])
    write_study_record(tmp_path / "runs", replace(study, cells=cells))
    arguments = ["report", "table", "--root", str(tmp_path), "--paper"]
    assert main(arguments) == 0
    folder = tmp_path / "reports" / "table"
    names = {path.stem for path in (folder / "tables").iterdir()}
    assert names == {
        "all",
        *(f"{metric}{part}" for metric in study.metrics for part in ("", "_details")),
        "cells",
        "corpus_update",
        "cost",
        "utility",
    }
    table = (folder / "tables" / "exact_match.tex").read_text(encoding="utf-8")
    assert r"\toprule" in table
    assert "lower in all 3 seeds" in table
    names = {path.stem for path in (folder / "figures").glob("*.pdf")}
    assert names == {path.stem for path in (folder / "figures").glob("*.svg")} >= {"deltas", "curves", "cost"}
    drawing = (folder / "figures" / "cost.svg").read_text(encoding="utf-8")
    assert "wall-clock time, minutes</text>" in drawing, "text as text"
    assert 'width="234pt"' in drawing, "as wide as a column"
    before = tiny.files(folder)
    assert main(arguments[:-1]) == 0, "what is there stays as new as the report"
    assert tiny.files(folder) == before
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(folder / "tables")
    assert main(arguments) == 0, "a committed report has no runs here"
    assert (folder / "tables" / "exact_match.tex").is_file()
    if not shutil.which("kpsewhich") or subprocess.run(["kpsewhich", "booktabs.sty"], check=False).returncode != 0:
        pytest.skip("no LaTeX with booktabs: apt-get install texlive-latex-recommended")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    ran = subprocess.run(command, cwd=folder / "tables", capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:]
    assert not [line for line in ran.stdout.splitlines() if line.startswith("Overfull")], "beyond the page"
