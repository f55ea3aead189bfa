"""Checkpoints: published whole or not at all, verified before use, never a pickle."""

import warnings
from pathlib import Path

import pytest
import torch

from realm_lab.engine.training import checkpoint as checkpoint_module
from realm_lab.engine.training.checkpoint import (
    KEPT,
    Checkpoint,
    load_newest,
    save_checkpoint,
)


def at(step: int) -> Checkpoint:
    """Return a checkpoint whose content identifies its step."""
    generator = torch.Generator().manual_seed(step)
    return Checkpoint(
        step,
        {
            "a": torch.randn(3, 4, generator=generator),
            "count": torch.tensor(step),
            "offset": torch.tensor(0.1 + step, dtype=torch.float64),
        },
    )


def assert_equal(found: Checkpoint | None, expected: Checkpoint) -> None:
    assert found is not None
    assert found.step == expected.step
    assert found.tensors.keys() == expected.tensors.keys()
    for name, value in expected.tensors.items():
        assert found.tensors[name].dtype == value.dtype
        assert torch.equal(found.tensors[name], value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def newest_quietly(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint of a folder; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_newest(folder)


def test_the_newest_by_step_is_loaded_and_few_are_kept(tmp_path: Path) -> None:
    for step in (5, 999, 1000, 20_000):  # as text, 999 comes after 1000
        save_checkpoint(tmp_path, at(step))
    assert_equal(newest_quietly(tmp_path), at(20_000))
    assert len(names(tmp_path)) == KEPT == 2
    assert names(tmp_path) == ["step-00001000", "step-00020000"]


@pytest.mark.parametrize("failing", ["write_tensors", "write_json", "digest_file"])
def test_an_interrupted_save_leaves_the_ones_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, at(step))
    original = getattr(checkpoint_module, failing)

    def then_dies(*arguments: object) -> None:
        original(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_module, failing, then_dies)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, at(3))
    monkeypatch.undo()
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    assert_equal(newest_quietly(tmp_path), at(2))


def test_what_a_killed_save_left_is_not_read(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, at(1))
    scratch = tmp_path / ".step-00000002.4242.tmp"
    scratch.mkdir()
    (scratch / "state.safetensors").write_bytes(b"half")
    (tmp_path / "step-00000009").write_bytes(b"a file of that name")
    assert_equal(newest_quietly(tmp_path), at(1))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


DAMAGE = {
    "one bit of the weights": lambda folder: flip_a_bit(folder / "state.safetensors"),
    "weights cut off": lambda folder: cut_off(folder / "state.safetensors"),
    "weights empty": lambda folder: (folder / "state.safetensors").write_bytes(b""),
    "weights lost": lambda folder: (folder / "state.safetensors").unlink(),
    "description cut off": lambda folder: cut_off(folder / "checkpoint.json"),
    "description lost": lambda folder: (folder / "checkpoint.json").unlink(),
    "description without digest": lambda folder: (folder / "checkpoint.json").write_text('{"step": 2}'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, at(step))
    DAMAGE[damage](tmp_path / "step-00000002")
    with pytest.warns(UserWarning, match="broken checkpoint skipped") as caught:
        found = load_newest(tmp_path)
    assert_equal(found, at(1))
    assert len(caught) == 1
    if damage != "description without digest":
        assert "step-00000002" in str(caught[0].message)
