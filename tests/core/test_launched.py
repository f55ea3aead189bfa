"""Which of several processes this is, as its launcher tells it."""

from __future__ import annotations

import os

import pytest

from realm_lab.core.launched import Place, first_host, launched
from realm_lab.errors import UserError


def place(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Place:
    """What a process with these launcher's variables, and no others, thinks of itself."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "MASTER_")) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return launched()


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu7", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[07-09,12]",
}


def test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(monkeypatch) == Place(0, 1, 0, "127.0.0.1", 0)


def test_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(monkeypatch, **TORCHRUN) == Place(3, 4, 1, "gpu7", 29500)
    assert place(monkeypatch, **TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}) == Place()
    assert place(monkeypatch, **SRUN | TORCHRUN).size == 4  # torchrun within srun


def test_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    found = place(monkeypatch, **SRUN)
    assert found[:4] == (5, 8, 1, "gpu07")
    assert 1024 < found.port < 65536
    assert place(monkeypatch, **SRUN | {"SLURM_PROCID": "0"}).port == found.port  # all of a step meet at one
    assert place(monkeypatch, **SRUN | {"SLURM_STEP_ID": "1"}).port != found.port
    chosen = place(monkeypatch, **SRUN | {"MASTER_ADDR": "head", "MASTER_PORT": "4000"})
    assert chosen[3:] == ("head", 4000)


def test_a_batch_script_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told how many tasks its job may have; only srun starts them."""
    script = {name: value for name, value in SRUN.items() if "STEP" not in name}
    assert place(monkeypatch, **script) == Place()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu7,gpu8", "gpu7"),
        ("gpu[07-09,12],cpu3", "gpu07"),
        ("rack1-gpu[3,5]-ib,other", "rack1-gpu3-ib"),
        ("node.example.org", "node.example.org"),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_what_a_launcher_leaves_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without = {name: value for name, value in TORCHRUN.items() if name != "MASTER_PORT"}
    with pytest.raises(UserError, match="environment variable MASTER_PORT is missing, not a number; start with torchr"):
        place(monkeypatch, **without)
    with pytest.raises(UserError, match="environment variable RANK is 'two'"):
        place(monkeypatch, **TORCHRUN | {"RANK": "two"})
