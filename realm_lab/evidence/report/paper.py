"""The tables of a report as LaTeX: reports/NAME/tables/*.tex, and all.tex, a document with every table and figure.

A table needs the packages array, booktabs and graphicx. A table wider than the line is scaled down to the line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from realm_lab.evidence.report.rendering import is_number
from realm_lab.evidence.report.report_data import Report
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.report.sections.metrics import detail_rows, result_rows
from realm_lab.evidence.report.sections.overview import Overview
from realm_lab.records.files import write_text

SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}", "−": "$-$", "±": r"$\pm$", "–": "--",
    "—": "---", "Δ": r"$\Delta$", "✓": r"$\surd$", "×": r"$\times$", "≤": r"$\le$", "≥": r"$\ge$", "·": r"$\cdot$",
    "…": r"\dots{}", "§": r"\S{}",
} | {digit: f"$^{value}$" for value, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}  # fmt: skip
FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""Start of a part that is scaled down to the width of the line if it is wider."""
WRAPPED = 60
"""Longest text of a column, in characters; a column with a longer text breaks its lines."""
UNICODE = "% has characters that pdfLaTeX lacks: use LuaLaTeX or XeLaTeX, with \\setmainfont of a font that has them"
NOTE = (
    r"Mean and standard deviation over $n$ seeds. Difference: mean paired difference from the first row, from three "
    r"seeds on with Student's 95\,\% interval; $p$: exact sign-flip test, corrected for all comparisons of the study "
    r"(step-down max-T)."
)


def latex(text: str) -> str:
    """`text` for LaTeX: special characters escaped, signs as formulas, other scripts as they are."""
    return "".join(SPECIAL.get(one, one) for one in unicodedata.normalize("NFC", " ".join(text.split())))


def needs_unicode(text: str) -> bool:
    """True if the text has characters that pdfLaTeX lacks."""
    return re.search(r"[^\x00-\x7e\u00a1-\u017e]", text) is not None


def table(rows: Rows, caption: str, label: str, note: str = "") -> str:
    """A floating table of rows with the same keys; columns of numbers are flush right."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    body = [[latex(row.get(name, "–")) for name in names] for row in rows]
    columns = ["r" if all(is_number(row.get(name, "–")) for row in rows) else "l" for name in names]
    for place in range(len(names)):
        if max(len(line[place]) for line in body) > WRAPPED:
            columns[place] = r">{\raggedright\arraybackslash}p{.5\linewidth}"
    import pandas as pd

    frame = pd.DataFrame(body, columns=[latex(name) for name in names])
    tabular = frame.style.hide(axis="index").to_latex(column_format="".join(columns), hrules=True)
    return "\n".join((
        *[UNICODE] * needs_unicode(tabular),
        "% needs \\usepackage{array,booktabs,graphicx}", r"\begin{table}", r"\centering\small",
        rf"\caption{{{latex(caption[0].upper() + caption[1:])}}}",
        rf"\label{{tab:{_plain(label)}}}", FIT, tabular.rstrip() + "}",
        *([r"", r"\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {note}}}"] if note else []), r"\end{table}", "",
    ))  # fmt: skip


def write_tables(
    folder: Path, report: Report, sections: Mapping[str, ReportSection], figures: Sequence[Mapping[str, str]]
) -> None:
    """Write tables/NAME.tex and NAME_details.tex for each metric, a file for each other table, and all.tex, a document
    with the verdict, all tables and all figures."""
    name, results, made = folder.name, report.results, dict[str, str]()
    for result in report.compared:
        key, title = _plain(result.metric.name), f"{result.metric.title}, study {name}"
        title += f" ({result.metric.unit})" * bool(result.metric.unit)
        made[key] = table(result_rows(result, results), title, f"{name}-{key}", NOTE)
        made[f"{key}_details"] = table(detail_rows(result, results), f"{title}: details", f"{name}-{key}-details")
    for section in sections.values():
        for own, (heading, rows) in section.tables.items():
            if rows:
                key = _plain(own)
                key += "_section" * (key in made)
                made[key] = table(rows, f"{heading}, study {name}", f"{name}-{key}")
    for key, text in made.items():
        write_text(folder / "tables" / f"{key}.tex", text)
    first = [key for key in ("axes", "interactions") if key in made] or [*made][:1]
    drawn = [one for one in figures if (folder / "figures" / f"{one['name']}.pdf").is_file()]
    answer = [rf"\section*{{{latex(report.data['title'])}}}", latex(report.record.question), ""]
    verdict = Overview(report).verdict
    answer += [rf"\textbf{{{latex(verdict.lead)}}}", latex(verdict.rest), ""]
    document = [
        *[UNICODE] * any(map(needs_unicode, [*made.values(), *answer])),
        r"\documentclass[a4paper]{article}", r"\usepackage{iftex}",
        r"\ifPDFTeX\usepackage[T1]{fontenc}\usepackage[utf8]{inputenc}\else\usepackage{fontspec}\fi",
        r"\usepackage{array,booktabs,graphicx}", r"\usepackage[margin=18mm]{geometry}",
        r"\begin{document}",
        *answer,
        *(_figure(one) for one in drawn[:1]),
        *(rf"\input{{{key}}}" for key in [*first, *(key for key in made if key not in first)]),
        r"\clearpage",
        *(_figure(one) for one in drawn[1:]), r"\end{document}", "",
    ]  # fmt: skip
    write_text(folder / "tables" / "all.tex", "\n".join(document))


def _plain(name: str) -> str:
    """`name` for files and labels."""
    return re.sub(r"[^\w.-]+", "-", name)


def _figure(one: Mapping[str, str]) -> str:
    """A floating figure at the size at which it was drawn."""
    return (
        r"\begin{figure}[!ht]\centering\includegraphics{../figures/" + one["name"] + ".pdf}"
        rf"\caption{{{latex(one['caption'])}}}\end{{figure}}"
    )
