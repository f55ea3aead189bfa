"""A verdict as files: Markdown, LaTeX, JSON and figures, like those of realm_lab's reports."""

from __future__ import annotations

import json
from pathlib import Path

from realm_lab.evidence.report.comparison import CellResult, MetricResult
from realm_lab.evidence.report.figures import Sketch, draw
from realm_lab.evidence.report.figures_differences import differences_figure
from realm_lab.evidence.report.paper import table
from realm_lab.evidence.verdict.answer import Answer
from realm_lab.records.files import atomic_write, write_text
from realm_lab.records.study import StudyCell


def write(answer: Answer, folder: Path) -> list[Path]:
    """Write verdict.md, .tex and .json, and figures of the differences as PNG, PDF and SVG; returns their paths."""
    texts = {
        "verdict.md": answer.markdown(),
        "verdict.tex": "\n".join(
            table(answer.rows(one), f"{one.metric.name} by variant, paired by {answer.pair}", one.metric.name)
            for one in answer.metrics
        ),
        "verdict.json": json.dumps(answer.as_json(), indent=2, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    results = []
    for one in answer.metrics:
        cells = [(StudyCell(cell.cell, cell.cell, "", {}), cell) for cell in one.cells]
        shown = [CellResult(named, cell.values, cell.finding, None) for named, cell in cells]
        results.append(MetricResult(one.metric, shown))
    made = [folder / name for name in texts]
    first = Sketch("deltas", "", "", lambda: differences_figure(results[:1], has_values=True))
    others = Sketch("other_metrics", "", "", lambda: differences_figure(results[1:]))
    for drawing in (drawn for sketch in (first, others) if (drawn := draw(sketch, is_paper=True))):
        for suffix, data in drawing.files.items():
            with atomic_write(folder / f"{drawing.name}.{suffix}", "wb") as file:
                file.write(data)
            made.append(folder / f"{drawing.name}.{suffix}")
    return made
