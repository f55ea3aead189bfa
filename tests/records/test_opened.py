"""Files that custom code opens, and those that change afterwards."""

import subprocess
from pathlib import Path

import pytest

from realm_lab.records.opened import opened_by
from realm_lab.records.plugins import own_code

READS = """
from pathlib import Path


def read(folder):
    (folder / "made.txt").write_text("made")
    (folder / "made.txt").read_text()
    return [(folder / name).read_text() for name in ("kept.txt", "edited.txt", "gone.txt")]
"""


def test_files_are_noted_for_the_module_that_opened_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "opening_module.py").write_text(READS)
    for name in ("kept.txt", "edited.txt", "gone.txt"):  # by another process: files that this one wrote do not count
        subprocess.run(["cp", __file__, tmp_path / name], check=True)
    assert own_code("test", "opening_module:read")(tmp_path) == [Path(__file__).read_text()] * 3
    subprocess.run(["cp", tmp_path / "opening_module.py", tmp_path / "edited.txt"], check=True)
    (tmp_path / "gone.txt").unlink()
    found = {path.name: same for path, same in opened_by(["opening_module"]).items() if path.suffix == ".txt"}
    assert found == {"kept.txt": True, "edited.txt": False}
    assert opened_by(["another_module"]) == {}
