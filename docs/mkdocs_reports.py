"""Hook of mkdocs.yml: the committed reports are part of the site, where the pages link to them."""

from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
REPORTS = ["LOG.md", "reference/index.html", "reference/*/report.md", "reference/*/figures/*.png"]


def on_files(files, config):
    """Add the reports, which are outside of docs/."""
    for path in (path for pattern in REPORTS for path in sorted((ROOT / "reports").glob(pattern))):
        files.append(File(path.relative_to(ROOT).as_posix(), ROOT, config.site_dir, config.use_directory_urls))


def on_page_markdown(markdown, page, **_):
    """Links of docs/ to ../reports/, which are right on GitHub, lead into the site. Reports have no sidebars, and the
    search does not find them."""
    if page.file.src_uri.startswith("reports/"):
        page.meta |= {"search": {"exclude": True}, "hide": ["navigation", "toc"]}
    return markdown.replace("](../reports/", "](reports/")
