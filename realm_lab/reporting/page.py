"""The report as one self-contained HTML page: no network, no library, every text of the data escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from realm_lab.reporting.document import Document, Figure, numeric_columns
from realm_lab.reporting.worked_examples import WHEN

FOLDER = Path(__file__).parent
KINDS = {"cloze": "masked sentence", "question": "question"}


def render(document: Document) -> str:
    """The page's HTML. The script is allowed by its digest alone, so that no text of the data can become one."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "numeric_columns": numeric_columns,
        "inline": _inline,
        "spread": lambda cell: cell.split(" ± "),
    }
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    data = {"examples": document.explorer, "kinds": KINDS, "when": WHEN}
    page = environment.get_template("page.html").render(
        document=document,
        style=Markup(style),
        script=Markup(script),
        script_digest=Markup(digest),
        data=Markup(embed(data)),
    )
    return page if page.endswith("\n") else page + "\n"


def embed(value: Any) -> str:
    """JSON that can stand inside a script element: no "<" survives, so neither "</script" nor "<!--" can."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _inline(figure: Figure) -> Markup:
    from realm_lab.reporting.figures import themed  # Only a report that has drawings needs the drawing library.

    return Markup(themed(figure))
