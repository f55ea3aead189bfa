"""overview.json beside each report: the report's part of reports/index.html, so that the page needs no run folder.

It is small, is kept in the repository with the report, and holds what the page shows of it: facts, tables, names of the
drawings (figures/NAME.svg beside it) and a sample for the retrieval explorer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from realm_lab.core.files import read_json, write_text
from realm_lab.errors import UserError
from realm_lab.reporting.document import Block, Code, Document, Figure, KeyNumber, Link, Quote, Section, Table, Text
from realm_lab.reporting.explorer import Packed, pack
from realm_lab.tracking.study_record import StudyRecord

FILE = "overview.json"
FORMAT = 1
MOST_ROWS = 40  # of a table on the common page
MOST_WARNINGS = 5
PER_CELL = 12  # sentences and questions in the explorer of the common page
# What a study's own report is for: a row per run, worked examples at length, commands.
LEFT_OUT = ("worked-examples", "coverage", "provenance", "reproduce", "studies")
SPARK_METRICS = (
    ("retrieval_utility", "retrieval utility, nats per span"),
    ("recall_at_5", "recall@5 before fine-tuning"),
    ("cloze_log_likelihood", "held-out log p(y|x), nats per span"),
    ("marginal_log_likelihood", "log p(y|x) in training, nats per span"),
)
SPARK_POINTS = 40
DRAWING = "This drawing is not in figures/ any more: write the report again."


@dataclass(frozen=True)
class Facts:
    """What the table of studies says of one."""

    name: str
    question: str
    baseline: str  # its title
    cells: list[list[str]]  # [name, title], baseline first
    seeds: list[int]
    runs: int  # planned
    complete: int
    failed: int = 0
    running: int = 0

    @property
    def is_whole(self) -> bool:
        """True if every planned run is complete."""
        return self.complete == self.runs > 0


@dataclass(frozen=True)
class Spark:
    """Means over seeds of one metric during pre-training: for each cell its title, steps and values."""

    metric: str
    lines: list[tuple[str, list[int], list[float]]] = field(default_factory=list)


@dataclass(frozen=True)
class Fragment:
    """One report on the common page."""

    facts: Facts
    document: Document
    spark: Spark | None
    explorer: Packed


def facts_of(study: StudyRecord, coverage: dict[str, int]) -> Facts:
    """`coverage`: runs, complete, failed, running."""
    cells = sorted(study.cells, key=lambda cell: cell.name != study.baseline)
    return Facts(
        name=study.name,
        question=study.question,
        baseline=study.cell(study.baseline).title,
        cells=[[cell.name, cell.title] for cell in cells],
        seeds=list(study.seeds),
        runs=coverage["runs"],
        complete=coverage["complete"],
        failed=coverage["failed"],
        running=coverage["running"],
    )


def write_fragment(
    folder: Path,
    document: Document,
    facts: Facts,
    points: pd.DataFrame,
    *,
    per_cell: int = PER_CELL,
    left_out: Sequence[str] = LEFT_OUT,
) -> Path:
    """Write `folder`/overview.json of a report; `points` is the long table of `table.curves_table`."""
    cells = [(name, title) for name, title in facts.cells]
    spark = spark_of(points, cells)
    content = {
        "format": FORMAT,
        "facts": asdict(facts),
        "document": _plain(_shortened(document, left_out)),
        "spark": asdict(spark) if spark else None,
        "explorer": pack(document.explorer, facts.name, document.title, cells, per_cell),
    }
    write_text(folder / FILE, _json(content))
    return folder / FILE


def read_fragment(folder: Path) -> Fragment:
    """The part of the report in `folder`; drawings come from `folder`/figures.

    Raises:
        UserError: a missing or broken file.
    """
    path = folder / FILE
    found = read_json(path)
    try:
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']} instead of {FORMAT}")
        spark = found["spark"]
        return Fragment(
            Facts(**found["facts"]),
            _document(found["document"], folder / "figures"),
            Spark(spark["metric"], [(title, steps, values) for title, steps, values in spark["lines"]])
            if spark
            else None,
            found["explorer"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: not the overview of a report ({error!r}); write the report again") from None


def spark_of(points: pd.DataFrame, cells: Sequence[tuple[str, str]]) -> Spark | None:
    """The first of SPARK_METRICS that was logged in pre-training; None where there is none."""
    chosen = points[points["stage"] == "pretrain"]
    for metric, name in SPARK_METRICS:
        mine = chosen[chosen["metric"] == metric]
        lines = []
        for label, title in cells:
            curve = mine[mine["label"] == label]
            means = curve.groupby("step")["value"].mean()[
                curve.groupby("step")["seed"].nunique() == curve["seed"].nunique()
            ]
            if len(means) > 1:
                kept = sorted({round(i * (len(means) - 1) / (SPARK_POINTS - 1)) for i in range(SPARK_POINTS)})
                thin = means.iloc[kept] if len(means) > SPARK_POINTS else means
                lines.append((title, [int(step) for step in thin.index], [float(f"{v:.4g}") for v in thin]))
        if lines:
            return Spark(name, lines)
    return None


def _shortened(document: Document, left_out: Sequence[str]) -> Document:
    """Without the chapters that are left out, long tables cut."""
    sections = []
    for section in document.sections:
        if section.key not in left_out:
            sections.append(replace(section, blocks=[_cut(block) for block in section.blocks]))
    return replace(document, sections=sections, explorer=[], explorer_notes=_some(document.explorer_notes))


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - MOST_WARNINGS
    return lines if more <= 0 else [*lines[:MOST_WARNINGS], f"And {more} more; see the study's own report."]


def _cut(block: Block) -> Block:
    if isinstance(block, Table) and len(block.frame) > MOST_ROWS:
        note = f"The first {MOST_ROWS} of {len(block.frame)} rows; all of them are in the report."
        return replace(block, frame=block.frame.head(MOST_ROWS), notes=(*block.notes, note))
    return block


def _plain(document: Document) -> dict[str, Any]:
    values = asdict(replace(document, sections=[], flags=_some(document.flags), warnings=_some(document.warnings)))
    values["sections"] = [
        {"key": section.key, "title": section.title, "blocks": [_block(block) for block in section.blocks]}
        for section in document.sections
    ]
    return values


def _block(block: Block) -> dict[str, Any]:
    if isinstance(block, Table):
        values: dict[str, Any] = {"kind": "table", "caption": block.caption, "notes": list(block.notes)}
        for name, frame in (("frame", block.frame), ("reference", block.reference)):
            if frame is not None:
                values[name] = [list(map(str, frame.columns)), *frame.astype(str).to_numpy().tolist()]
        return values
    if isinstance(block, Figure):
        return {"kind": "figure", "name": block.name, "caption": block.caption, "alt": block.alt}
    return asdict(block)


def _document(values: dict[str, Any], figures: Path) -> Document:
    sections = [
        Section(part["key"], part["title"], [_block_of(block, figures) for block in part["blocks"]])
        for part in values["sections"]
    ]
    numbers = [KeyNumber(**item) for item in values["key_numbers"]]
    return Document(**{**values, "sections": sections, "key_numbers": numbers})


def _block_of(values: dict[str, Any], figures: Path) -> Block:
    kind, rest = values["kind"], {name: value for name, value in values.items() if name != "kind"}
    if kind == "table":
        frame, reference = (_frame(values.get(name)) for name in ("frame", "reference"))
        if frame is None:
            raise ValueError("a table without rows")
        return Table(values["caption"], frame, reference, tuple(values["notes"]))
    if kind == "figure":
        path = figures / f"{Path(values['name']).name}.svg"
        if not path.is_file():
            return Text(f"{values['caption']} {DRAWING}", missing=True)
        return Figure(**rest, svg=path.read_text(encoding="utf-8"), png=b"")
    simple: dict[str, type[Text] | type[Code] | type[Quote] | type[Link]]
    simple = {"text": Text, "code": Code, "quote": Quote, "link": Link}
    return simple[kind](**rest)


def _frame(rows: list[list[str]] | None) -> pd.DataFrame | None:
    return pd.DataFrame(rows[1:], columns=rows[0]) if rows else None


def _json(content: dict[str, Any]) -> str:
    """One line for each part and each example, so that a change is seen as one."""

    def plain(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    parts = []
    for name, value in content.items():
        text = plain(value)
        if name == "explorer":
            lists = [
                f"{plain(key)}:[" + ",".join("\n" + plain(item) for item in items) + "]" for key, items in value.items()
            ]
            text = "{\n" + ",\n".join(lists) + "\n}"
        parts.append(f"{plain(name)}:{text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
