"""A report in the terminal: its warnings, verdict and tables; figures are on the page."""

from __future__ import annotations

import rich.table
from rich.console import Console
from rich.text import Text as Line

from realm_lab.reporting.document import Document, Table, Text, numeric_columns


def show(document: Document, console: Console) -> None:
    """Print a document. Text that comes from data is never read as markup."""
    console.print(Line(document.title, "bold"))
    console.print(Line(document.subtitle, "dim"))
    for warning in [*document.flags, *document.warnings]:
        console.print(Line(warning, "yellow"))
    console.print(Line(document.verdict))
    for section in document.sections:
        for block in section.blocks:
            if isinstance(block, Table):
                console.print(Line(f"\n{block.caption}", "bold"))
                console.print(_table(block))
                for note in block.notes:
                    console.print(Line(note, "dim"))
            elif isinstance(block, Text):
                console.print(Line(block.text, "yellow" if block.missing else ""))


def _table(block: Table) -> rich.table.Table:
    shown = rich.table.Table(header_style="")
    frame = block.all_rows.astype(str)
    for name, is_number in zip(frame.columns, numeric_columns(frame), strict=True):
        shown.add_column(Line(str(name)), justify="right" if is_number else "left", overflow="fold")
    for row in frame.itertuples(index=False, name=None):
        shown.add_row(*map(Line, row))
    return shown
