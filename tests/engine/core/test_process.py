"""Several real processes (gloo) that share their work, and one that has no one to share with."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from realm_lab.engine.core import process
from realm_lab.engine.core.process import share
from realm_lab.errors import UserError
from realm_lab.records import launched as launched_module
from realm_lab.records.environment import OPENMP
from realm_lab.records.launched import Launched, cores, launched
from tests.factories.errors import refused
from tests.factories.processes import run_ranks


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 12, 13])
def test_shares_are_a_partition_into_nearly_equal_parts(monkeypatch: pytest.MonkeyPatch, size: int, count: int) -> None:
    parts = []
    for rank in range(size):
        monkeypatch.setattr(process, "ranks", lambda rank=rank: process.Ranks(rank, size))
        parts.append(list(range(count))[share(count)])
    assert [item for part in parts for item in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.slow
def test_what_ranks_say_to_each_other() -> None:
    """Sums, rows with their gradient, and work that is done once, even if it fails; rank r has r + 1 rows."""
    code = """
def once():
    raise UserError("the disk is full; free some space")
one, other = torch.full((2, 2), rank + 1.0), torch.tensor([10.0 ** rank])
sum_over_ranks_([one, other])
say([one.tolist(), other.tolist()])
say(summed(rank + 0.5, 3))
say([any_rank(rank == 2), any_rank(False)])
mine = (torch.arange(2.0 * (rank + 1)).view(-1, 2) + 10 * rank).requires_grad_()
rows = gather_rows(mine)
weight = torch.arange(1.0, 1 + rows.numel()).view_as(rows) * (rank + 1)
(rows * weight).square().sum().backward()
say([rows.tolist(), mine.grad.tolist()])
calls = []
say(on_first_rank(lambda: calls.append(ranks()) or {"by": rank, "saw": list(ranks())}))
say([len(calls), list(ranks())])
empty = gather_rows(torch.ones(0 if rank < 2 else 1, 3))
say(list(empty.shape))
try:
    on_first_rank(once)
except UserError as error:
    say(str(error))
say(summed(1.0))  # and they are still together
disconnect()
"""
    outcomes = run_ranks(code, 3)
    assert [code for code, _, _ in outcomes] == [0, 0, 0], outcomes
    held = [torch.arange(2.0 * (rank + 1)).view(-1, 2) + 10 * rank for rank in range(3)]
    every = torch.cat(held).requires_grad_()
    weight = torch.arange(1.0, 13.0).view(6, 2)
    sum((every * weight * factor).square().sum() for factor in (1, 2, 3)).backward()  # type: ignore[union-attr]
    assert every.grad is not None
    gradients = every.grad.split([1, 2, 3])
    for rank, (_, said, _) in enumerate(outcomes):
        assert said[0] == [[[6.0, 6.0], [6.0, 6.0]], [111.0]]
        assert said[1] == [4.5, 9]
        assert said[2] == [True, False]
        assert said[3] == [every.tolist(), gradients[rank].tolist()]
        assert said[4] == {"by": 0, "saw": [0, 1]}
        assert said[5] == [1 if rank == 0 else 0, [rank, 3]]
        assert said[6] == [1, 3]
        assert said[7:] == ["the disk is full; free some space", [3.0]]


FAILING = """
def work():
    if rank == 1:
        {failure}
    summed(1.0)
try:
    work()
    {then}
except UserError as error:
    announce_failure(error)
    say(str(error))
    {after}
    disconnect(failed=True)
    sys.exit(2)
"""
AGAIN = """
    try:
        summed(3.0)
    except UserError as error:
        say(str(error))
"""


@pytest.mark.slow
def test_a_rank_that_fails_tells_the_others_why() -> None:
    failure = 'raise UserError("out of memory; lower the batch")'
    code = FAILING.format(failure=failure, then="summed(2.0)", after=AGAIN.strip())
    outcomes = run_ranks(code, 2)
    assert [code for code, _, _ in outcomes] == [2, 2]
    expected = "another process of this run has ended: rank 1: out of memory; lower the batch; run again to resume"
    assert outcomes[0][1] == [expected, expected], "what a rank says for that reason does not hide the reason"
    assert outcomes[1][1][0] == "out of memory; lower the batch"


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_at_once() -> None:
    failure = "os.kill(os.getpid(), signal.SIGKILL)"
    outcomes = run_ranks(FAILING.format(failure=failure, then="summed(2.0)", after=""))
    assert [code for code, _, _ in outcomes] == [2, -9]
    assert outcomes[0][1][0].startswith("another process of this run has ended: killed, or out of reach (")


def test_an_exchange_of_gpus_begins_when_no_rank_asks_another(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []
    monkeypatch.setattr(process, "ranks", lambda: process.Ranks(0, 2))
    monkeypatch.setattr(process._Group, "questions", True)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: devices.append(tensor.device.type))
    process.sum_over_ranks_([torch.zeros(2, device="meta")])
    assert devices == ["cpu", "meta"]


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"RANK": "2", "WORLD_SIZE": "3", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"3 ranks or more on a machine with 2 GPUs; lower launch\.ranks"):
        process.pick_device("auto")
    monkeypatch.setenv("RANK", "1")
    assert process.pick_device("cuda") == torch.device("cuda", 1)
    assert process.pick_device("cpu") == torch.device("cpu")
    monkeypatch.delenv("WORLD_SIZE")
    assert process.pick_device("cuda:1") == torch.device("cuda", 1)
    with refused("cuda:2 was asked for but torch sees only 2"):
        process.pick_device("cuda:2")


OURS = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "MASTER_ADDR": "gpu07",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Launched(0, 1, 0, "127.0.0.1", 0)),
        (OURS, Launched(3, 4, 3, "127.0.0.1", 29500)),
        (OURS | {"WORLD_SIZE": "1", "RANK": "0"}, Launched()),
        (SRUN | OURS, Launched(3, 4, 3, "127.0.0.1", 29500)),  # our own launcher in a job
        (SRUN, Launched(5, 8, 1, "gpu07", 29500)),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, Launched()),
        # A batch script has the number of tasks of its job, but only srun starts them.
        ({name: value for name, value in SRUN.items() if "STEP" not in name}, Launched()),
    ],
)
def test_ranks_are_read_from_the_launcher(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: Launched
) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "MASTER_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched() == expected


def test_several_tasks_of_srun_without_an_address_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="SLURM_STEP_NUM_TASKS is 8, and MASTER_PORT is not set; start one task"):
        launched()


@pytest.mark.parametrize(
    ("listed", "files", "expected"),
    [
        ("0::/job/step", {"job/step/cpu.max": "max 100000", "job/cpu.max": "150000 100000"}, 1.5),
        ("0::/docker/of-the-host", {"cpu.max": "400000 100000"}, 4.0),  # a container sees its group at the root
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {}, None),
        (
            "5:cpuset:/\n4:cpu,cpuacct:/job\n0::/",
            {"cpu,cpuacct/job/cpu.cfs_quota_us": "200000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"},
            2.0,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_the_quota_of_a_control_group_is_read(
    tmp_path: Path, listed: str, files: dict[str, str], expected: float | None
) -> None:
    (tmp_path / "cgroup").write_text(f"{listed}\n")
    for name, value in files.items():
        path = tmp_path / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    assert launched_module._quota(tmp_path / "cgroup", tmp_path / "mounted") == expected


@pytest.mark.parametrize(
    ("variables", "quota", "expected"),
    [
        ({}, None, 16),
        ({}, 2.5, 2),
        ({}, 0.5, 1),
        ({"SLURM_CPUS_ON_NODE": "6", "SLURM_CPUS_PER_TASK": "3"}, None, 6),  # a batch script
        ({"SLURM_CPUS_ON_NODE": "6", "SLURM_CPUS_PER_TASK": "3", "SLURM_STEP_NUM_TASKS": "2"}, None, 3),
        ({"SLURM_CPUS_ON_NODE": "6", "SLURM_STEP_NUM_TASKS": "6"}, None, 1),
    ],
)
def test_no_more_cores_are_used_than_the_process_may(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], quota: float | None, expected: int
) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(launched_module, "_quota", lambda listed, mounted: quota)
    assert cores() == expected
    chosen: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    process.limit_threads(0)
    assert chosen == [expected] * (expected < 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "16")  # the user's choice
    process.limit_threads(0)
    assert len(chosen) == (expected < 16)


COMPUTED = """
import hashlib, json, os, realm_lab, torch
from realm_lab.records.environment import describe
torch.set_num_threads(2)
torch.manual_seed(0)
left, right = torch.randn(300, 256, requires_grad=True), torch.randn(256, 500)
(left @ right).softmax(-1).pow(2).sum().backward()
print(json.dumps([describe()["openmp"], hashlib.sha256(left.grad.numpy().tobytes()).hexdigest()]))
"""


@pytest.mark.slow
def test_how_threads_wait_is_the_users_choice_and_moves_no_bit() -> None:
    def computed(given: dict[str, str]) -> tuple[dict[str, str], str]:
        own = {name: value for name, value in os.environ.items() if name not in OPENMP}
        command = [sys.executable, "-c", COMPUTED]
        done = subprocess.run(command, env=own | given, capture_output=True, text=True, check=True)
        policy, bits = json.loads(done.stdout)
        return policy, bits

    policy, bits = computed({})
    assert set(policy) == {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
    assert computed({"OMP_WAIT_POLICY": "passive"}) == ({"OMP_WAIT_POLICY": "passive"}, bits)
    assert computed({"GOMP_SPINCOUNT": "7"}) == (policy | {"GOMP_SPINCOUNT": "7"}, bits)


REUSED = """
import ctypes
import resource
import sys
import torch
for option in (-1, -3):  # glibc's initial thresholds; otherwise chance decides how far they have grown
    ctypes.CDLL(None).mallopt(option, 1 << 17)
if sys.argv[1:]:
    import realm_lab.engine.core.process

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):  # activations of some layers, freed together
        held = [torch.ones(1000 * size) for size in (50, 3000, 200, 7000, 20, 900, 4000, 6) * 6]
        held[::2] = [None] * 24
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc")
def test_freed_memory_is_used_again() -> None:
    """A page fault is a page that the kernel gives: without our setting most pages are given once more."""

    def faults(*ours: str, **environment: str) -> int:
        given = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", REUSED, *ours]
        return int(subprocess.run(command, env=given | environment, capture_output=True, check=True).stdout)

    without = faults()
    assert faults("ours") < without / 4
    theirs = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
    assert faults("ours", **theirs) > without / 4, "what the user set is kept"
