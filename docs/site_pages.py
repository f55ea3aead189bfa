"""Write the pages of the site into build/docs: those of docs/, the committed reports and the notebook.

Any builder that reads mkdocs.yml then makes the site (`make docs`). Links that are right on GitHub point into the site,
and equations are MathML, which needs no script.
"""

import json
import re
import shutil
from pathlib import Path

from latex2mathml.converter import convert

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "docs"
REPORTS = ["LOG.md", "reference/index.html", "reference/*/report.md", "reference/*/figures/*.png"]
LINKS_OF_A_REPORT = (
    "[Findings](../../../findings.md) · [All reports](../index.html) · [How to read a report](../../../reading.md)"
)
ALONE = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---\n"  # no sidebars; the search does not find it


def main() -> None:
    """Write every page anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    reports = [path for pattern in REPORTS for path in (ROOT / "reports").glob(pattern)]
    for path in [*(ROOT / "docs").glob("*.*"), *reports]:
        page = PAGES / path.relative_to(ROOT if path in reports else ROOT / "docs")
        page.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = in_the_site(path.read_text(encoding="utf-8"))
            if path.name == "report.md":
                title, _, rest = text.partition("\n")
                text = f"{title}\n\n{LINKS_OF_A_REPORT}\n{rest}"
            page.write_text(ALONE + text if path in reports else text, encoding="utf-8")
        elif path.suffix not in (".py", ".ipynb"):
            shutil.copyfile(path, page)
    notebook = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))
    (PAGES / "tour.md").write_text(in_the_site(notebook_page(notebook)), encoding="utf-8")


def notebook_page(notebook: dict) -> str:
    """Write the cells of a notebook and their text outputs as Markdown."""
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
    """Point links to ../reports/ and to the notebook into the site, and write equations in $$ as MathML."""
    markdown = re.sub(r"\]\[(?=(SEP|MASK|CLS)\])", r"]\\[", markdown)  # wordpieces, not references
    markdown = re.sub(r"^\$\$\n?(.+?)\n?\$\$$", _equation, markdown, flags=re.MULTILINE | re.DOTALL)
    return markdown.replace("](../reports/", "](reports/").replace("](tour.ipynb)", "](tour.md)")


def _equation(found: re.Match) -> str:
    return f'<div class="equation">{convert(found[1], "block")}</div>'


if __name__ == "__main__":
    main()
