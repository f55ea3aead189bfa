"""The rules of words.yaml: each finds its bad example and leaves its good one, and code is not read."""

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
