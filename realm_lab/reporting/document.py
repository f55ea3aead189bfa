"""What a report is made of: sections of blocks, rendered twice (markdown.py, page.py) from the same content."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from realm_lab.reporting.statistics import Interval
from realm_lab.reporting.table import Summary, finite, summarise

NOTHING = "–"
MINUS = "−"
NUMERIC = re.compile(rf"|{NOTHING}|[+−\d][\d.e−]*( ± [\d.]+| of \d+)?|[−\d.{NOTHING}]+ → [−\d.{NOTHING}]+")


@dataclass(frozen=True)
class Text:
    """A paragraph; `missing` marks the statement that something is not there."""

    text: str
    missing: bool = False
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class Table:
    """Cells are finished strings. `reference` rows belong to another source and stay below, unsorted."""

    caption: str
    frame: pd.DataFrame
    reference: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()
    kind: Literal["table"] = "table"

    @property
    def all_rows(self) -> pd.DataFrame:
        """Own rows, then those of the other source."""
        return self.frame if self.reference is None else pd.concat([self.frame, self.reference], ignore_index=True)


@dataclass(frozen=True)
class Figure:
    """One drawing in both forms; `name` is its file name without ending."""

    name: str
    caption: str
    alt: str
    svg: str
    png: bytes
    kind: Literal["figure"] = "figure"


@dataclass(frozen=True)
class Code:
    """Commands to be typed."""

    text: str
    kind: Literal["code"] = "code"


@dataclass(frozen=True)
class Quote:
    """A sentence or question of the data, under a heading of its own."""

    heading: str
    text: str
    kind: Literal["quote"] = "quote"


@dataclass(frozen=True)
class Link:
    """A line of a list that points to a neighbouring file."""

    address: str
    title: str
    text: str
    kind: Literal["link"] = "link"


Block = Text | Table | Figure | Code | Quote | Link


@dataclass(frozen=True)
class Section:
    """A chapter of the report; `key` is its anchor."""

    key: str
    title: str
    blocks: list[Block]


@dataclass(frozen=True)
class KeyNumber:
    """A headline number: before -> after, and what the seeds say about the direction."""

    title: str
    before: str
    after: str
    note: str


@dataclass(frozen=True)
class Document:
    """The whole report. `flags` of runs are shown before anything else, then `warnings`."""

    title: str
    subtitle: str
    verdict: str
    flags: list[str]
    warnings: list[str]
    key_numbers: list[KeyNumber]
    sections: list[Section]
    explorer: list[dict[str, Any]] = field(default_factory=list)
    explorer_notes: list[str] = field(default_factory=list)


def number(value: Any, digits: int = 3) -> str:
    """A number with `digits` decimals and a true minus sign; a dash for none."""
    value = finite(value)
    if value is None:
        return NOTHING
    text = f"{value:.{digits}f}"
    if float(text) == 0.0:
        text = text.removeprefix("-")
    return text.replace("-", MINUS)


def signed(value: float, digits: int) -> str:
    """With its sign, a true minus."""
    text = number(value, digits)
    return text if text[0] in "−0" and not text.strip("0.−") else (text if value < 0 else f"+{text}")


def show_interval(interval: Interval, digits: int) -> str:
    """Both ends with their signs; "unbounded" where the data say nothing."""
    if interval.high == float("inf"):
        return "unbounded"
    return f"{signed(interval.low, digits)} to {signed(interval.high, digits)}"


def mean_sd(values: Iterable[Any], digits: int = 3) -> str:
    """ "0.961 ± 0.014", without the second part for a single value."""
    summary = summarise(values)
    return show_summary(summary, digits)


def show_summary(summary: Summary | None, digits: int = 3) -> str:
    """The text of a summary; a dash for none."""
    if summary is None:
        return NOTHING
    spread = "" if summary.sd is None else f" ± {number(summary.sd, digits)}"
    return number(summary.mean, digits) + spread


def probability(value: float | None) -> str:
    """A probability with three decimals, or two significant digits when it is very small."""
    if value is None:
        return NOTHING
    return (
        f"{value:.3f}" if value >= 0.0005 or value == 0.0 else f"{value:.1e}".replace("e-0", "e-").replace("-", MINUS)
    )


def numeric_columns(frame: pd.DataFrame) -> list[bool]:
    """For each column, whether its cells are numbers or dashes and at least one is a number."""
    cells = frame.astype(str)
    return [
        bool(cells[name].str.fullmatch(NUMERIC).all() and cells[name].str.contains(r"\d").any())
        for name in cells.columns
    ]
