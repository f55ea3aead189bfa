"""The rules of words.yaml: each finds its bad example and leaves its good one, and the checked files follow them."""

from pathlib import Path
from typing import Any

import pytest

from tests import words


@pytest.mark.parametrize("rule", words.rules(), ids=lambda rule: str(rule["bad"]))
def test_a_rule_finds_its_bad_example_only(rule: dict[str, Any]) -> None:
    kind = rule.get("in", words.KINDS)[0]
    remedies = [instead for _, _, instead in words.findings(words.Text(1, kind, rule["bad"]))]
    assert rule["instead"] in remedies
    assert list(words.findings(words.Text(1, kind, rule["good"]))) == []


def test_code_is_not_read_as_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```bash\nbeside\n```\n`beside` [link](beside.md)\n<!-- beside -->\n\nbeside\n")
    assert [line for text in words.texts(page) for line, _, _ in words.findings(text)] == [9]
    module = tmp_path / "module.py"
    module.write_text('"""A module."""\n\nbeside = "beside"  # beside\n\n\ndef f():\n    """Where."""\n')
    assert sorted(line for text in words.texts(module) for line, _, _ in words.findings(text)) == [3, 7]


def test_a_page_over_its_budget_is_named_and_one_without(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    pages = {"README.md": "# Three words\n\n| - | here |\n", "docs/a.md": "`one two`", "docs/b.md": "one"}
    for name, text in pages.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert words.over_budget(tmp_path, {"README.md": 3, "docs/a.md": 2, "docs/b.md": 1}) == []
    lines = words.over_budget(tmp_path, {"README.md": 2, "docs/a.md": 2})
    assert [line.partition(":")[0] for line in lines] == ["README.md", "docs/b.md"]


def test_no_page_is_over_its_budget() -> None:
    assert words.over_budget(words.ROOT, words.SETTINGS["budget"]) == []


def test_a_wide_line_of_code_is_named_and_a_wide_line_of_text_is_not(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    wide, fits = "x" * 91, "x" * 90
    (tmp_path / "README.md").write_text(f"{wide}\n\n```text\n{fits}\n```\n", encoding="utf-8")
    text = f"{wide}\n\n```\n{wide}\n```\n\n{wide}\n\n- item\n\n    ```python\n    {fits}\n    {wide}\n    ```\n"
    (tmp_path / "docs" / "a.md").write_text(text, encoding="utf-8")
    named = [line.rpartition(": 91 characters")[0] for line in words.wide_code(tmp_path)]
    assert named == ["docs/a.md:4", "docs/a.md:13"]


def test_no_page_has_a_wide_line_of_code() -> None:
    assert words.wide_code(words.ROOT) == []


@pytest.mark.slow
def test_the_checked_files_follow_the_rules() -> None:
    assert words.check(words.checked()) == []
