"""Which of several processes this is, as its launcher tells it."""

from __future__ import annotations

import os

import pytest

from realm_lab.core.launched import Place, launched


def place(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Place:
    """What a process with these launcher's variables, and no others, thinks of itself."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "MASTER_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return launched()


OURS = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "MASTER_ADDR": "gpu07",
    "MASTER_PORT": "29500",
}


def test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(monkeypatch) == Place(0, 1, 0, "127.0.0.1", 0)


def test_our_own_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(monkeypatch, **OURS) == Place(3, 4, 3, "127.0.0.1", 29500)
    assert place(monkeypatch, **OURS | {"WORLD_SIZE": "1", "RANK": "0"}) == Place()
    assert place(monkeypatch, **SRUN | OURS).size == 4  # in a job


def test_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(monkeypatch, **SRUN) == Place(5, 8, 1, "gpu07", 29500)
    assert place(monkeypatch, **SRUN | {"SLURM_STEP_NUM_TASKS": "1"}) == Place()


def test_a_batch_script_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told how many tasks its job may have; only srun starts them."""
    script = {name: value for name, value in SRUN.items() if "STEP" not in name}
    assert place(monkeypatch, **script) == Place()
