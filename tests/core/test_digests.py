"""Digests of finished files show damage: damage throughout a file at every opening, the rest when all of it is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.core.digests import BLOCK_BYTES, BLOCKS, check_file, damage, made_as_one, write_digests
from tests.factories.errors import refused

LARGE = 5 * BLOCKS * BLOCK_BYTES + 17


def zeroed(content: bytes) -> bytes:
    return bytes(len(content))


def every_97th(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[::97] = bytes(byte ^ 255 for byte in changed[::97])
    return bytes(changed)


def one_bit(content: bytes) -> bytes:
    between = BLOCK_BYTES + 1 if len(content) == LARGE else 0  # in no block of a large file
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
    ("change", "is_seen"),
    [(zeroed, True), (every_97th, True), (lambda content: content[:-1], True), (one_bit, False)],
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


def test_a_stage_is_made_as_a_whole_and_what_nobody_wrote_is_not_checked(folder: Path) -> None:
    (folder / "other").write_bytes(b"x")
    check_file(folder / "other")
    (folder / "large").unlink()
    assert damage(folder / "large")
    assert made_as_one(folder) == folder
    (folder.parent / "config.yaml").touch()
    assert made_as_one(folder) == folder.parent
