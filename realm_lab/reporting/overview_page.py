"""reports/index.html: one page for the default run and every study, made of the overview.json beside each report.

No run folder is read: a study that was run elsewhere and committed is on the page like any other. What has no
overview.json (a report made by hand, a search) is linked.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from realm_lab.core.files import write_text
from realm_lab.errors import UserError
from realm_lab.reporting import explorer, page
from realm_lab.reporting.document import MINUS, Block, Figure, Link, Section, Table
from realm_lab.reporting.fragment import FILE, PER_CELL, Facts, Fragment, Spark, read_fragment
from realm_lab.reporting.provenance_sections import first_words

SHOWN_AT_ONCE = {"results": 1, "figures": 2}  # blocks of a study's chapter that are not folded
LINKS = (("index.html", "full report"), ("report.md", "report.md"), ("results.csv", "results.csv"))
SPARK_WIDTH, SPARK_HEIGHT, SPARK_EDGE = 170.0, 46.0, 3.0
SPARK_COLOURS = ("blue", "vermilion", "green", "purple", "orange", "sky")
SIZE = "SIZE OF THIS PAGE"


class Address(NamedTuple):
    """A link of the page."""

    address: str
    title: str


@dataclass(frozen=True)
class StudyView:
    """One study as the page shows it. `prefix` keeps its anchors apart from those of others."""

    fragment: Fragment
    anchor: str
    prefix: str
    links: list[Address]

    @property
    def facts(self) -> Facts:
        """Name, question, coverage."""
        return self.fragment.facts

    @property
    def verdict(self) -> str:
        """The answer, without the question before it."""
        return self.fragment.document.verdict.removeprefix(self.facts.question).strip()

    @property
    def spark(self) -> Markup:
        """The small curves of the table."""
        return sparkline(self.fragment.spark)

    def shown(self, section: Section) -> list[Block]:
        """The blocks of a chapter's part that are not folded."""
        return section.blocks[: SHOWN_AT_ONCE.get(section.key, 0)]

    def folded(self, section: Section, shown: list[Block]) -> str:
        """The line that opens the rest."""
        rest = section.blocks[len(shown) :]
        kinds = [("table", Table), ("drawing", Figure)]
        counts = [(word, sum(isinstance(block, kind) for block in rest)) for word, kind in kinds]
        said = ", ".join(f"{count} {word}{'s' * (count > 1)}" for word, count in counts if count)
        title = f"More {section.title[0].lower()}{section.title[1:]}" if shown else section.title
        return f"{title}: {said}" if said else title


def refresh(reports: Path) -> Path:
    """Write reports/index.html from what lies under `reports`; returns its path. Writers wait for each other."""
    reports = Path(reports)
    reports.mkdir(parents=True, exist_ok=True)
    with _alone(reports):
        write_text(reports / "index.html", render(reports))
    return reports / "index.html"


def render(reports: Path) -> str:
    """The page; what cannot be read is said on it."""
    problems: list[str] = []
    default = _read(reports, reports, problems) if (reports / FILE).is_file() else None
    studies: list[StudyView] = []
    others: list[Link] = []
    for folder in sorted(path for path in reports.iterdir() if path.is_dir()):
        fragment = _read(folder, reports, problems) if (folder / FILE).is_file() else None
        if fragment:
            links = [
                Address(f"{quote(folder.name)}/{name}", title) for name, title in LINKS if (folder / name).is_file()
            ]
            studies.append(StudyView(fragment, f"study-{folder.name}", f"s{len(studies) + 1}-", links))
        elif link := link_to(folder):
            others.append(link)
    rows = [StudyView(default, "default", "", [])] if default else []
    everything = [*rows, *studies]
    packed = explorer.merge(view.fragment.explorer for view in everything)
    notes = list(default.document.explorer_notes) if default else []
    lacking = {view.facts.name: view.fragment.document.explorer_notes for view in studies}
    notes += [
        f"{name}: {said[0]}{' And more; see its report.' * (len(said) > 1)}" for name, said in lacking.items() if said
    ]
    sample = (
        f"A sample: of each cell of a study at most {PER_CELL} sentences and questions, evenly over its seeds; "
        "the study's own report has more."
    )
    text = page.fill(
        "overview.html",
        "realm_lab report",
        packed,
        notes,
        sample if studies else "",
        subtitle=" · ".join(([default.document.subtitle] if default else []) + [f"this page: {SIZE}"]),
        default=default,
        sections=default.document.sections if default else [],
        studies=everything,
        chapters=studies,
        coverage=_coverage(everything),
        others=others,
        problems=problems,
    )
    return text.replace(SIZE, f"{len(text.encode()) / 1e6:.1f} MB", 1)


def link_to(folder: Path) -> Link | None:
    """A link to a report that the page does not show, with its first words; None for a folder without a report."""
    pages = [name for name in ("report.md", "summary.json", "index.html") if (folder / name).is_file()]
    if not pages:
        return None
    address = "index.html" if "index.html" in pages else pages[0]
    title, text = first_words(folder)
    return Link(f"{quote(folder.name)}/{address}", title or folder.name, text)


def sparkline(spark: Spark | None) -> Markup:
    """One line a cell, the baseline heavy, with a description for those who do not see it."""
    if spark is None:
        return Markup('<span class="none">no pre-training</span>')
    steps = [step for _, where, _ in spark.lines for step in where]
    values = [value for _, _, line in spark.lines for value in line]
    low, high = min(values), max(values)
    first, last = min(steps), max(steps)
    across, up = (
        (SPARK_WIDTH - 2 * SPARK_EDGE) / max(1, last - first),
        (SPARK_HEIGHT - 2 * SPARK_EDGE) / (high - low or 1.0),
    )
    drawn = []
    for place, (_, where, line) in enumerate(spark.lines):
        points = " ".join(
            f"{SPARK_EDGE + across * (step - first):.1f},{SPARK_HEIGHT - SPARK_EDGE - up * (value - low):.1f}"
            for step, value in zip(where, line, strict=True)
        )
        colour = SPARK_COLOURS[(place - 1) % len(SPARK_COLOURS)] if place else "ink"
        drawn.append(f'<polyline class="{colour}" points="{points}"/>')
    ends = "; ".join(f"{title} {_show(line[0])} to {_show(line[-1])}" for title, _, line in spark.lines)
    label = f"{spark.metric}, from step {first} to {last}: {ends}."
    _, _, heavy = spark.lines[0]
    caption = f"{spark.metric}: {_show(heavy[0])} → {_show(heavy[-1])}"
    return Markup(
        f'<svg class="spark" role="img" viewBox="0 0 {SPARK_WIDTH:g} {SPARK_HEIGHT:g}" aria-label="{escape(label)}">'
        f"{''.join(reversed(drawn))}</svg><small>{escape(caption)}</small>"
    )


def _show(value: float) -> str:
    return f"{value:.2f}".replace("-", MINUS)


def _coverage(views: list[StudyView]) -> str:
    runs, complete = (sum(getattr(view.facts, name) for view in views) for name in ("runs", "complete"))
    word = "study" if len(views) == 1 else "studies"
    text = f"{len(views)} {word}, {complete} of {runs} runs complete (a run may belong to several)."
    lacking = [view.facts.name for view in views if not view.facts.is_whole]
    return f"{text} Incomplete: {', '.join(lacking)}." if lacking else text


def _read(folder: Path, reports: Path, problems: list[str]) -> Fragment | None:
    try:
        return read_fragment(folder)
    except UserError as error:
        problems.append(str(error).replace(f"{reports}/", "reports/"))
        return None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: two studies that end together must not lose each other's chapter."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
