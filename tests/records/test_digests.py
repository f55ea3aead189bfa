"""Digests of finished files show damage: damage throughout a file at every opening, the rest when all of it is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.records.digests import (
    BLOCK_BYTES,
    DIGESTS,
    WHOLE_BYTES,
    check_file,
    check_folder,
    damage,
    differences,
    is_whole,
    made_as_one,
    rewrite,
    write_digests,
    write_last,
)
from realm_lab.records.files import read_json, write_json
from tests.factories.errors import refused

LARGE = WHOLE_BYTES + 17


def zeroed(content: bytes) -> bytes:
    return bytes(len(content))


def every_97th(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[::97] = bytes(byte ^ 255 for byte in changed[::97])
    return bytes(changed)


def one_bit(content: bytes) -> bytes:
    between = BLOCK_BYTES + 1 if len(content) == LARGE else 0  # in none of the blocks that a large file is checked by
    return content[:between] + bytes([content[between] ^ 1]) + content[between + 1 :]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small and a large file, whose digests are written."""
    made = tmp_path / "stage" / "model"
    (made / "deep" / "er").mkdir(parents=True)
    (made / "deep" / "er" / "small").write_bytes(bytes(range(1, 200)))
    (made / "large").write_bytes(bytes(number % 251 for number in range(LARGE)))
    write_digests(made)
    return made


@pytest.mark.parametrize("name", ["deep/er/small", "large"])
@pytest.mark.parametrize(
    ("change", "is_seen"), [(zeroed, True), (every_97th, True), (lambda content: content[:-1], True), (one_bit, False)]
)
def test_damage(folder: Path, name: str, change: Callable[[bytes], bytes], is_seen: bool) -> None:
    path = folder / name
    check_file(path)
    path.write_bytes(change(path.read_bytes()))
    assert damage(path, whole=True)
    if not is_seen and name == "large":
        check_file(path)
        return
    with refused(path=path, remedy=f"delete {folder} and run again"):
        check_file(path)


def test_all_of_a_folder_is_found_at_any_depth(tmp_path: Path) -> None:
    """A file five folders down, a folder with separate digests, an exchanged folder, and one that goes on changing."""
    stage, key = tmp_path / "stage-abc", "stage-abcdef"
    deep = stage / "model" / "embedder" / "document" / "2_Dense" / "weights"
    for path in (deep, stage / "results.json", stage / "checkpoints" / "state", stage / "lease" / "writer.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("as written")
    write_digests(stage / "model")
    write_last(stage / "status.json", {"state": "COMPLETE"}, name=key)
    assert set(read_json(stage / DIGESTS)["files"]) == {"model/digests.json", "results.json", "status.json"}
    check_folder(stage)
    assert is_whole(stage)
    (stage / "lease" / "writer.json").write_text("other")
    check_folder(stage)
    deep.write_text("an edit by")
    with refused(path=deep, remedy=f"delete {stage / 'model'} and run again"):
        check_file(deep)
    deep.unlink()
    assert not is_whole(stage)
    [(path, _)] = differences(stage / "model")
    assert path == deep
    exchanged = stage.rename(tmp_path / "stage-abd")
    with refused(key, path=exchanged / DIGESTS):
        check_folder(exchanged)


def test_a_record_and_its_digest_are_never_at_odds(tmp_path: Path) -> None:
    """A process that dies between the two writes leaves the old content, which is as good as the new."""
    path = tmp_path / "record.json"
    rewrite(path, 1)
    assert not (tmp_path / DIGESTS).exists()
    write_last(path, 2, names=())
    write_last(path, 3, names=())
    check_file(path)
    write_json(path, 2)
    check_file(path)
    rewrite(path, 4)
    check_file(path)
    write_json(path, 3)
    with refused(path=path):
        check_file(path)


@pytest.mark.parametrize("content", ["", "[]", '{"name": "", "files": {"a": 1}}'])
def test_broken_digests_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / DIGESTS).write_text(content)
    with refused(path=tmp_path / DIGESTS):
        check_folder(tmp_path)


def test_a_stage_is_made_as_a_whole_and_what_nobody_wrote_is_not_checked(folder: Path) -> None:
    (folder / "other").write_bytes(b"x")
    check_file(folder / "other")
    (folder / "large").unlink()
    assert damage(folder / "large")
    assert made_as_one(folder) == folder
    (folder.parent / "config.yaml").touch()
    assert made_as_one(folder) == folder.parent
