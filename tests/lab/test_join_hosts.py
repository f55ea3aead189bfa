"""Four hosts in separate namespaces join one study, and two go away at once: the results equal those of one machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from realm_lab.evidence.ledger import verify
from realm_lab.records.run_lease import writer_of
from tests.lab.test_sweep import JOINED, make_project, outcomes, stages, sweep_here
from tests.limits import HANG_SECONDS
from tests.slurm_cluster.cluster import HOST

pytestmark = [pytest.mark.slow, pytest.mark.drill]

STUDY = JOINED.replace("slowly", "held").replace("set:\n", "set:\n  launch.processes: 1\n", 1)
SITE = """
from realm_lab.records import run_lease
run_lease.LIMIT_SECONDS, run_lease.BEAT_SECONDS = 20.0, 1.0
"""
BOOT = 'hostname "$0"; ip link set lo up; exec "$@"'


def boot(name: str, root: Path) -> subprocess.Popen[bytes]:
    """Start a host that joins the study; SIGKILL ends it with all of its processes."""
    sweep = (sys.executable, "-m", "realm_lab", "sweep", "mini", "--root", str(root), "--join")
    with (root / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            (*HOST, "--net", "sh", "-c", BOOT, name, *sweep),
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join([str(root), os.environ["PYTHONPATH"]]), "HOLD": str(root / "hold")},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def pretraining(root: Path) -> dict[str, str]:
    """Host -> the stage that it pre-trains now, with a checkpoint."""
    found = {}
    for run in stages(root).values() if (root / "runs" / "stages").exists() else ():
        writer = writer_of(run.path)
        if run.stage == "pretrain" and writer and any((run.path / "checkpoints").glob("[!.]*")):
            found[writer.owner.host] = run.path.name
    return found


def test_two_of_four_hosts_go_away_and_no_stage_is_done_twice(tmp_path: Path) -> None:
    if os.geteuid() or subprocess.run((*HOST, "--net", "ip", "link", "set", "lo", "up"), check=False).returncode:
        pytest.skip("hosts in separate namespaces need root, and Debian's iproute2")
    root = make_project(tmp_path / "joined", STUDY)
    (root / "sitecustomize.py").write_text(SITE)
    (root / "hold").touch()
    hosts = {name: boot(name, root) for name in ("n1", "n2", "n3", "n4")}
    try:
        deadline, at_work = time.monotonic() + HANG_SECONDS, dict[str, str]()
        while len(at_work) < 2:
            ended = time.monotonic() > deadline or any(host.poll() is not None for host in hosts.values())
            assert not ended, [log.read_text() for log in root.glob("n*.log")]
            time.sleep(0.02)
            at_work = pretraining(root)
        gone = dict(list(at_work.items())[:2])
        for name in gone:
            hosts[name].kill()
        (root / "hold").unlink()
        codes = {name: host.wait(HANG_SECONDS) for name, host in hosts.items()}
    finally:
        for host in hosts.values():
            host.kill()
    logs = {name: (root / f"{name}.log").read_text() for name in hosts}
    assert codes == {name: -signal.SIGKILL if name in gone else 0 for name in hosts}, logs
    assert {name: run.status().attempt for name, run in stages(root).items()} == {
        name: 2 if name in gone.values() else 1 for name in stages(root)
    }
    lines, problems = verify(root)
    assert ([line.fields["kind"] for line in lines].count("look"), problems) == (1, [])
    alone = make_project(tmp_path / "alone", STUDY)
    assert sweep_here(alone) == 0
    assert outcomes(root) == outcomes(alone)
