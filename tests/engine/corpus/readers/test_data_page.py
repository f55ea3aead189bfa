"""docs/data.md and samples.md: their samples are read as the formats that they stand for, and no format is missing."""

import re
from pathlib import Path

import pytest

from realm_lab.engine.corpus.readers import READERS, FileCounts, count_inputs
from realm_lab.records.plugins import import_plugins

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "data.md").read_text(encoding="utf-8")
TEXT = PAGE + Path(__file__).with_name("samples.md").read_text(encoding="utf-8")
SAMPLES = [
    (kind, name, dict(zip(re.findall("`(.+?)`", names), re.findall(r"```\n(.*?)```", contents, re.S), strict=True)))
    for kind, names, contents in re.findall(r"### `(\w+)`: (.+)\n((?:\n```\n[^`]*```\n)+)", TEXT)
    for name in re.findall("`(.+?)`", names.partition("with")[0])
]


@pytest.mark.parametrize(("kind", "name", "contents"), SAMPLES)
def test_a_sample_is_of_its_format(kind: str, name: str, contents: dict[str, str], tmp_path: Path) -> None:
    for file, content in contents.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content, encoding="utf-8")
    [found] = count_inputs([str(tmp_path / name)])
    assert isinstance(found, FileCounts)
    assert found.format == kind
    assert found.dropped == {}
    assert any(found.counts.values())


def test_every_format_is_on_the_page() -> None:
    import_plugins()
    formats = {*READERS} - {"json_records"}  # which only names what a record lacks
    assert {kind for kind, *_ in SAMPLES} == formats - {"picture", "salient_span_tfrecord"}  # which are no text
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M)) == formats
