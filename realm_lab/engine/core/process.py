"""Devices, threads, and the processes ("ranks") that share one run.

Data parallel in short: every rank draws the same global batch (a pure function of the step), computes only its
contiguous `share` of it, and divides by the *global* count, so that the ranks' losses and gradients add up to the
batch's. All ranks call the same functions in the same order. Work that must happen once, such as writing files, is done
if `ranks().rank == 0`, or in `on_first_rank`. With one process the exchanges do nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from realm_lab.errors import UserError
from realm_lab.records.launched import STOP_SIGNALS, cores, launched

# Options of glibc's mallopt. By default glibc gives large freed blocks back to the kernel, so every training step pays
# a page fault per new page. With these options the process keeps freed memory for the next step.
KEEPING = {"M_TRIM_THRESHOLD": (-1, 1 << 30), "M_MMAP_THRESHOLD": (-3, 1 << 25)}  # name -> number of the option, bytes
TIMEOUT = timedelta(minutes=30)  # of one exchange; a process that ends is noticed at once
POLL_SECONDS = 0.05


class RankLost(UserError):
    """Another rank disappeared (killed, or its node went down). This is not a failure of the run itself."""


class Ranks(NamedTuple):
    """Number of this process, and how many processes share the run."""

    rank: int
    size: int


class _Group:
    """Connection of this process to the other ranks. `connect` sets the store for messages."""

    store: Store | None = None
    messages = 0
    alone = False
    questions = False  # another rank may ask this one at any time (peers.py)


def keep_freed_memory() -> None:
    """Keep freed memory in this process, if the C library is glibc. Options that the user has set stay."""
    change = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    for name, (option, size) in KEEPING.items():
        if change is not None and f"{name.replace('M_', 'MALLOC_', 1)}_" not in os.environ:
            change(option, size)


keep_freed_memory()  # on import, since this module loads torch, which allocates


def pick_device(name: str) -> torch.device:
    """Return this process's device; `auto` is a GPU if there is one. Ranks on one machine get separate GPUs. UserError:
    torch sees no such device, or too few."""
    device = device_named(name)
    found = int(torch.get_device_module(device).device_count())
    if (device.index or 0) >= found:
        seen = f"only {found}" if found else "none"
        raise UserError(f"parameter 'launch.device': {name} was asked for but torch sees {seen}; use auto or cpu")
    group = launched()
    if device.type == "cpu" or group.size == 1:
        return device
    if group.local_rank >= found:
        remedy = "lower launch.ranks, or set launch.device to cpu"
        raise UserError(f"{group.local_rank + 1} ranks or more on a machine with {found} GPUs; {remedy}")
    return torch.device(device.type, group.local_rank)


def device_named(name: str) -> torch.device:
    """Return the torch device of a name; this machine may have none. UserError: torch knows no such device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.get_device_module(device).device_count()
    except (RuntimeError, AttributeError):  # no such name, or a kind of device that cannot compute
        problem = f"parameter 'launch.device': torch knows no device {name!r}"
        raise UserError(problem, parameter="launch.device", remedy="use auto, cpu or cuda") from None
    return device


def to_device(values: Tensor | np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device without blocking, from pinned memory. Without pinned memory the copy would wait for the
    kernels that run."""
    here = torch.as_tensor(values)
    return here if device.type == "cpu" else here.pin_memory().to(device, non_blocking=True)


def limit_threads(threads: int) -> None:
    """Use `threads` cores in this process. 0: as many as torch chooses; if OMP_NUM_THREADS is not set, no more than the
    process may use."""
    if not threads and "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > cores():
        threads = cores()
    if threads:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Use bfloat16 for matrix products if `precision` asks for it; scores, losses and weights stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def shared_casts(device: torch.device) -> AbstractContextManager[object]:
    """Cast each trained weight only once for all `autocast` blocks inside, as torch keeps its casts until the outermost
    block ends. This block casts nothing itself."""
    return torch.autocast(device.type, torch.bfloat16, enabled=False)


def connect(device: torch.device) -> None:
    """Connect to the other ranks, if there are any: by gloo for tensors on the CPU, and by torch's backend of the
    device for tensors on it (NCCL for CUDA). UserError: the ranks did not meet."""
    group = launched()
    if group.size == 1 or dist.is_initialized():
        return
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = group.address, str(group.port)
    if group.address in ("127.0.0.1", "localhost") and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # so that the host's name need not be resolved
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    try:
        store, rank, size = next(rendezvous("env://", group.rank, group.size, timeout=TIMEOUT))
        kinds = dict.fromkeys(("cpu", device.type))
        backend = ",".join(f"{kind}:{dist.get_default_backend_for_device(kind)}" for kind in kinds)
        dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=size)
    except RuntimeError as error:
        where = f"{group.address}:{group.port}"
        raise UserError(f"the {group.size} processes of this run did not meet at {where}: {_line(error)}") from None
    _Group.store = PrefixStore("messages", store)


def disconnect(failed: bool = False) -> None:
    """Leave the process group, since gloo's threads would abort a process that just exits. `failed`: a rank has failed,
    and no rank is waited for."""
    if failed and torch.cuda.is_initialized():
        return  # NCCL would wait for the failed rank
    if dist.is_initialized():
        if not failed:
            sum_over_ranks_([torch.zeros(1)])  # wait for slower ranks, which may still ask this one (peers.py)
        dist.destroy_process_group()
    _Group.store, _Group.messages = None, 0


def ranks() -> Ranks:
    """Return this process's number, and the number of processes."""
    if _Group.alone or not dist.is_initialized():
        return Ranks(0, 1)
    return Ranks(dist.get_rank(), dist.get_world_size())


def share(count: int) -> slice:
    """Return this rank's contiguous part of `count` items; sizes differ by at most one."""
    return share_of(count, *ranks())


def share_of(count: int, rank: int, size: int) -> slice:
    """Return the part of `count` items that belongs to number `rank` of `size` ranks."""
    return slice(rank * count // size, (rank + 1) * count // size)


def sum_over_ranks_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over the ranks, in one exchange, with the same bits on every rank.

    The tensors have one type, are on one device, and have the same shapes on every rank.
    """
    if ranks().size == 1 or not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    with exchange():
        if _Group.questions and not flat.is_cpu:
            # Deadlock: a GPU answers a question only after this all_reduce, which waits for the rank that asks.
            # So meet on the CPU first: once all ranks are here, none asks.
            dist.all_reduce(torch.zeros(1))
        dist.all_reduce(flat)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def summed(*numbers: float) -> list[float]:
    """Sum each number over the ranks, in float64."""
    if ranks().size == 1:
        return list(numbers)
    values = torch.tensor(numbers, dtype=torch.float64)
    sum_over_ranks_([values])
    return [float(value) for value in values]


def gather_rows(tensor: Tensor) -> Tensor:
    """Gather the rows of all ranks in rank order, [sum of rows, ...]; ranks may hold different numbers of rows.

    Differentiable: the gradient of a rank's rows sums the contributions of all ranks' losses.
    """
    rank, size = ranks()
    if size == 1:
        return tensor
    counts = torch.zeros(size, dtype=torch.int64, device=tensor.device)
    counts[rank] = len(tensor)
    sum_over_ranks_([counts])
    rows = counts.tolist()
    start = sum(rows[:rank])
    own_rows = tensor.new_zeros(sum(rows), *tensor.shape[1:])  # zero in the rows of other ranks
    own_rows[start : start + len(tensor)] = tensor
    gathered: Tensor = _SumOverRanks.apply(own_rows)  # type: ignore[no-untyped-call]
    return gathered


class _SumOverRanks(torch.autograd.Function):
    """Sum a tensor over the ranks; backward sums the gradients of all ranks' losses."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        summed = tensor.clone()
        sum_over_ranks_([summed])
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _SumOverRanks.forward(ctx, gradients[0])


def any_rank(flag: bool) -> bool:
    """Return true on every rank if `flag` is true on any rank."""
    return summed(float(flag))[0] > 0


def on_first_rank(work: Callable[[], Any]) -> Any:
    """Run `work` on rank 0 only, and return its result (plain JSON) on every rank.

    The other ranks wait, however long it takes. Inside `work`, `ranks()` reports one process. If `work` fails, every
    rank raises an error.
    """
    rank, size = ranks()
    if size == 1:
        return work()
    store = _Group.store
    assert store is not None
    _Group.messages += 1
    key = f"first/{_Group.messages}"
    if rank == 0:
        _Group.alone = True
        try:
            result = work()
            store.set(key, json.dumps({"result": result}))
        except BaseException as error:
            store.set(key, json.dumps({"error": _line(error)}))
            raise
        finally:
            _Group.alone = False
        return result
    with exchange():
        while not store.check([key]):
            time.sleep(POLL_SECONDS)
        answer = json.loads(store.get(key))
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["result"]


def of_all_ranks(text: str) -> list[str]:
    """Return the texts of all ranks, in rank order."""
    rank, size = ranks()
    store = _Group.store
    assert store is not None
    _Group.messages += 1
    key = f"text/{_Group.messages}/"
    store.set(key + str(rank), text)
    with exchange():
        return [store.get(key + str(other)).decode() for other in range(size)]


def expect_questions() -> None:
    """Note that ranks will ask each other questions (peers.py); sums over GPUs then wait for all ranks first."""
    _Group.questions = True


def announce_failure(error: BaseException) -> None:
    """Publish an error so that the other ranks can report it when their next exchange fails. Only the first error is
    kept, since it causes the later ones."""
    if isinstance(error, RankLost):
        return
    with suppress(RuntimeError):  # the rank with the store is gone, so no rank could read the error
        if _Group.store is not None:
            _Group.store.compare_set("failure", "", f"rank {launched().rank}: {_line(error)}")


@contextmanager
def exchange() -> Iterator[None]:
    """Replace the error of a failed exchange by one that names the failed rank and its reason, if known."""
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        kind: type[UserError] = RankLost
        cause = f"killed, or out of reach ({_line(error)[:160]})"
        with suppress(RuntimeError):  # the rank with the store is gone
            if _Group.store is not None and _Group.store.check(["failure"]):
                kind, cause = UserError, _Group.store.get("failure").decode()
        raise kind(f"another process of this run has ended: {cause}; run again to resume") from None


class StopRequest:
    """The first of STOP_SIGNALS that the process received; 0: none yet."""

    signal_number = 0

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal. A later SIGTERM ends the process at once, except in a SLURM job, which may get
        SIGTERM twice."""
        if not self.signal_number:
            self.signal_number = number
        elif number == signal.SIGTERM and "SLURM_JOB_ID" not in os.environ:
            sys.exit(128 + number)


@contextmanager
def stop_signals_noted() -> Iterator[StopRequest]:
    """Note stop signals inside the block instead of ending at once, so that work can save its state first."""
    request = StopRequest()
    before = {number: signal.signal(number, request.note) for number in STOP_SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
