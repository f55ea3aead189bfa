"""The report as Markdown. Text that comes from data is escaped: it is shown, never interpreted."""

from __future__ import annotations

import re

import pandas as pd

from realm_lab.reporting.document import (
    Block,
    Code,
    Document,
    Figure,
    KeyNumber,
    Link,
    Quote,
    Table,
    Text,
    numeric_columns,
)

# An underscore inside a word is no markup, and names are easier to read without backslashes.
SPECIAL = re.compile(r"([\\`*\[\]|#~]|(?<!\w)_|_(?!\w))")


def render(document: Document) -> str:
    """The whole report; figures are linked as figures/NAME.png."""
    parts = [f"# {escape(document.title)}", escape(document.subtitle)]
    parts += [f"> **FLAGGED RUN.** {escape(flag)}" for flag in document.flags]
    parts += [f"> **Attention.** {escape(warning)}" for warning in document.warnings]
    parts.append(f"**{escape(document.verdict)}**")
    if document.key_numbers:
        parts.append("\n".join(_key_number(item) for item in document.key_numbers))
    for section in document.sections:
        parts.append(f"## {escape(section.title)}")
        parts += [_block(block) for block in section.blocks]
        if section.key == "worked-examples":
            parts.append("The page index.html lets you search all examples and their candidates.")
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """`text` on one line, with everything that Markdown or HTML would interpret made harmless."""
    flat = " ".join(text.split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(r"\\\1", flat)


def pipe_table(frame: pd.DataFrame) -> str:
    """A pipe table of finished strings, numbers flush right."""
    sides = ["right" if number else "left" for number in numeric_columns(frame)]
    shown = frame.astype(str).map(escape)
    shown.columns = [escape(str(name)) for name in frame.columns]
    return shown.to_markdown(index=False, disable_numparse=True, colalign=sides)


def _key_number(item: KeyNumber) -> str:
    before = f"{item.before} → " if item.before else ""
    return f"- {escape(item.title)}: {before}{item.after} ({escape(item.note)})"


def _block(block: Block) -> str:
    match block:
        case Text(text=text, missing=missing):
            return f"*Attention:* {escape(text)}" if missing else escape(text)
        case Table():
            return "\n\n".join([f"**{escape(block.caption)}**", pipe_table(block.all_rows), *map(escape, block.notes)])
        case Figure(name=name, caption=caption):
            return f"![{escape(caption)}](figures/{name}.png)\n\n*{escape(caption)}*"
        case Code(text=text):
            return f"```sh\n{text}\n```"
        case Quote(heading=heading, text=text):
            return f"### {escape(heading)}\n\n> {escape(text)}"
        case Link(address=address, title=title, text=text):
            return f"- [{escape(title)}]({address}){': ' + escape(text) if text else ''}"
