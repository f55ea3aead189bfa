"""Write the pages of the site into build/docs: those of docs/, the committed reports and the notebook.

Any builder that reads mkdocs.yml then makes the site (`make docs`). Links that work on GitHub are changed to work in
the site, and equations to MathML, which needs no script. Cells of tables have the header of their column, since a phone
stacks cells (extra.css). The first page has the version, and a link to the repository if a remote `origin` exists.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

from latex2mathml.converter import convert

from realm_lab import __version__

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "docs"
REPORTS = ["LOG.md", "reference/index.html", "reference/*/report.md", "reference/*/figures/*.png"]
LINKS_OF_THE_OVERVIEW = '<p class="links"><a href="../../">Home</a> · <a href="../../findings/">Findings</a></p>'
LINKS_OF_A_REPORT = (
    "[Findings](../../../findings.md) · [All reports](../index.html) · [How to read a report](../../../reading.md)"
)
TABLE = re.compile(r"^\|.*\n\|[-:| ]+\|\n(?:\|.*\|\n)+", re.MULTILINE)
CELLS = re.compile(r"(?<!\\)\|(?=(?:[^`]*`[^`]*`)*[^`]*$)")  # the `|` between two cells, outside code
ALONE = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---\n"  # no sidebars; the search does not find it


def main() -> None:
    """Write every page again."""
    shutil.rmtree(PAGES, ignore_errors=True)
    reports = [path for pattern in REPORTS for path in (ROOT / "reports").glob(pattern)]
    for path in [*(ROOT / "docs").glob("*.*"), *reports]:
        page = PAGES / path.relative_to(ROOT if path in reports else ROOT / "docs")
        page.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = in_the_site(path.read_text(encoding="utf-8"))
            if path == ROOT / "docs" / "index.md":
                text = re.sub("^# .*$", rf"\g<0>\n\n{version_and_repository()}", text, count=1, flags=re.MULTILINE)
            if path.name == "report.md":
                title, _, rest = text.partition("\n")
                text = f"{title}\n\n{LINKS_OF_A_REPORT}\n{rest}"
            page.write_text(ALONE + text if path in reports else text, encoding="utf-8")
        elif path.suffix == ".html":
            text = path.read_text(encoding="utf-8")
            page.write_text(text.replace("<main>", f"<main>\n{LINKS_OF_THE_OVERVIEW}", 1), encoding="utf-8")
        elif path.suffix not in (".py", ".ipynb"):
            shutil.copyfile(path, page)
    notebook = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))
    (PAGES / "tour.md").write_text(in_the_site(notebook_page(notebook)), encoding="utf-8")


def version_and_repository() -> str:
    """Return the version, with a link to the remote `origin` if it has an address that a browser can open."""
    ask = ["git", "remote", "get-url", "origin"]
    origin = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    address = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", origin).removesuffix(".git")
    repository = f" · [Repository]({address})" if address.startswith("https://") else ""
    return f"Version {__version__}{repository}"


def notebook_page(notebook: dict) -> str:
    """Return the cells of a notebook and their text outputs as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            text = output.get("text") or output.get("data", {}).get("text/plain", [])
            parts.append("```text\n" + "".join(text).rstrip("\n") + "\n```")
    return "\n\n".join(parts) + "\n"


def in_the_site(markdown: str) -> str:
    """Point links to ../reports/ and to the notebook into the site, write equations in $$ as MathML, label cells."""
    markdown = re.sub(r"\]\[(?=(SEP|MASK|CLS)\])", r"]\\[", markdown)  # wordpieces, not references
    markdown = re.sub(r"^\$\$\n?(.+?)\n?\$\$$", _equation, markdown, flags=re.MULTILINE | re.DOTALL)
    markdown = markdown.replace("](../reports/", "](reports/").replace("](tour.ipynb)", "](tour.md)")
    prose_and_code = re.split(r"^( *```.*?^ *```)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else TABLE.sub(_labelled, part) for number, part in enumerate(prose_and_code))


def _labelled(table: re.Match) -> str:
    """Label each cell of a row except the first with the header of its column. A cell with a brace outside code is left
    out, since the brace would end the label."""
    head, line, *rows = table[0].splitlines()
    labels = [re.sub(r'[*`"<>]', "", re.sub(r"\]\(.*?\)|\[", "", label)).strip() for label in CELLS.split(head)]
    written = []
    for row in rows:
        cells = CELLS.split(row)
        for column in range(2, len(cells) - 1):
            if cells[column].strip() and "{" not in re.sub("`.*?`", "", cells[column]):
                cells[column] += f'{{ data-label="{labels[column]}" }} '
        written.append("|".join(cells))
    return "\n".join([head, line, *written, ""])


def _equation(found: re.Match) -> str:
    return f'<div class="equation">{convert(found[1], "block")}</div>'


if __name__ == "__main__":
    main()
