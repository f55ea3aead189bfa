"""Atomic writes leave the old file or the new one, and digests depend only on content."""

import hashlib
import os
from pathlib import Path

import pytest

from realm_lab.errors import UserError
from realm_lab.records.files import (
    MARK,
    DiskFull,
    atomic_directory,
    atomic_write,
    canonical_json,
    digest,
    digest_file,
    read_json,
    read_json_lines,
    remove_directory,
    room_for,
    wait_for_file,
    write_text,
)
from tests.factories.errors import refused


def test_an_interrupted_write_keeps_the_old_file_and_the_old_folder(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    write_text(file, "old")
    with atomic_directory(folder) as scratch:
        (scratch / "old").touch()
    with pytest.raises(KeyboardInterrupt), atomic_write(file) as opened, atomic_directory(folder) as scratch:  # noqa: PT012
        opened.write("half of the new")
        (scratch / "new").touch()
        raise KeyboardInterrupt
    assert file.read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == [MARK, "old"]
    assert sorted(tmp_path.iterdir()) == [file, folder]


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    """A full disk is recognised in the errors of every library."""
    errors: list[Exception] = [OSError(28, "No space left on device"), OSError(122, "Disk quota exceeded")]
    errors += [OSError("1000 requested and 24 written"), Exception("No space left on device (os error 28)")]
    line = r"/kept: no space left on its disk; make room, then run again"
    for error in errors:
        with pytest.raises(DiskFull, match=line), atomic_write(tmp_path / "kept"):
            raise error
        with (
            pytest.raises(DiskFull, match=line),
            room_for(tmp_path / "folder"),
            atomic_directory(tmp_path / "kept") as scratch,
            atomic_write(scratch / "inner"),
        ):
            raise error
        with pytest.raises(DiskFull, match=line), room_for(tmp_path / "kept"):
            raise error
    with pytest.raises(PermissionError), room_for(tmp_path / "kept"):
        raise PermissionError(13, "Permission denied")
    assert list(tmp_path.iterdir()) == []


def test_two_may_write_one_file_or_folder_at_a_time(tmp_path: Path) -> None:
    """Writers on two machines may have the same process number, and still do not disturb each other."""
    with atomic_write(tmp_path / "file") as one, atomic_write(tmp_path / "file") as other:
        one.write("one")
        other.write("other")
    assert (tmp_path / "file").read_text() == "one"  # the last to end
    with atomic_directory(tmp_path / "folder") as here, atomic_directory(tmp_path / "folder") as there:
        (here / "text").write_text("here")
        (there / "text").write_text("there")
    assert (tmp_path / "folder" / "text").read_text() == "here"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_only_a_folder_that_we_wrote_is_replaced_or_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "data" / "mine.txt").write_text("years of work")
    (project / "file").write_text("a file")
    (project / "link").symlink_to(project / "data")
    (project / "empty").mkdir()
    monkeypatch.chdir(project)
    for name in ("", ".", "..", "/", str(project), str(tmp_path), "data", "file", "link"):
        with pytest.raises(UserError, match=r"name (another folder|a folder inside)"), atomic_directory(Path(name)):
            pytest.fail("the block of a refused folder never begins")
        with pytest.raises(UserError, match=r"name (another folder|a folder inside)"):
            remove_directory(Path(name))
    assert (project / "data" / "mine.txt").read_text() == "years of work"
    assert sorted(path.name for path in project.iterdir()) == ["data", "empty", "file", "link"]
    with atomic_directory(Path("empty")) as scratch:
        (scratch / "one").write_text("1")
    remove_directory(Path("empty"))
    remove_directory(Path("never there"))
    assert not Path("empty").exists()


def test_a_broken_json_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text('{\n"a": 1,\n"b": }\n')
    with refused(path=tmp_path / "absent.json", line=None):
        read_json(tmp_path / "absent.json")
    with refused(path=path, line=3):
        read_json(path)
    path.write_bytes(b'{"a": "\xff"}')
    with refused(path=path, line=None):
        read_json(path)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}\n')
    assert read_json_lines(path) == [{"id": 1}, {"id": 2}]
    path.write_text('{"id": 1}\n{"id": \n')
    with refused(path=path, line=2):
        read_json_lines(path)
    path.write_bytes(b'{"id": 1}\n{"id": "\xff"}\n')
    with refused(path=path, line=2):
        read_json_lines(path)


def test_the_digest_of_a_run_never_moves() -> None:
    # Runs are found by this digest: if this line has to change, every earlier run is orphaned.
    assert canonical_json({"b": 1e-5, "a": ["é", None, True]}) == '{"a":["é",null,true],"b":1e-05}'
    assert (
        digest({"b": 1e-5, "a": ["é", None, True]})
        == hashlib.sha256('{"a":["é",null,true],"b":1e-05}'.encode()).hexdigest()
    )


def test_the_digest_of_a_changed_file_is_new_whatever_its_age(tmp_path: Path) -> None:
    """Digests are remembered by size and times: a file of old times that changes must not keep its digest."""
    path = tmp_path / "corpus.txt"
    found = []
    for text in ("one", "two", "three"):
        path.write_text(text, encoding="utf-8")
        os.utime(path, (1_000_000, 1_000_000))
        found.append(digest_file(path))
        assert digest_file(path) == found[-1] == hashlib.sha256(text.encode()).hexdigest()
    assert len(set(found)) == 3
    with refused(path=tmp_path / "absent.txt"):
        digest_file(tmp_path / "absent.txt")


def test_a_file_of_another_machine_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, clock = tmp_path / "late", [0.0]

    def later(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] > 5:
            path.touch()

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", later)
    assert wait_for_file(path) == path
    assert 5 < clock[0] < 6
    monkeypatch.setattr("realm_lab.records.files.VISIBLE_SECONDS", 3.0)
    clock[0] = 0.0
    with refused("3 s", path=tmp_path / "never"):
        wait_for_file(tmp_path / "never")
