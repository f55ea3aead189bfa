"""Every stage on the pretend accelerator, or on the device that REALM_LAB_TEST_DEVICE names.

test_accelerator.py and test_gpu.py run this in a separate process: autograd counts the devices once, before its first
backward pass.
"""

import itertools
import os
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.cli import main
from realm_lab.engine.core.process import autocast, pick_device
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.params.sections import IndexSearch
from realm_lab.engine.retrieval.approximate import approximate_search
from realm_lab.engine.retrieval.exact import ExactSearch
from realm_lab.engine.training.finetune import FinetuneTask
from realm_lab.engine.training.pretrain import PretrainTask
from realm_lab.engine.training.warm_start import WarmStartTask
from realm_lab.errors import UserError
from tests import tiny
from tests.device import planted, pretend
from tests.device.waits import Waits
from tests.whole import Whole

NAME = os.environ.get("REALM_LAB_TEST_DEVICE", "realm")
DEVICE = pretend.load() if NAME == "realm" else torch.device(NAME, 0)
CLOSE = 1e-4  # relative: the device has another attention kernel, and 12 training steps amplify its rounding
STEPS = 4
SHORT = {"pretrain.steps": STEPS, "pretrain.null_document": "learned", "pretrain.refresh.interval_steps": 3}

SEARCH = {  # a step asks the index, and exact search decides by values which rows it scores once more
    "engine/retrieval/exact.py __init__: number": 1,  # the largest query, which bounds the error
    "engine/retrieval/exact.py scores: number": 1,
    "engine/retrieval/search.py checked_queries: number": 1,
    "engine/retrieval/exact.py search: size": 2,
    "engine/retrieval/exact.py _search: to host": 1,
    "engine/retrieval/exact.py candidates: number": 1,
    "engine/retrieval/exact.py candidates: size": 2,
    "engine/retrieval/search.py add_: number": 1,
    "engine/retrieval/search.py add_: size": 1,
    "engine/retrieval/retriever.py find: to host": 1,  # the rows found, whose wordpieces are on the host
}
NORM = {"engine/training/optimiser.py step: number": 1}  # of the gradients: logged, and no step if it is not finite
NORMS = {"engine/training/optimiser.py step: number": 2}  # those of reader and retriever
WAITS: dict[tuple[type, str], dict[str, int]] = {
    (WarmStartTask, "_reader_step"): {
        "engine/training/warm_start.py _reader_step: to host": 1,
        **NORM,
    },  # the loss, first
    (WarmStartTask, "_embedder_step"): {"engine/training/warm_start.py _embedder_step: to host": 1, **NORM},
    (PretrainTask, "train_step"): {
        **SEARCH,
        **NORMS,
        "engine/retrieval/search.py pairs: size": 2,  # the passages that an origin is left out of
        "engine/training/pretrain.py train_step: number": 1,  # the loss: logged, and the run ends if it is not finite
        "engine/training/watch.py health_means: to host": 1,  # logged, and watched for a collapse
    },
    (FinetuneTask, "train_step"): {
        **SEARCH,
        **NORMS,
        "engine/training/finetune.py _backward: to host": 1,
    },  # the loss and its parts
}


def on(device: str, **overrides: Any) -> Params:
    return tiny.params({"launch.device": device, **overrides})


class Line:
    """The tiny pipeline on the CPU, and folders to run a stage again."""

    def __init__(self, folder: Path):
        self.folder, self._count = folder, itertools.count()
        self._cpu: dict[str, Any] = {}
        tiny.prepare(on("cpu"), folder / "cpu")

    def cpu(self, stage: str, **overrides: Any) -> Any:
        """The outcome of a stage on the CPU."""
        key = repr((stage, overrides))
        if key not in self._cpu:
            for name in tiny.STAGES[: tiny.STAGES.index(stage) + 1]:
                found = tiny.outcome(tiny.run(name, on("cpu", **overrides), self.folder / "cpu"))
            self._cpu[key] = found
        return self._cpu[key]

    def without(self, *stages: str, **overrides: Any) -> Path:
        """A copy of the CPU's folder without these stages and without the embeddings."""
        root = self.folder / f"root-{next(self._count)}"
        shutil.copytree(self.folder / "cpu", root, ignore=shutil.ignore_patterns("embeddings"))
        for stage in stages:
            shutil.rmtree(tiny.stage_run(stage, on("cpu", **overrides), root).path, ignore_errors=True)
        return root


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Line:
    return Line(tmp_path_factory.mktemp("line"))


@pytest.fixture(scope="module")
def on_device(line: Line) -> Path:
    """The folder of all stages run on the device."""
    line.cpu("evaluate")
    root = line.without(*tiny.STAGES)
    for stage in tiny.STAGES:
        tiny.run(stage, on(NAME), root)
    return root


def numbers(value: Any, path: str = "") -> dict[str, float]:
    """Every number of nested results, by its path."""
    if isinstance(value, dict):
        return {name: number for key in value for name, number in numbers(value[key], f"{path}/{key}").items()}
    if isinstance(value, list):
        return {name: number for at, each in enumerate(value) for name, number in numbers(each, f"{path}/{at}").items()}
    return {path: float(value)} if isinstance(value, int | float) else {}


def assert_close(found: Any, wanted: Any) -> None:
    """Compare every metric and result."""
    mine, theirs = numbers(list(found[1:])), numbers(list(wanted[1:]))
    assert mine.keys() == theirs.keys()
    assert mine == pytest.approx(theirs, rel=CLOSE, abs=CLOSE, nan_ok=True)


def two_attempts(line: Line, patches: pytest.MonkeyPatch, device: str = NAME, then: str = NAME, **chosen: Any) -> Any:
    """Return the outcome of a short pre-training, with a checkpoint after each step, killed after two and resumed."""
    line.cpu("warm_start")
    root, overrides = line.without("pretrain", **SHORT | chosen), SHORT | chosen
    original = PretrainTask.train_step

    def train_step(task: PretrainTask, step: int) -> dict[str, float]:
        with Waits() as waits:
            values = original(task, step)
        if task.retriever.device == DEVICE and "pretrain.search.backend" not in chosen:
            assert waits.found == WAITS[PretrainTask, "train_step"]
        return values

    ticking = SimpleNamespace(monotonic=itertools.count(step=2).__next__)
    patches.setattr("realm_lab.engine.training.loop.time", ticking)
    patches.setattr(PretrainTask, "train_step", train_step)
    faster = {"launch.checkpoint_interval_seconds": 1}
    with tiny.steps_done(PretrainTask, killed_at=2):
        tiny.run("pretrain", on(device, **overrides | faster), root)
    return tiny.outcome(tiny.run("pretrain", on(then, **overrides | faster), root))


# The device itself


def test_it_refuses_what_a_real_one_refuses() -> None:
    here, there = torch.ones(2, 3), torch.ones(2, 3, device=DEVICE)
    assert not there.is_cpu
    for work in (
        lambda: here + there,
        lambda: there.T @ here,
        lambda: there.masked_fill(here > 0, 0.0),
        lambda: there.gather(1, torch.zeros(2, 1, dtype=torch.int64)),
        lambda: torch.cat([here, there]),
        lambda: torch.where(there > 0, here, there),
    ):
        with pytest.raises(RuntimeError, match=r"on the same device|on cpu"):
            work()
    with pytest.raises(NotImplementedError, match="no kernel on an accelerator"):
        torch.histogram(there, 2)
    with pytest.raises(TypeError, match="convert realm:0"):
        there.numpy()
    assert torch.equal((there * torch.tensor(2.0)).cpu(), 2 * here)  # a number may come from the host
    assert torch.equal(there[torch.tensor([1])].cpu(), here[1:])  # and an index


def test_copies_that_do_not_block_are_there_when_the_host_has_waited() -> None:
    values = torch.arange(4.0)
    there = values.to(DEVICE, non_blocking=True)
    values.zero_()  # not pinned: was copied at once
    here = there.to("cpu", non_blocking=True)
    assert here.isnan().all()
    torch.accelerator.synchronize()
    assert here.tolist() == [0.0, 1.0, 2.0, 3.0]
    pinned = torch.arange(4.0).pin_memory()
    assert pinned.is_pinned()
    assert not values.is_pinned()
    there = pinned.to(DEVICE, non_blocking=True)
    pinned.zero_()  # before the copy is made
    assert there.cpu().tolist() == [0.0] * 4


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_autocast_takes_the_type_of_the_parameters(precision: str) -> None:
    left = torch.randn(2, 3, device=DEVICE)
    with autocast(DEVICE, precision):
        assert (left @ left.T).dtype == getattr(torch, precision)
        assert left.softmax(-1).dtype == torch.float32


def test_a_device_is_asked_for_by_the_name_that_torch_has_for_it() -> None:
    assert pick_device(NAME) == torch.device(NAME)
    assert pick_device("auto").type in ("cpu", "cuda")
    for name in ("cuda:9", "gpu", "meta") if not torch.cuda.is_available() else ("gpu", "meta"):
        with pytest.raises(UserError, match=r"parameter 'launch\.device'"):
            pick_device(name)


# The pipeline


@pytest.mark.parametrize("stage", tiny.STAGES)
def test_every_stage_gives_the_numbers_of_the_cpu(line: Line, on_device: Path, stage: str) -> None:
    assert_close(tiny.outcome(tiny.stage_run(stage, on(NAME), on_device)), line.cpu(stage))


def test_bfloat16_gives_the_numbers_of_the_cpu(line: Line) -> None:
    chosen = {**SHORT, "model.precision": "bfloat16"}
    wanted = line.cpu("pretrain", **chosen)
    root = line.without("pretrain", **chosen)
    found = tiny.outcome(tiny.run("pretrain", on(NAME, **chosen), root))
    losses = [[row["loss"] for row in each[1] if "loss" in row] for each in (found, wanted)]
    assert len(losses[0]) == STEPS
    assert losses[0] == pytest.approx(losses[1], rel=0.01)  # bfloat16 keeps 8 bits


@pytest.mark.parametrize("backend", ["exact", "faiss_flat"])
def test_the_search_finds_what_the_cpu_finds(backend: str) -> None:
    if backend != "exact":
        pytest.importorskip("faiss")
    make = approximate_search(IndexSearch(backend=backend), 0)
    generator = np.random.default_rng(0)
    rows_ND, query_BD = (torch.from_numpy(generator.standard_normal((n, 16), np.float32)) for n in (3000, 7))
    exact = ExactSearch(rows_ND.to(DEVICE))
    found = (make(rows_ND.to(DEVICE), exact) if make else exact).search(query_BD.to(DEVICE), 10)
    assert found.rows_BK.device == DEVICE
    assert torch.equal(found.rows_BK.cpu(), ExactSearch(rows_ND).search(query_BD, 10).rows_BK)


@pytest.mark.parametrize(("device", "then"), [(NAME, NAME), (NAME, "cpu"), ("cpu", NAME)])
def test_a_killed_run_goes_on(line: Line, monkeypatch: pytest.MonkeyPatch, device: str, then: str) -> None:
    wanted, root = line.cpu("pretrain", **SHORT), line.without("pretrain", **SHORT)
    whole = tiny.outcome(tiny.run("pretrain", on(device, **SHORT), root))
    found = two_attempts(line, monkeypatch, device, then)
    assert_close(found, wanted)
    assert (found == whole) == (device == then)  # to the bit


@pytest.mark.parametrize(("task", "name"), WAITS)
def test_where_the_host_waits_in_a_step(line: Line, monkeypatch: pytest.MonkeyPatch, task: type, name: str) -> None:
    stage = {WarmStartTask: "warm_start", PretrainTask: "pretrain", FinetuneTask: "finetune"}[task]
    line.cpu(stage)
    seen, original = [], getattr(task, name)

    def one_step(self: Any, step: int) -> dict[str, float]:
        with Waits() as waits:
            values = original(self, step)
        seen.append(waits.found)
        return values

    monkeypatch.setattr(task, name, one_step)
    tiny.run(stage, on(NAME), line.without(stage))
    most = max(map(Counter.total, seen))
    if task is FinetuneTask:  # no loss if no question of a step finds its answer
        seen = [found for found in seen if found.total() == most]
    assert all(found == WAITS[task, name] for found in seen)


class OnDevice(Whole):
    """Systems with the tiny parameters, on the device."""

    def set(self, values: dict[str, Any]) -> None:
        super().set(values)
        path = self.root / "params.yaml"
        path.write_text(path.read_text().replace("device: cpu", f"device: {NAME}"))


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> tuple[Whole, Whole]:
    return OnDevice(tmp_path_factory.mktemp("realm")), Whole(tmp_path_factory.mktemp("cpu"))


@pytest.mark.parametrize("system", ["dpr", "bm25_dpr_reader", "hard_em", "closed_book", "fid", "rag", "orqa"])
def test_other_systems_give_the_numbers_of_the_cpu(systems: tuple[Whole, Whole], system: str) -> None:
    found, wanted = (numbers(whole.results(system)) for whole in systems)
    clocks = [name for name in wanted if "second" in name or "time" in name]
    assert {**found, **dict.fromkeys(clocks, 0.0)} == pytest.approx(
        {**wanted, **dict.fromkeys(clocks, 0.0)}, rel=CLOSE, abs=CLOSE, nan_ok=True
    )


# realm-lab doctor --gpu


def doctor(capsys: pytest.CaptureFixture[str], folder: Path) -> tuple[int, dict[str, str]]:
    """The exit code, and the state of each check."""
    options = ["--preset", "smoke", "--set", f"launch.device={NAME}", "--root", str(folder)]
    code = main(["doctor", "--gpu", *options])
    said = [words.split() for words in capsys.readouterr().out.splitlines()]
    return code, {words[1]: words[0] for words in said if words[0] in ("OK", "note", "wrong")}


def test_the_doctor_tries_the_device(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = dict.fromkeys(("device", "bfloat16", "search", "training", "resume"), "OK")
    notes = dict.fromkeys(("FAISS", "exchange"), "note")
    assert doctor(capsys, tmp_path) == (0, right | notes)
    planted.PLANTED["moments_loaded_to_the_host"][0](monkeypatch)
    code, states = doctor(capsys, tmp_path)
    assert code == 1
    assert {name for name, state in states.items() if state == "wrong"} == {"resume"}


# Planted errors, which the checks above must find


def test_nothing_is_wrong_with_what_errors_are_planted_in(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = line.cpu("pretrain", **SHORT | planted.FAISS)
    assert_close(two_attempts(line, monkeypatch, **planted.FAISS), wanted)


@pytest.mark.parametrize("name", planted.PLANTED)
def test_a_planted_error_is_caught(line: Line, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plant, overrides = planted.PLANTED[name]
    wanted = line.cpu("pretrain", **SHORT | overrides)
    plant(monkeypatch)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        assert_close(two_attempts(line, monkeypatch, **overrides), wanted)
    print(f"{name}: {type(caught.value).__name__}: {str(caught.value).strip().splitlines()[0][:200]}")
