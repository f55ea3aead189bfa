"""Checkpoints: safetensors and JSON in one folder, published by rename, verified by digest. Never a pickle."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from realm_lab.engine.models.folders import load_named, read_tensors, write_tensors
from realm_lab.errors import UserError
from realm_lab.records.files import atomic_directory, digest_file, read_json, remove_directory, write_json

KEPT = 2


class Checkpoint(NamedTuple):
    """A training state: the number of finished steps, every tensor by name, and the operations counted so far."""

    step: int
    tensors: dict[str, Tensor]
    flop: float = 0.0


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write `folder`/step-N and remove all checkpoints except the newest KEPT."""
    target = folder / f"step-{checkpoint.step:08d}"
    with atomic_directory(target) as scratch:
        write_tensors(scratch / "state.safetensors", checkpoint.tensors)
        sha256 = digest_file(scratch / "state.safetensors")
        described = {"step": checkpoint.step, "flop": checkpoint.flop, "sha256": sha256}
        write_json(scratch / "checkpoint.json", described)
    for old in _existing(folder)[:-KEPT]:
        remove_directory(old)


def load_newest(folder: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint; a broken one is named in a warning and the one before it is used."""
    for path in reversed(_existing(folder)):
        try:
            described = read_json(path / "checkpoint.json")
            if digest_file(path / "state.safetensors") != described["sha256"]:
                raise UserError("the digest of state.safetensors differs from checkpoint.json", path=path)
            tensors = read_tensors(path / "state.safetensors")
            return Checkpoint(int(described["step"]), tensors, float(described["flop"]))
        except (UserError, KeyError, TypeError, ValueError) as error:
            warnings.warn(f"broken checkpoint skipped: {error}", stacklevel=2)
    return None


def module_tensors(name: str, module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters as `name.parameter`, each shared parameter once."""
    return {f"{name}.{key}": value.detach() for key, value in module.named_parameters()}


def load_module(name: str, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `name.parameter` tensors into a module."""
    load_named(module, tensors, {key: f"{name}.{key}" for key, _ in module.named_parameters()}, "checkpoint")


def _existing(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir())
