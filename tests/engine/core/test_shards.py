"""Files that several processes of a machine make together."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from realm_lab.engine.core.shards import write_once
from realm_lab.records.files import read_json, write_json


def test_one_writes_what_all_have_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, both, written = tmp_path / "identity.json", threading.Barrier(2), list[Path]()
    looked, exists = iter(range(2)), Path.exists

    def missed_by_both(self: Path) -> bool:
        if self == path and next(looked, None) is not None:
            both.wait()
            return False
        return exists(self)

    def write(path: Path, value: object) -> None:
        written.append(path)
        write_json(path, value)

    monkeypatch.setattr(Path, "exists", missed_by_both)
    monkeypatch.setattr("realm_lab.engine.core.shards.write_json", write)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: write_once(path, {"rows": 3}), range(2)))
    assert written == [path]
    assert read_json(path) == {"rows": 3}
