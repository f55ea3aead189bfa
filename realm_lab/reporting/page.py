"""Reports as self-contained HTML pages: no network, no library, every text of the data escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from realm_lab.reporting import explorer
from realm_lab.reporting.document import Document, Figure, numeric_columns
from realm_lab.reporting.inline_svg import Drawings
from realm_lab.reporting.worked_examples import WHEN

FOLDER = Path(__file__).parent
SCRIPTS = ("page.js", "explorer.js")
KINDS = {"cloze": "masked sentence", "question": "question"}
PER_CELL = 48  # sentences and questions in the explorer of a report's own page
MOST_NOTES = 6


def render(document: Document) -> str:
    """The page of one report."""
    packed = explorer.pack(document.explorer, "", document.title, [], PER_CELL)
    all_of_it = len({(e["label"], e["seed"], e["kind"], e["text"], e["answer"]) for e in document.explorer})
    shown = explorer.sentences(packed)
    notes = document.explorer_notes[:MOST_NOTES]
    sample = f"A sample: of each cell at most {PER_CELL} sentences and questions, evenly over its seeds."
    sample = sample if shown < all_of_it else ""
    return fill("page.html", document.title, packed, notes, sample, document=document)


def fill(template: str, title: str, packed: explorer.Packed, notes: list[str], sample: str, **values: Any) -> str:
    """One of the templates. The script is allowed by its digest alone, so that no text of the data can become one."""
    drawings = Drawings()

    def inline(figure: Figure) -> Markup:
        return Markup(drawings.inline(figure.svg))

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "numeric_columns": numeric_columns,
        "inline": inline,
        "spread": lambda cell: cell.split(" ± "),
    }
    script = "".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template(template).render(
        title=title,
        style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=Markup(digest),
        letters=lambda: Markup(drawings.letters()),
        data=Markup(embed(packed | {"kinds": KINDS, "when": WHEN})),
        has_examples=bool(packed["examples"]),
        explorer_notes=notes,
        limits={"sample": sample, "candidates": explorer.CANDIDATES, "characters": explorer.PASSAGE_CHARACTERS},
        **values,
    )
    return page if page.endswith("\n") else page + "\n"


def embed(value: Any) -> str:
    """JSON that can stand inside a script element: no "<" survives, so neither "</script" nor "<!--" can."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
