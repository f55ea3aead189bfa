"""Checkpoints: safetensors and JSON in one folder, published by rename, verified by digest. Never a pickle."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from realm_lab.core.files import atomic_directory, digest_file, read_json, write_json
from realm_lab.errors import UserError
from realm_lab.models.folders import read_tensors, write_tensors

KEPT = 2


class Checkpoint(NamedTuple):
    """A training state: the number of finished steps, and every tensor by name."""

    step: int
    tensors: dict[str, Tensor]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, identity: Mapping[str, str | int] | None = None) -> None:
    """Write `folder`/step-N and remove all but the newest KEPT.

    `identity` says what the state belongs to (digests of tokenizer and corpus, the engine's version).
    """
    target = folder / f"step-{checkpoint.step:08d}"
    with atomic_directory(target) as scratch:
        write_tensors(scratch / "state.safetensors", checkpoint.tensors)
        described = {
            "step": checkpoint.step,
            "sha256": digest_file(scratch / "state.safetensors"),
            "identity": dict(identity or {}),
        }
        write_json(scratch / "checkpoint.json", described)
    for old in _existing(folder)[:-KEPT]:
        shutil.rmtree(old)


def load_newest(folder: Path, identity: Mapping[str, str | int] | None = None) -> Checkpoint | None:
    """The newest intact checkpoint; a broken one is named in a warning and the one before it is used.

    Raises:
        UserError: an intact one belongs to something else than `identity`: it is never skipped in silence.
    """
    for path in reversed(_existing(folder)):
        try:
            described = read_json(path / "checkpoint.json")
            if digest_file(path / "state.safetensors") != described["sha256"]:
                raise UserError(f"{path}: the digest of state.safetensors differs from checkpoint.json")
            step, found = int(described["step"]), dict(described["identity"])
            tensors = read_tensors(path / "state.safetensors")
        except (UserError, KeyError, TypeError, ValueError) as error:
            warnings.warn(f"broken checkpoint skipped: {error}", stacklevel=2)
            continue
        _check_identity(path, found, dict(identity or {}))
        return Checkpoint(step, tensors)
    return None


def _check_identity(path: Path, found: dict[str, str | int], wanted: dict[str, str | int]) -> None:
    for name in sorted({*found, *wanted}):
        if found.get(name) != wanted.get(name):
            raise UserError(
                f"{path}: it belongs to {name} {found.get(name)}, this run has {name} {wanted.get(name)}; "
                f"put back what it was made with, or delete {path.parent} to start the stage again"
            )


def module_tensors(name: str, module: nn.Module) -> dict[str, Tensor]:
    """A module's parameters as `name.parameter`, each shared one once."""
    return {f"{name}.{key}": value.detach() for key, value in module.named_parameters()}


def load_module(name: str, module: nn.Module, tensors: dict[str, Tensor], source: Path | str) -> None:
    """Copy `name.parameter` tensors into a module; a missing or differently shaped one is a UserError."""
    for key, parameter in module.named_parameters():
        value = tensors.get(f"{name}.{key}")
        if value is None:
            raise UserError(f"{source}: no tensor '{name}.{key}'; it was written by another model")
        if value.shape != parameter.shape:
            raise UserError(
                f"{source}: '{name}.{key}' has shape {tuple(value.shape)}, the parameters ask for "
                f"{tuple(parameter.shape)}"
            )
        parameter.data.copy_(value)


def _existing(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir())
