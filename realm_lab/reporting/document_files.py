"""A document as files: Markdown, a page, figures."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from realm_lab.core.files import atomic_write, write_text
from realm_lab.reporting import markdown, page
from realm_lab.reporting.document import Document, Figure


def write_document(document: Document, folder: Path) -> Path:
    """Write report.md, index.html and figures/ into a folder of the document's own; returns report.md's path."""
    kept = set()
    for section in document.sections:
        for block in section.blocks:
            if isinstance(block, Figure):
                kept.add(block.name)
                write_text(folder / "figures" / f"{block.name}.svg", block.svg)
                with atomic_write(folder / "figures" / f"{block.name}.png", "wb") as file:
                    file.write(block.png)
    remove_old_figures(folder, kept)
    write_text(folder / "report.md", markdown.render(document))
    write_text(folder / "index.html", page.render(document))
    return folder / "report.md"


def remove_old_figures(folder: Path, kept: Collection[str]) -> None:
    """Delete the figures that the report.md in `folder` still shows and that its next version will not: stems `kept`.

    A file that no report of ours names was put there by someone else, and stays.
    """
    report = folder / "report.md"
    shown = report.read_text(encoding="utf-8") if report.is_file() else ""
    for old in (folder / "figures").glob("*"):
        if old.stem not in kept and f"figures/{old.stem}." in shown:
            old.unlink()
