"""The builder process and its supervision: it may be killed, hang, fail, be alone no longer; nothing is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from realm_lab.core.files import write_json
from realm_lab.core.lease import drop_torn
from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.initial import new_embedder
from realm_lab.retrieval import index
from realm_lab.retrieval.building import store_lock
from realm_lab.retrieval.generation import GenerationStore, embedder_digest
from realm_lab.systems import supervisor
from realm_lab.systems.builder import RequestedBuilds
from realm_lab.systems.context import Context
from realm_lab.systems.identity import plan_run
from realm_lab.systems.supervisor import ProcessBuilder
from tests.systems.builders import LONG_ENOUGH_SECONDS, faulty, published, submit_and_wait, warm_started

REPOSITORY = Path(__file__).resolve().parents[2]
DYING = Path(__file__).with_name("dying_builder.py")
CHANGES: dict[str, Any] = {
    "pretrain.steps": 12,
    "pretrain.refresh.interval_steps": 3,
    "pretrain.refresh.delay_steps": 2,
    "evaluate.interval_steps": 6,
    "evaluate.cloze_sentences": 2,
    "evaluate.questions": 2,
    "launch.checkpoint_interval_seconds": 1000,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_started(CHANGES, tmp_path_factory.mktemp("builder") / "start")


def killed_and_whole(
    tiny: ModuleType, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[int | str]
) -> tuple[str, ...]:
    """Training with a builder to which this happens is training without a builder; the run's flags."""
    monkeypatch.setattr(index, "EMBED_CHUNK_ROWS", 64)  # as the dying builder's: the same groups, the same bits
    whole = Path(shutil.copytree(start, tmp_path / "whole"))
    expected = tiny.outcome(tiny.run("pretrain", tiny.params(CHANGES), whole))
    root = Path(shutil.copytree(start, tmp_path / "killed"))
    orders = tmp_path / "deaths.json"
    orders.write_text(json.dumps(events))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(supervisor, "COMMAND", (sys.executable, str(DYING), str(orders)))
    launch = {"launch.builder": "process", "launch.builder_backoff_seconds": 0, "launch.builder_failures": len(events)}
    run = tiny.run("pretrain", tiny.params(CHANGES | launch), root)
    assert tiny.outcome(run) == expected
    assert Path(f"{orders}.starts").stat().st_size == len(events) + 1
    restarts = [row["builder_restarts"] for row in run.metrics.rows() if "builder_restarts" in row]
    assert restarts[-1] == len(events)
    flags: tuple[str, ...] = run.status().flags
    return flags


def test_a_builder_killed_twice_loses_nothing(
    tiny: ModuleType, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = killed_and_whole(tiny, start, tmp_path, monkeypatch, [250, 900])
    assert flags == ("builder of the index failed: it ended with code -9: it said nothing",)


def test_training_goes_on_while_the_builder_finds_the_disk_full(
    tiny: ModuleType,
    start: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [flag] = killed_and_whole(tiny, start, tmp_path, monkeypatch, ["full", "full"])
    line = r"builder of the index failed: it ended with code 2: \S+/shard-0000\d.bin: the disk is full: \d+ bytes are "
    line += r"needed, \d+ are free; make room and run again, which goes on from here"
    assert re.fullmatch(line, flag)
    told = [text for text in capsys.readouterr().err.splitlines() if text.startswith("builder")]
    assert len(told) == 2
    for text in told:
        assert re.fullmatch(line + "; training goes on with the old index, next attempt in 0 s", text)


@pytest.mark.slow
def test_a_builder_killed_at_ten_random_moments_loses_nothing(
    tiny: ModuleType, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = np.exp(np.random.default_rng(4).uniform(np.log(10), np.log(4000), size=10)).astype(int)
    killed_and_whole(tiny, start, tmp_path, monkeypatch, events.tolist())


def test_a_builder_that_crashes_is_started_again_and_then_given_up(tmp_path: Path, embedder: Embedder) -> None:
    with faulty(tmp_path / "index", "raise SystemExit('no luck today')") as builder:
        builder.submit(3, embedder)
        builder.tend()  # training goes on
        with pytest.raises(
            UserError, match=r"failed 3 times in a row, .* code 1: no luck today; see builder/builder.log"
        ):
            builder.wait(3, embedder)
        assert builder.restarts == 2


def test_restarts_wait_twice_as_long_each_time(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    starts: list[float] = []

    def start(self: ProcessBuilder) -> None:
        starts.append(now[0])
        self._process = subprocess.Popen([sys.executable, "-S", "-c", ""], stdin=subprocess.PIPE)
        self._process.wait()

    def sleep(seconds: float) -> None:
        now[0] += 0.5

    monkeypatch.setattr(ProcessBuilder, "_start", start)
    monkeypatch.setattr(ProcessBuilder, "_last_words", lambda self: "")
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with faulty(tmp_path / "index", "", backoff_seconds=4.0, failures=3) as builder:
        builder.submit(3, embedder)
        with pytest.raises(UserError, match="failed 4 times"):
            builder.wait(3, embedder)
    assert np.diff(starts).round().tolist() == pytest.approx([4, 8, 16], abs=1.01)


def test_a_builder_that_hangs_is_killed(tmp_path: Path, embedder: Embedder) -> None:
    with faulty(tmp_path / "index", "import time; time.sleep(1000)", silence_seconds=0.3, failures=1) as builder:
        builder.submit(3, embedder)
        first = builder._process
        assert first is not None
        with pytest.raises(UserError, match=r"failed 2 times in a row, at last: it was silent for 0.3 s"):
            builder.wait(3, embedder)
        assert first.returncode == -9


def test_a_sign_of_life_is_not_swept_away_while_it_is_written(tmp_path: Path) -> None:
    """The trainer deletes unfinished files among the generations; the builder writes its own without their lock."""
    half_written = (tmp_path / supervisor.HEARTBEAT).with_name(".alive.json.1.tmp")
    half_written.parent.mkdir()
    half_written.touch()
    with store_lock(tmp_path):
        drop_torn(tmp_path)
    assert half_written.exists()


def test_a_sign_of_life_keeps_a_slow_builder(tmp_path: Path, embedder: Embedder) -> None:
    folder = tmp_path / "index"
    code = f"""
import time, os
path = {str(folder / "builder" / "alive.json")!r}
for number in range(12):
    time.sleep(0.1)
    open(path, 'w').close()
raise SystemExit('done')
"""
    with faulty(folder, code, silence_seconds=0.9, failures=0) as builder:
        builder.submit(3, embedder)
        with pytest.raises(UserError, match="code 1: done"):
            builder.wait(3, embedder)


def test_closing_ends_the_builder(tmp_path: Path, embedder: Embedder) -> None:
    with faulty(tmp_path / "index", "import time; time.sleep(1000)") as builder:
        builder.submit(3, embedder)
        process = builder._process
        assert process is not None
        assert process.poll() is None
    assert process.poll() == -signal.SIGTERM


def test_words_of_an_earlier_builder_are_not_repeated(tmp_path: Path, embedder: Embedder) -> None:
    log = tmp_path / "index" / supervisor.LOG
    log.parent.mkdir(parents=True)
    log.write_text("something else\n")
    with (
        faulty(tmp_path / "index", "raise SystemExit(3)", failures=0) as builder,
        pytest.raises(UserError, match="code 3: it said nothing"),
    ):
        submit_and_wait(builder, embedder)


def test_an_idle_builder_need_not_say_that_it_lives(tmp_path: Path, embedder: Embedder) -> None:
    with faulty(tmp_path / "index", "import time; time.sleep(1000)", silence_seconds=5.0, failures=0) as builder:
        builder._heard_at -= 1000.0
        builder.tend()
        builder.submit(3, embedder)
        builder.tend()
        assert builder.warnings == ()
        builder._heard_at -= 1000.0
        with pytest.raises(UserError, match="silent"):
            builder.tend()


def test_only_what_is_whole_is_built(tmp_path: Path, embedder: Embedder) -> None:
    folder = tmp_path / "index"
    store = GenerationStore(folder, "c" * 64)
    with faulty(folder, "import time; time.sleep(1000)") as builder, store.lease():
        builder.submit(3, embedder)
        building = store.begin(3, embedder_digest(embedder), 2, 16, shard_rows=1)
        for number in range(2):
            assert not builder.is_built(3)
            building.write(number, torch.ones(1, 16))
        assert not builder.is_built(3)
        building.publish(make_current=False)
        assert builder.is_built(3)
        assert torch.equal(builder.wait(3, embedder), torch.ones(2, 16))


def test_a_generation_that_vanishes_is_asked_for_again(tmp_path: Path, embedder: Embedder) -> None:
    folder = tmp_path / "index"
    generation = published(folder, "c" * 64, 3, embedder)
    with faulty(folder, "import time; time.sleep(1000)") as builder:
        builder.submit(3, embedder)
        assert builder.is_built(3)
        assert not (folder / "requests").exists()
        shutil.rmtree(generation.folder)
        builder.tend()
        assert not builder.is_built(3)
        assert (folder / "requests" / "step-00000003" / "request.json").exists()


def test_a_generation_of_other_weights_is_refused(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name holds but the beginning of the digest."""
    folder = tmp_path / "index"
    published(folder, "c" * 64, 3, embedder)
    digest = embedder_digest(embedder)
    monkeypatch.setattr(supervisor, "embedder_digest", lambda embedder: digest[:8] + "0" * 56)
    with faulty(folder, "") as builder:
        builder.submit(3, embedder)
        with pytest.raises(UserError, match=f"built with embedder {digest}, the queries are of embedder {digest[:8]}0"):
            builder.wait(3, embedder)


def test_a_builder_that_does_not_listen_is_killed_in_the_end(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)"
    monkeypatch.setattr(supervisor, "END_SECONDS", 0.2)
    with faulty(tmp_path / "index", f"{deaf}; time.sleep(1000)") as builder:
        process = builder._process
        assert process is not None
        deadline = time.monotonic() + LONG_ENOUGH_SECONDS
        while b"deaf" not in (tmp_path / "index" / supervisor.LOG).read_bytes():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert process.returncode == -signal.SIGKILL


def test_a_request_that_is_withdrawn_or_done_is_no_failure(
    tiny: ModuleType, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = tiny.params(CHANGES)
    context = Context(params, plan_run(params, "realm", 0), start)
    embedder = new_embedder(params, context.vocabulary_size, 0, None)
    folder = tmp_path / "index"
    builds = RequestedBuilds(context, folder)
    done = published(folder, context.corpus.manifest.digest, 1, embedder)
    with faulty(folder, "import time; time.sleep(1000)") as builder:
        for step in (2, 5):
            builder.submit(step, embedder)
        request = folder / "requests" / "step-00000002"
        (folder / "requests" / "step-00000000").mkdir()  # half deleted
        shutil.copytree(request, folder / "requests" / "step-00000001")
        write_json(folder / "requests" / "step-00000001" / "request.json", {"step": 1, "generation": done.name})
        assert builds._next() == 2
        shutil.rmtree(request)
        builds._build(2)
        assert builds._next() == 5
        assert GenerationStore(folder, context.corpus.manifest.digest).names() == [done.name]


def test_a_foreign_or_broken_generation_is_refused(tmp_path: Path, embedder: Embedder) -> None:
    folder = tmp_path / "index"
    generation = published(folder, "d" * 64, 3, embedder)
    with faulty(folder, "") as builder:
        builder.submit(3, embedder)
        with pytest.raises(UserError, match=f"the index of corpus {'d' * 64}, this corpus is {'c' * 64}"):
            builder.wait(3, embedder)
        (generation.folder / "manifest.json").unlink()
        with pytest.raises(UserError, match=r"not whole: it has no manifest\.json"):
            builder.wait(3, embedder)


def test_requests_of_an_earlier_trainer_are_dropped(tmp_path: Path, embedder: Embedder) -> None:
    with faulty(tmp_path / "index", "import time; time.sleep(1000)") as builder:
        builder.submit(3, embedder)
        builder.submit(5, embedder)
        assert [path.name for path in sorted((tmp_path / "index" / "requests").iterdir())] == [
            "step-00000003",
            "step-00000005",
        ]
        published(tmp_path / "index", "c" * 64, 3, embedder)
        builder.in_use(3)
        assert [path.name for path in (tmp_path / "index" / "requests").iterdir()] == ["step-00000005"]
    faulty(tmp_path / "index", "")
    assert not (tmp_path / "index" / "requests").exists()


def test_what_is_searched_is_pinned_and_what_is_old_goes(tmp_path: Path, embedder: Embedder) -> None:
    folder = tmp_path / "index"
    names = [published(folder, "c" * 64, step, embedder).name for step in range(0, 12, 2)]
    store = GenerationStore(folder, "c" * 64)
    with faulty(folder, "") as builder:
        for step in range(0, 12, 2):
            builder.submit(step, embedder)  # all are there: nothing is asked for
        assert not (folder / "requests").exists()
        for number, step in enumerate(range(0, 12, 2)):
            assert torch.equal(builder.wait(step, embedder), torch.full((2, 16), float(step + 1)))
            builder.in_use(step)
            assert store.names() == names[min(number, len(names) - 2) :]  # none that is still to be searched goes
            assert store.current() == names[number]
            assert store.pinned_by(names[number])
    assert not store.pinned_by(names[-1])


def test_a_second_builder_is_refused(tiny: ModuleType, start: Path, tmp_path: Path) -> None:
    params = tiny.params(CHANGES)
    context = Context(params, plan_run(params, "realm", 0), start)
    store = GenerationStore(tmp_path, context.corpus.manifest.digest)
    with store.lease(), pytest.raises(UserError, match=r"holds the lease .* wait for it or stop it"):
        RequestedBuilds(context, tmp_path).serve()


@pytest.mark.slow
def test_a_builder_ends_with_its_trainer(tiny: ModuleType, start: Path, tmp_path: Path) -> None:
    """The trainer is killed (SIGKILL) and cannot say goodbye."""
    params = tiny.params(CHANGES)
    job = {"params": params.model_dump(mode="json"), "label": "realm", "seed": 0, "root": str(start)}
    code = f"""
import os, signal, time, torch
from pathlib import Path
from realm_lab.params.parameters import Params
from realm_lab.models.initial import new_embedder
from realm_lab.systems.supervisor import Limits, ProcessBuilder
job = {job!r}
builder = ProcessBuilder(Path({str(tmp_path)!r}), "c" * 64, job, torch.device("cpu"), Limits(60.0, 1.0, 5))
builder.submit(3, new_embedder(Params(**job["params"]), 700, 0, None))
print(builder._process.pid, flush=True)
while not Path({str(tmp_path / "leases")!r}).exists():
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""
    trainer = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    number = int(trainer.stdout)
    deadline = time.monotonic() + LONG_ENOUGH_SECONDS
    while psutil.pid_exists(number) and psutil.Process(number).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the builder is an orphan"
        time.sleep(0.05)
