"""The figures that a study names: `figures: [package.module:function]` in its file.

Such a function is called with the StudyFrames and returns a matplotlib figure, or None if there is nothing to draw. The
first paragraph of its docstring is the caption, and the file has the names of module and function, and the options.
"""

from __future__ import annotations

import inspect
from dataclasses import replace

from realm_lab.errors import UserError
from realm_lab.evidence.report.figures import Drawing, Sketch, draw, drawable
from realm_lab.evidence.report.frames import StudyFrames
from realm_lab.evidence.report.own_figures import FIGURES
from realm_lab.evidence.report.section import ReportSection
from realm_lab.records.code import OURS
from realm_lab.records.plugins import Choice, option_suffix
from realm_lab.records.study import StudyRecord

NAMES = " Names stand for titles that the font cannot write."


class MoreFigures(ReportSection):
    """The figures that the study names, drawn when its runs were read."""

    name = "more_figures"
    heading = "More figures"

    def figures(self) -> list[Sketch]:
        """Return the stored captions as sketches that draw nothing, since `own_figures` has drawn the files."""
        return [Sketch(**entry, make=lambda: None) for entry in self.report.data["own_figures"]]


def own_figures(study: StudyFrames, *, is_paper: bool = False) -> list[tuple[dict[str, str], Drawing]]:
    """Draw the figures that a study names, from its runs; returns each with its entry in summary.json. A figure without
    data is left out, and one that fails is a problem of the study."""
    found = []
    record = labelled(study.record)
    shown, note = (study, "") if record == study.record else (replace(study, record=record), NAMES)
    for choice in study.record.figures:
        try:
            sketch = own_sketch(choice, shown)
            sketch = sketch._replace(caption=sketch.caption + note)
            if drawing := draw(sketch, is_paper=is_paper):
                found.append((sketch.entry, drawing))
        except UserError as error:
            study.problems.append(str(error))
        except Exception as error:  # an error of the user's code must not prevent the report
            study.problems.append(f"figure '{choice.name}' failed: {type(error).__name__}: {error}")
    return found


def own_sketch(choice: Choice, study: StudyFrames) -> Sketch:
    """Return the sketch of a custom figure; its name contains its options."""
    chosen = FIGURES.choose("figures", choice)
    function = chosen.load()
    module, _, name = chosen.target.partition(":")
    file = name if module.startswith(f"{OURS}.") else f"{module}_{name}".replace(".", "_")
    caption = " ".join((inspect.getdoc(function) or choice.name).split("\n\n")[0].split())
    alt = caption.partition(". ")[0].rstrip(".")
    return Sketch(f"{file}{option_suffix(choice)}", caption, alt, lambda: chosen(study))


def labelled(record: StudyRecord) -> StudyRecord:
    """Return the record with the name of a cell in place of a title that the font cannot write."""
    cells = (cell if drawable(cell.title) == cell.title else replace(cell, title=cell.name) for cell in record.cells)
    return replace(record, cells=tuple(cells))
