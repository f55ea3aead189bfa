"""docs/data.md: its samples are read as the formats that they stand for, and no format is missing."""

import re
from pathlib import Path

import pytest

from realm_lab.corpus.readers import READERS, FileCounts, count_inputs

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
SAMPLES = [
    (kind, name, content)
    for kind, names, contents in re.findall(r"### `(\w+)`: (.+)\n((?:\n```\n[^`]*```\n)+)", PAGE)
    for name, content in zip(re.findall("`(.+?)`", names), re.findall(r"```\n(.*?)```", contents, re.S), strict=True)
]


@pytest.mark.parametrize(("kind", "name", "content"), SAMPLES)
def test_a_sample_is_of_its_format(kind: str, name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")
    [found] = count_inputs([str(path)])
    assert isinstance(found, FileCounts)
    assert found.format == kind
    assert found.dropped == {}
    assert any(found.counts.values())


def test_every_format_is_on_the_page() -> None:
    formats = {*READERS} - {"json_records"}  # which only names what a record lacks
    assert {kind for kind, *_ in SAMPLES} == formats - {"picture"}  # which is no text
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M)) == formats
