"""A disk that is full, or cannot be written, under the builder of the index and under its trainer."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from realm_lab.core.files import read_json
from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.export import write_embedder
from realm_lab.models.initial import new_embedder
from realm_lab.retrieval.generation import GenerationStore
from realm_lab.retrieval.shards import free_bytes
from realm_lab.systems import builder as builder_process
from realm_lab.systems import supervisor
from realm_lab.systems.context import Context
from realm_lab.systems.identity import plan_run
from realm_lab.systems.supervisor import Limits, ProcessBuilder
from tests.systems.builders import CPU, LONG_ENOUGH_SECONDS, faulty, published, submit_and_wait, warm_started

CHANGES: dict[str, Any] = {
    "pretrain.steps": 4,
    "pretrain.refresh.interval_steps": 3,
    "evaluate.cloze_sentences": 2,
    "evaluate.questions": 2,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_started(CHANGES, tmp_path_factory.mktemp("builder") / "start")


def test_a_full_disk_for_the_weights_is_told_and_tried_again(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = sum(value.numel() * 4 for value in embedder.parameters()) + supervisor.BESIDE_BYTES
    request = tmp_path / "index" / "requests" / "step-00000003"
    with faulty(tmp_path / "index", "import time; time.sleep(1000)", failures=3) as builder:
        monkeypatch.setattr(supervisor, "free_bytes", lambda folder: 4321)
        builder.submit(3, embedder)
        told = (
            f"builder of the index failed: {tmp_path / 'index'}: the disk is full ({needed} bytes are needed), "
            "4321 bytes are free; make room"
        )
        assert builder.warnings == (told,)
        assert capsys.readouterr().err == f"{told}; training goes on with the old index, next attempt in 0 s\n"
        monkeypatch.setattr(supervisor, "free_bytes", lambda folder: 10**12)
        original = write_embedder

        def full(*arguments: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(supervisor, "write_embedder", full)
        builder.tend()
        assert "(No space left on device), 1000000000000 bytes are free" in capsys.readouterr().err
        assert not request.exists()
        monkeypatch.setattr(supervisor, "write_embedder", original)
        builder.tend()
        assert read_json(request / "request.json") == {"step": 3, "generation": builder._wanted[3].generation}
        assert builder.warnings == (told,)
        assert builder.restarts == 0


def test_weights_that_can_never_be_written_end_the_run(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise SafetensorError("I/O error: Read-only file system (os error 30)")

    monkeypatch.setattr(supervisor, "write_embedder", refuse)
    with faulty(tmp_path / "index", "import time; time.sleep(1000)") as builder:
        builder.submit(3, embedder)
        with pytest.raises(UserError, match=r"failed 3 times in a row, at last: .*/index: I/O error: Read-only file"):
            builder.wait(3, embedder)


def test_what_is_in_use_is_written_down_once_there_is_room(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"
    name = published(folder, "c" * 64, 3, embedder).name
    store = GenerationStore(folder, "c" * 64)
    with faulty(folder, "") as builder:
        builder.submit(3, embedder)

        def full(*arguments: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(supervisor, "set_current", full)
            builder.in_use(3)
        assert "the disk is full" in builder.warnings[0]
        assert store.current() is None
        builder.tend()
        assert store.current() == name
        assert store.pinned_by(name)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (errno.ENOSPC, "{folder}: the disk is full (No space left on device), {free} bytes are free; make room"),
        (errno.EROFS, "{folder}: Read-only file system; see to it that this can be written"),
    ],
)
def test_a_builder_says_in_a_line_what_it_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: int, line: str
) -> None:
    def refused(job: dict[str, Any]) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(builder_process, "serve", refused)
    monkeypatch.setattr(builder_process, "exit_on_signals", lambda: None)
    monkeypatch.setattr(builder_process, "stop_with_parent", lambda trainer: None)
    monkeypatch.setattr(supervisor, "free_bytes", lambda folder: 77)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"folder": str(tmp_path), "trainer": 1}) + "\n"))
    assert builder_process.main() == 2
    assert capsys.readouterr().err.splitlines()[-1] == line.format(folder=tmp_path, free=77)


def test_a_log_without_room_is_told_all_the_same(tmp_path: Path, embedder: Embedder) -> None:
    code = "import sys; from realm_lab.systems.builder import _refuse; sys.exit(_refuse('no room'))"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stderr=full, check=False)
    assert done.returncode == supervisor.NO_LOG
    line = r"/index: the disk is full \(No space left on device\), \d+ bytes are free; make room"
    with (
        faulty(tmp_path / "index", f"raise SystemExit({supervisor.NO_LOG})", failures=0) as builder,
        pytest.raises(UserError, match=line),
    ):
        submit_and_wait(builder, embedder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("left", [0, 1 << 12])
def test_a_disk_that_is_really_full(
    tiny: ModuleType,
    start: Path,
    embedder: Embedder,
    small_disk: Path,
    left: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """There is room for the weights (left: none besides, or a little), none for the index; then somebody makes room."""
    params = tiny.params(CHANGES)
    context = Context(params, plan_run(params, "realm", 0), start)
    embedder = new_embedder(params, context.vocabulary_size, 0, None)
    job = {"params": params.model_dump(mode="json"), "label": "realm", "seed": 0, "root": str(start)}
    digest = context.corpus.manifest.digest
    with ProcessBuilder(small_disk, digest, job, CPU, Limits(60.0, 0.2, 20)) as builder:
        while not list((small_disk / "leases").glob("part-*.json")):  # it has begun
            time.sleep(0.05)
        process = builder._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        builder.submit(3, embedder)
        filler = small_disk / "filler"
        filler.write_bytes(bytes(free_bytes(small_disk) - left))
        process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + LONG_ENOUGH_SECONDS
        while len(capsys.readouterr().err.splitlines()) == 0:
            builder.tend()
            assert time.monotonic() < deadline
        assert "full" in builder.warnings[0]
        assert str(small_disk) in builder.warnings[0]
        assert "make room" in builder.warnings[0]
        filler.unlink()
        found = builder.wait(3, embedder)
        builder.in_use(3)
    assert torch.equal(found, context.retriever(embedder).embed_passages())


def test_a_trainer_that_embeds_itself_needs_no_disk_for_it(tiny: ModuleType, start: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(start, tmp_path / "inline", ignore=shutil.ignore_patterns("pretrain-*")))
    run = tiny.stage_run("pretrain", tiny.params(CHANGES), root)
    (run.path / "index").touch()  # no folder can be made there
    assert tiny.run("pretrain", tiny.params(CHANGES), root).is_complete()
