"""Render templates to Markdown, HTML and plain text, and format numbers. Templates are in templates/ and in sections.

Data is escaped when it is put into a template: for Markdown and HTML in the pieces of a report.md, for HTML in
*.html.j2. Other *.j2 are plain text. A page of a report is its report.md as HTML, with pictures embedded.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from realm_lab.evidence.statistics.wording import MINUS, NOTHING, number, p_value

FOLDER = Path(__file__).parent / "templates"
MOST_COLUMNS = 6  # of a table, after those that identify its rows
NUMBER = re.compile(r"([<>] )?[+−]?\d[\d,.]*(e−?\d+)?( %)?( ± [\d.]+)?( [(\[].*[)\]])?")
# The only HTML in a report.md: its folded parts. Data is escaped and has no "<", so none of it looks like such a part.
DETAILS = re.compile(r'<details markdown="1">\n<summary>(?P<summary>[^<]*)</summary>|</details>')
# An underscore inside a word is no markup, and names are easier to read without backslashes.
SPECIAL = re.compile(r"([\\`*\[\]|#~]|(?<!\w)_|_(?!\w))")


def render(template: str, **values: Any) -> str:
    """Render the template in the file of this name."""
    return _environment(template.partition(".")[2]).get_template(template).render(**values)


def render_piece(template: str, **values: Any) -> Markup:
    """Render a piece of a report.md from the text of its template."""
    return Markup(_environment("md.j2").from_string(template).render(**values))


@functools.cache
def _environment(kind: str) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=kind != "j2",
        finalize=escape_markdown if kind == "md.j2" else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"table": pipe_table, "figure": markdown_figure, "html_table": html_table}
    environment.globals |= {"metric": metric_heading}
    environment.filters |= {"number": number, "p_value": p_value, "probability": probability, "likelihood": likelihood}
    return environment


def escape_markdown(value: Any) -> Markup:
    """Return `value` on one line, with the characters escaped that Markdown or HTML would interpret."""
    if isinstance(value, Markup):
        return value
    text = str(escape(" ".join(str(value).split()))).replace("&#39;", "'").replace("&#34;", '"')
    return Markup(SPECIAL.sub(r"\\\1", text))


def pipe_table(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """A Markdown table of rows, with a dash for a key that a row lacks, and columns of numbers flush right.

    A table that is too wide becomes several tables, each with the first columns, which identify the rows.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = [[str(row.get(name, NOTHING)) for name in names] for row in rows]
    keys = next((n for n in range(1, len(names)) if len({(*row[:n],) for row in table}) == len(rows)), 1)
    columns = range(len(names))
    others = len(columns[keys:])
    width = max(1, math.ceil(others / max(1, math.ceil(others / MOST_COLUMNS))))
    parts = []
    for start in range(keys, max(keys + 1, len(names)), width):
        chosen = [*columns[:keys], *columns[start : start + width]]
        sides = ["---:" if all(is_number(row[place]) for row in table) else "---" for place in chosen]
        lines: list[Sequence[str]] = [[escape_markdown(names[place]) for place in chosen], sides]
        lines += [[escape_markdown(row[place]) or " " for place in chosen] for row in table]
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    return Markup("\n\n".join(parts))


def words(name: str) -> str:
    """A dotted parameter or an axis for people: `pretrain.retriever.learning_rate` -> "learning rate"."""
    return name.rsplit(".", 1)[-1].replace("_", " ")


def seeds_text(seeds: Sequence[int]) -> str:
    """ "seed 0", "seeds 0, 2", "seeds 0 to 7"."""
    is_range = len(seeds) > 2 and [*seeds] == [*range(seeds[0], seeds[0] + len(seeds))]
    listed = f"{seeds[0]} to {seeds[-1]}" if is_range else ", ".join(map(str, seeds))
    return f"seed{'s' * (len(seeds) != 1)} {listed}"


def is_number(text: str) -> bool:
    """True for a number as reports write it, or a dash."""
    return text == NOTHING or NUMBER.fullmatch(text) is not None


def markdown_figure(figure: Mapping[str, str]) -> Markup:
    """A figure in the report's folder as Markdown, with its caption."""
    alt, caption = escape_markdown(figure["alt"]), escape_markdown(figure["caption"])
    return Markup(f"![{alt}](figures/{figure['name']}.png)\n\n*{caption}*")


def metric_heading(result: Any) -> Markup:
    """The title of the table of a metric (a MetricResult) with its unit, and a mark if it was not declared."""
    metric = result.metric
    unit = f", {metric.unit}" if metric.unit else ""
    is_exploratory = any(cell.finding and cell.finding.is_exploratory for cell in result.cells)
    return escape_markdown(f"{metric.title[0].upper()}{metric.title[1:]}{unit}{' (exploratory)' * is_exploratory}")


def html_table(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """`pipe_table` as HTML."""
    return html(pipe_table(rows), Path())


def title_of(markdown: str, default: str = "report") -> str:
    """The first heading of a report."""
    return next((line.lstrip("# ") for line in markdown.splitlines() if line.startswith("#")), default)


def page(template: str, script: str = "page.js", **values: Any) -> str:
    """Render a page with its style and its script; the digest keeps the browser from running any other script."""
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", script))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render(template, style=Markup(style), script=Markup(script), script_digest=Markup(digest), **values)


def html(markdown: str, folder: Path) -> Markup:
    """Convert Markdown to HTML, with the pictures of `folder` embedded."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    for place, token in enumerate(tokens):
        if token.type == "inline" and (block := DETAILS.fullmatch(token.content)):
            around = tokens[place - 1 : place + 2]  # the paragraph
            summary = f"<details><summary>{block['summary']}</summary>" if block["summary"] else "</details>"
            for one, text in zip(around, (summary, "", ""), strict=True):
                one.type, one.content, one.tag, one.children = "html_block", text, "", None
    for inline in (child for token in tokens for child in token.children or ()):
        path = folder / str(inline.attrs.get("src", ""))
        if inline.type == "image" and path.is_file():
            inline.attrs["src"] = picture(path)
    body = parser.renderer.render(tokens, parser.options, {})
    return Markup(body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>"))


def picture(path: Path) -> str:
    """A PNG as a data URI."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def probability(value: float | None) -> str:
    """A probability with three decimals; two significant digits below .0005, a dash for None."""
    if value is None or value >= 0.0005 or value == 0.0:
        return number(value)
    return f"{value:.1e}".replace("e-0", "e-").replace("-", MINUS)


def likelihood(log_likelihood: float | None) -> str:
    """exp(`log_likelihood`), at most 1, as a probability in text; a dash for None. `log_likelihood`: in nats."""
    return NOTHING if log_likelihood is None else probability(math.exp(min(log_likelihood, 0.0)))
