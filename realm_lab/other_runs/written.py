"""A verdict as files: Markdown, LaTeX, JSON and a figure, as those of our reports."""

from __future__ import annotations

import json
from pathlib import Path

from realm_lab.core.files import atomic_write, write_text
from realm_lab.other_runs.answer import Answer
from realm_lab.reporting.comparison import CellResult, MetricResult
from realm_lab.reporting.figures import Sketch, deltas_figure, draw
from realm_lab.reporting.paper import table
from realm_lab.tracking.study_record import StudyCell


def write(answer: Answer, folder: Path) -> list[Path]:
    """verdict.md, verdict.tex, verdict.json, and deltas.png and .pdf where there is a difference; their paths."""
    texts = {
        "verdict.md": answer.markdown(),
        "verdict.tex": "\n".join(
            table(answer.rows(one), f"{one.metric.name} by {answer.cell}, paired by {answer.pair}", one.metric.name)
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
    if drawing := draw(Sketch("deltas", "", "", lambda: deltas_figure(results)), is_paper=True):
        for suffix, data in {"png": drawing.png, "pdf": drawing.pdf}.items():
            with atomic_write(folder / f"deltas.{suffix}", "wb") as file:
                file.write(data)
            made.append(folder / f"deltas.{suffix}")
    return made
