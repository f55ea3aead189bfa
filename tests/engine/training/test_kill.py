"""A run that is killed (SIGKILL) at any instant and started again ends in the same bits."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import tiny

pytestmark = pytest.mark.slow  # files left by an interruption are in test_resume.py, in a second each
# Dropout, a calibrated null document, stale search, delayed refreshes within the run, evaluations, and a checkpoint
# every third step (the children's clocks tick once a step).
CHANGES = {
    "model.dropout": 0.1,
    "pretrain.calibrate_null": True,
    "pretrain.search_query": "stale",
    "pretrain.steps": 8,
    "pretrain.refresh.interval_steps": 3,
    "pretrain.refresh.delay_steps": 1,
    "evaluate.interval_steps": 4,
    "launch.checkpoint_interval_seconds": 2,
}
ON_PURPOSE = ("save_checkpoint", "atomic_directory", "atomic_write", "MetricLog.log", "embed_passages")
TORN = (("checkpoint", 1), ("checkpoint", 2), ("json", 5), ("json", 11), ("metrics", 2), ("metrics", 7))


class Line:
    """The forking process, an uninterrupted run, and folders for runs that are killed."""

    def __init__(self, folder: Path, server: subprocess.Popen[str]):
        self._folder, self._server = folder, server
        self.params = tiny.params(CHANGES)
        self.start = tiny.prepare(self.params, folder / "start", "warm_start")
        whole = self.place("whole")
        self.events: dict[str, int] = self.attempt(whole, None)["events"]
        self.expected = self.outcome(whole)

    def place(self, name: str) -> Path:
        """A root where the warm start is done, and nothing of pre-training."""
        return Path(shutil.copytree(self.start, self._folder / name))

    def attempt(self, root: Path, death: dict[str, Any] | None, count: bool = True) -> dict[str, Any]:
        """Run pre-training in a child, to its end or to its death."""
        job = ["pretrain", "realm", self.params.model_dump(mode="json"), 0, str(root)]
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps({"job": job, "die": death, "count": count}) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        assert answer["signal"] in (0, signal.SIGKILL)
        assert answer["code"] == 0
        return answer

    def outcome(self, root: Path) -> Any:
        """Models, metrics without clocks, results, and the whole state of the last checkpoint, moments included."""
        run = tiny.stage_run("pretrain", self.params, root)
        state = run.path / "checkpoints" / f"step-{self.params.pretrain.steps:08d}" / "state.safetensors"
        left = sorted(path.name for path in run.path.glob(".*"))
        return *tiny.outcome(run), state.read_bytes(), left

    def assert_survives(self, root: Path, death: dict[str, Any]) -> None:
        """Kill a run, then run it to its end: everything is as without the kill."""
        answer = self.attempt(root, death)
        print(f"{death}: {answer['where']}")
        assert answer["signal"] == signal.SIGKILL, "it was not killed"
        self.attempt(root, None, count=False)
        for one, other in zip(self.outcome(root), self.expected, strict=True):
            assert one == other
        assert tiny.stage_run("pretrain", self.params, root).status().state == "COMPLETE"


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    command = [sys.executable, str(Path(__file__).with_name("dying.py"))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    with server:
        yield Line(tmp_path_factory.mktemp("kill"), server)
        assert server.stdin is not None
        server.stdin.close()


def instants(events: dict[str, int], inside: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Deaths at random events, but not at the last percent of them, since waiting for git takes a varying number."""
    most = int(events[inside] * 0.99)
    return [
        {"inside": inside, "event": int(event)} for event in np.random.default_rng(seed).integers(1, most, size=count)
    ]


def test_killed_at_random_instants_anywhere(line: Line) -> None:
    for number, death in enumerate(instants(line.events, "", 8, seed=2)):
        line.assert_survives(line.place(f"anywhere-{number}"), death)


def test_killed_in_the_middle_of_what_must_not_be_half_done(line: Line) -> None:
    chosen = [death for name in ON_PURPOSE for death in instants(line.events, name, 1, seed=len(name))]
    chosen += [{"torn": kind, "write": number} for kind, number in TORN]
    for number, death in enumerate(chosen):
        line.assert_survives(line.place(f"purpose-{number}"), death)
