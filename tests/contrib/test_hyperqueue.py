"""The launcher `hyperqueue`, with a server and its workers on this machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from realm_lab.cli import main
from tests.lab.test_sweep import LONG, attempts, make_project, outcomes, pretraining, start
from tests.limits import HANG_SECONDS

SERVER = """
import sys
from hyperqueue.cluster import LocalCluster, WorkerConfig

cluster = LocalCluster(server_dir=sys.argv[1], worker_config=WorkerConfig(cores=2))
print("ready", flush=True)
sys.stdin.read()
"""
pytestmark = [pytest.mark.slow, pytest.mark.drill]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a server, in the folder `hq`, and a worker."""
    pytest.importorskip("hyperqueue", reason="no hyperqueue: pip install hyperqueue")
    command = [sys.executable, "-c", SERVER, str(tmp_path / "hq")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            assert process.poll() is None
        yield process
        process.kill()


def test_a_process_is_killed_and_the_study_completes(server: subprocess.Popen[str], tmp_path: Path) -> None:
    root = make_project(tmp_path / "hyperqueue", LONG)
    process = start(root, "--launcher", f"{{name: hyperqueue, server: '{tmp_path / 'hq'}'}}")
    stage = pretraining(root, process)
    psutil.Process(psutil.Process(stage.status().pid).ppid()).kill()
    _, said = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, said
    assert (stage.status().attempt, attempts(root)) == (2, {1, 2})
    here = make_project(tmp_path / "here", LONG)
    assert main(["sweep", "mini", "--root", str(here), "--launcher", "inline"]) == 0
    assert outcomes(root) == outcomes(here)


def test_the_server_and_its_workers_are_killed_and_the_next_sweep_goes_on(
    server: subprocess.Popen[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_project(tmp_path / "hyperqueue", LONG)
    process = start(root, "--launcher", f"{{name: hyperqueue, server: '{tmp_path / 'hq'}'}}")
    stage = pretraining(root, process)
    server.kill()
    _, said = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 2
    assert "no server of HyperQueue answers" in said.splitlines()[-1]
    assert not psutil.pid_exists(stage.status().pid) or stage.status().state == "PREEMPTED"
    again = ["sweep", "mini", "--root", str(root), "--launcher"]
    assert main([*again, f"{{name: hyperqueue, server: '{tmp_path / 'hq'}'}}"]) == 2
    assert "hq server start" in capsys.readouterr().err
    assert main([*again, "inline"]) == 0
    assert stage.status().attempt == 2
