"""Hooks of mkdocs.yml: the committed reports and the notebook are part of the site, and equations are MathML."""

import json
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINKS_OF_A_REPORT = (
    "[Findings](../../../findings.md) · [All reports](../index.html) · [How to read a report](../../../reading.md)"
)
REPORTS = ["LOG.md", "reference/index.html", "reference/*/report.md", "reference/*/figures/*.png"]


def on_files(files, config):
    """Add the reports, which are outside of docs/, and the notebook as a page."""
    for path in (path for pattern in REPORTS for path in sorted((ROOT / "reports").glob(pattern))):
        files.append(File(path.relative_to(ROOT).as_posix(), ROOT, config.site_dir, config.use_directory_urls))
    notebook = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))
    files.append(File.generated(config, "tour.md", content=notebook_page(notebook)))


def notebook_page(notebook):
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


def on_page_markdown(markdown, page, **_):
    """Point links to ../reports/ and to the notebook, which are right on GitHub, into the site.

    Reports have no sidebars but links to the other results, and the search does not find them. Equations in $$ become
    MathML, which needs no script.
    """
    if page.file.src_uri.startswith("reports/"):
        page.meta |= {"search": {"exclude": True}, "hide": ["navigation", "toc"]}
        if page.file.src_uri.endswith("/report.md"):
            title, _, rest = markdown.partition("\n")
            markdown = f"{title}\n\n{LINKS_OF_A_REPORT}\n{rest}"
    markdown = re.sub(r"\]\[(?=(SEP|MASK|CLS)\])", r"]\\[", markdown)  # wordpieces, not references
    markdown = re.sub(
        r"^\$\$\n?(.+?)\n?\$\$$", lambda m: convert(m[1], "block"), markdown, flags=re.MULTILINE | re.DOTALL
    )
    return markdown.replace("](../reports/", "](reports/").replace("](tour.ipynb)", "](tour.md)")
