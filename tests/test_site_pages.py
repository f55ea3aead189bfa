"""The pages of the site, as docs/site_pages.py writes them for a builder."""

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from realm_lab import __version__
from tests.factories.modules import load_module

TABLE = """\
| key | meaning (`a|b`) | [p](statistics.md) |
| --- | --- | --: |
| `x|y` | `{a: 1}` or \\| |  |
| z | {PLAIN} | .031 |
"""
LABELLED = """\
| key | meaning (`a|b`) | [p](statistics.md) |
| --- | --- | --: |
| `x|y` | `{a: 1}` or \\| { data-label="meaning (a|b)" } |  |
| z | {PLAIN} | .031 { data-label="p" } |
"""


@pytest.fixture(scope="module")
def site_pages() -> ModuleType:
    """The module docs/site_pages.py."""
    pytest.importorskip("latex2mathml")
    return load_module("docs/site_pages.py")


def test_cells_carry_the_header_of_their_column_and_code_is_left(site_pages: ModuleType) -> None:
    code = f"```\n{TABLE}```\n"
    assert site_pages.in_the_site(f"Text\n\n{TABLE}\n{code}") == f"Text\n\n{LABELLED}\n{code}"


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        ("git@example.org:lab/realm.git", "https://example.org/lab/realm"),
        ("https://example.org/lab/realm.git", "https://example.org/lab/realm"),
        ("/srv/realm.git", None),
        (None, None),
    ],
)
def test_the_first_page_has_the_version_and_the_repository(
    site_pages: ModuleType, origin: str | None, address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_pages, "ROOT", tmp_path)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    if origin:
        subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", origin], check=True)
    repository = f" · [Repository]({address})" if address else ""
    assert site_pages.version_and_repository() == f"Version {__version__}{repository}"
