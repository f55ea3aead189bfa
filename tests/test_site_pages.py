"""The pages of the site, as docs/site_pages.py writes them for a builder."""

from types import ModuleType

import pytest

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
