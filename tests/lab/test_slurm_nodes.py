"""On a real SLURM of four hosts with accounts: nodes that go away, clocks that differ, a full disk, files seen late.

Each host is in separate namespaces, which needs root, with a separate clock if a test asks for it, and sees the
roots through a file system that remembers for seconds that a name was not there.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.systems.identity import plan_run
from realm_lab.lab import pipeline
from realm_lab.lab.launchers import Launcher, LauncherSettings, launcher_of
from realm_lab.lab.slurm_queue import jobs_of_stages
from realm_lab.lab.tasks import Task
from realm_lab.records.lease import Taken
from realm_lab.records.run import StageRun
from realm_lab.records.run_lease import writing
from realm_lab.records.state import UNFINISHED, StageState, StageStates
from tests import tiny
from tests.slurm_cluster import accounting, hosts
from tests.slurm_cluster.cluster import Cluster
from tests.slurm_cluster.programs import find_program, missing
from tests.slurm_cluster.project import joined, wait_until, write_slow_masks

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

PROGRAMS = (*accounting.PROGRAMS, "unshare", "nsenter", "mount")
SLOW = {"pretrain.masking": "slow_masks:slowly", "pretrain.steps": 16}
SCRATCH_BYTES = 32 * 2**20  # of the small disk
HUNGRY_MASKS = """
from pathlib import Path

import numpy as np
import slow_masks

eaten = []


def one_span(request, generator):
    if Path(__file__).with_name("hungry").exists():
        eaten.append(np.ones(2**22))  # 128 MiB a step
    return slow_masks.slowly(request, generator)
"""
BUILD_INDEX = """
import sys, time
from realm_lab import cli
from realm_lab.engine.retrieval.embeddings import EmbeddingStore

build = EmbeddingStore.build


def build_slowly(store, identity, embed):
    def slow(rows_R):
        time.sleep(float(sys.argv[1]))
        with open("begun.txt", "a") as file:
            file.write(f"{rows_R[0]}\\n")
        return embed(rows_R)

    return build(store, identity, slow, shard_rows=16)


EmbeddingStore.build = build_slowly
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for everything of these tests."""
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def late(place: Path) -> Path | None:
    """The folder of the roots, which hosts see late if FUSE is available."""
    (place / "late").mkdir()
    return place / "late" if find_program("bindfs") and Path("/dev/fuse").exists() else None


@pytest.fixture(scope="module")
def cluster(place: Path, late: Path | None) -> Iterator[Cluster]:
    """Four hosts; a small disk for all of them is at `scratch`."""
    if os.geteuid():
        pytest.skip("hosts in namespaces of their own need root")
    if absent := missing(PROGRAMS):
        pytest.skip(f"not here: {', '.join(absent)}; apt-get install slurmdbd mariadb-server")
    scratch = place / "scratch"
    scratch.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={SCRATCH_BYTES}", "tmpfs", str(scratch))
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with joined(Cluster(place / "slurm", nodes=4, accounting=True, hosts=True, late=late)) as running:
            yield running
    finally:
        subprocess.run(("umount", "--lazy", str(scratch)), check=True)


@pytest.fixture(scope="module")
def prepared(place: Path) -> Path:
    """A root in which pre-training can start."""
    root = place / "prepared"
    tiny.prepare(tiny.params(), root, "warm_start")
    write_slow_masks(root)
    return root


class Jobs:
    """Pre-training in copies of a root, as jobs."""

    def __init__(self, prepared: Path, root: Path):
        self.root = Path(shutil.copytree(prepared, root))
        self._launchers = dict[str, Launcher]()
        self._tasks: dict[str, Task] = {}

    def submit(self, name: str, settings: LauncherSettings, changes: dict[str, Any]) -> StageRun:
        """Start a job of that name; returns the folder of its stage."""
        params = tiny.params(changes)
        run = tiny.stage_run("pretrain", params, self.root)
        planned = plan_run(params, "realm", 0)
        self._tasks[name] = Task(name, ("pretrain",), planned, {"pretrain": run.key}, (), ("realm",))
        self._launchers[name] = launcher_of(name, self.root, settings, "slurm")
        self.again(name)
        return run

    def quick(self) -> None:
        """Let the masks of all jobs sleep no more."""
        (self.root / "slow").unlink()

    def again(self, name: str) -> None:
        """Submit a job once more."""
        self._launchers[name].submit([self._tasks[name]])

    def state(self, name: str) -> StageState:
        """Return the state of the newest job of that name."""
        return self._launchers[name].poll()[name]

    def shown(self, run: StageRun) -> StageState:
        """Return the stage's line of `realm-lab status`."""
        return StageStates(self.root / "runs", jobs_of_stages(self.root)).stage("pretrain", run.key)

    def end(self, *names: str) -> list[str]:
        """Wait until these jobs have ended; returns their states."""
        wait_until(lambda: all(self.state(name).state not in UNFINISHED for name in names), f"{names} have ended")
        return [str(self.state(name).state) for name in names]


@pytest.fixture
def jobs(prepared: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: Path | None) -> Jobs:
    found = Jobs(prepared, place / "late" / tmp_path.name)
    monkeypatch.chdir(found.root)
    return found


def test_four_processes_on_two_nodes_do_what_one_does(
    cluster: Cluster, prepared: Path, tmp_path: Path, jobs: Jobs
) -> None:
    """The processes find the first node by its name. One of them has two sentences of each batch of five."""
    changes = {"pretrain.batch_size": 5, "pretrain.steps": 6, "pretrain.refresh.interval_steps": 2}
    four = jobs.submit("four", hosts.settings(tmp_path / "site", nodes=2), changes | {"launch.ranks": 4})
    one = tiny.run("pretrain", tiny.params(changes), Path(shutil.copytree(prepared, tmp_path / "one")))
    assert jobs.end("four") == ["COMPLETE"], jobs.state("four")
    assert "NodeList=n[1-2]" in cluster.ask("scontrol", "show", "job", jobs.state("four").job)
    tiny.assert_metrics_alike(one, four)


def test_a_builder_has_a_node_of_its_own(cluster: Cluster, prepared: Path, tmp_path: Path, jobs: Jobs) -> None:
    """A builder killed with its trainer, whose job starts another one, changes nothing; all nodes are free in the
    end."""
    changes = SLOW | {"launch.checkpoint_interval_seconds": 1}
    changes |= {"pretrain.refresh.interval_steps": 4, "pretrain.refresh.delay_steps": 1}
    apart = {"launch.builder": "srun --nodes=1 --ntasks=1 --nodelist=n4 --mem=1G --job-name=builder"}
    settings = hosts.settings(tmp_path / "site", additional={"nodelist": "n1"})
    run = jobs.submit("trainer", settings, changes | apart)
    wait_until(lambda: run.status().step >= 6, "it has a second index")
    shown = cluster.ask("squeue", "--noheader", "--states=RUNNING", "--format=%j %N").splitlines()
    assert "builder n4" in shown
    assert any(line.endswith(" n1") for line in shown), shown
    trainer = run.status()
    cluster.on("n1", "kill", "-KILL", str(trainer.pid))
    jobs.quick()
    jobs.end("trainer")
    jobs.again("trainer")
    one = tiny.run("pretrain", tiny.params(changes), Path(shutil.copytree(prepared, tmp_path / "undisturbed")))
    assert jobs.end("trainer") == ["COMPLETE"], jobs.state("trainer")
    assert run.status().attempt == 2
    wait_until(lambda: not cluster.ask("squeue", "--noheader"), "no job is left")
    assert tiny.outcome(run) == tiny.outcome(one)


def test_what_another_host_has_finished_may_be_seen_late(
    cluster: Cluster, prepared: Path, tmp_path: Path, jobs: Jobs, late: Path | None
) -> None:
    """The warm start that a job needs is written after its host has looked for it."""
    if late is None:
        pytest.skip("no file system that shows files late: apt-get install bindfs, and /dev/fuse")
    [warm_start] = (jobs.root / "runs" / "stages").glob("warm_start-*")
    warm_start.rename(tmp_path / "away")
    cluster.on("n2", "sh", "-c", f"! test -e {shlex.quote(str(warm_start))}")
    (tmp_path / "away").rename(warm_start)
    cluster.on("n2", "sh", "-c", f"! test -e {shlex.quote(str(warm_start))}")
    run = jobs.submit("next", hosts.settings(tmp_path / "site", additional={"nodelist": "n2"}), {})
    one = tiny.run("pretrain", tiny.params(), Path(shutil.copytree(prepared, tmp_path / "undisturbed")))
    assert jobs.end("next") == ["COMPLETE"], jobs.state("next")
    assert tiny.outcome(run) == tiny.outcome(one)


def test_jobs_outlive_their_nodes_whatever_their_clocks_say(
    cluster: Cluster, prepared: Path, tmp_path: Path, jobs: Jobs
) -> None:
    """One job's node is taken down, one of another's two nodes fails; their clocks differ by ten minutes."""
    clocks = {"n1": -600.0, "n2": 600.0}
    steps = SLOW | {"launch.checkpoint_interval_seconds": 1}
    two = steps | {"launch.ranks": 2, "pretrain.candidates": 5}
    exclusive = {"nodes": 2, "additional": {"exclusive": True}}
    alone = jobs.submit("alone", hosts.settings(tmp_path / "site", clocks), steps)
    pair = jobs.submit("pair", hosts.settings(tmp_path / "site", clocks, **exclusive), two)
    wait_until(lambda: min(alone.status().step, pair.status().step) >= 2, "both train")
    assert (alone.status().host, pair.status().host) == ("n1", "n2")

    with pytest.raises(Taken), writing(alone.path):
        pass  # here its lease looks ten minutes old
    cluster.ask("scontrol", "update", "nodename=n1", "state=down", "reason=drill")
    cluster.lose("n3")
    jobs.quick()
    undisturbed = Path(shutil.copytree(prepared, tmp_path / "undisturbed"))
    one = tiny.run("pretrain", tiny.params(steps), undisturbed)
    pipeline.run("pretrain", pipeline.planned(tiny.params(two)), undisturbed)
    wait_until(lambda: "down" in cluster.ask("sinfo", "--noheader", "--nodes=n3", "--format=%t"), "n3 is missed")
    cluster.boot("n3")
    assert jobs.end("alone", "pair") == ["COMPLETE", "COMPLETE"], jobs.state("pair")
    assert (alone.status().attempt, pair.status().attempt) == (2, 2)
    assert "n1" not in (alone.status().host, pair.status().host)
    cluster.ask("scontrol", "update", "nodename=n1", "state=resume")
    assert tiny.outcome(alone) == tiny.outcome(one)
    assert tiny.outcome(pair) == tiny.outcome(tiny.stage_run("pretrain", tiny.params(two), undisturbed))


def test_status_says_what_the_accounts_say(cluster: Cluster, tmp_path: Path, jobs: Jobs) -> None:
    """Jobs that squeue has forgotten: killed, cancelled without time for a checkpoint, and out of memory."""
    (jobs.root / "hungry_masks.py").write_text(HUNGRY_MASKS)
    (jobs.root / "hungry").touch()
    settings = hosts.settings(tmp_path / "site")
    runs = {
        "killed": jobs.submit("killed", settings, SLOW),
        "cancelled": jobs.submit("cancelled", settings, SLOW | {"pretrain.candidates": 5}),
        "hungry": jobs.submit("hungry", settings, SLOW | {"pretrain.masking": "hungry_masks:one_span"}),
    }
    wait_until(lambda: min(runs[name].status().step for name in ("killed", "cancelled")) >= 2, "both train")
    killed = runs["killed"].status()
    cluster.on(killed.host, "kill", "-KILL", str(killed.pid))
    cluster.ask("scancel", "--signal=KILL", jobs.state("cancelled").job)
    jobs.end(*runs)
    wait_until(lambda: not cluster.ask("squeue", "--noheader", "--states=all", "--format=%i"), "squeue has forgotten")

    accounts = cluster.ask("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State")
    said = dict(line.split("|") for line in accounts.splitlines())
    ends = {name: said[jobs.state(name).job].split()[0] for name in runs}
    assert ends == {"killed": "FAILED", "cancelled": "CANCELLED", "hungry": "FAILED"}
    wait_until(lambda: "SLURM: FAILED" in str(jobs.shown(runs["killed"]).error), "the accounts were asked late enough")
    shown = {name: (jobs.shown(run).state, str(jobs.shown(run).error)) for name, run in runs.items()}
    of = {name: f"process {run.status().pid} on {run.status().host} is gone or silent" for name, run in runs.items()}
    assert shown["killed"] == ("LOST", f"{of['killed']} (SLURM: FAILED)")
    assert shown["cancelled"][0] == "CANCELLED"
    assert shown["hungry"] == ("LOST", f"{of['hungry']} (SLURM: FAILED, Exceeded job memory limit)")

    (jobs.root / "hungry").unlink()
    jobs.quick()
    for name in runs:
        jobs.again(name)
    assert jobs.end(*runs) == ["COMPLETE"] * 3


def test_a_full_disk_stops_a_job_with_one_line_and_room_lets_it_go_on(
    cluster: Cluster, place: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(prepared, place / "scratch" / "root")
    monkeypatch.chdir(jobs.root)
    steps = SLOW | {"launch.checkpoint_interval_seconds": 1}
    run = jobs.submit("writer", hosts.settings(tmp_path / "site"), steps)
    wait_until(lambda: run.status().step >= 2, "it trains")
    ballast = place / "scratch" / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**12))
    assert jobs.end("writer") == ["FAILED"]
    named = r"(/checkpoints/step-\d+|/status\.json|/metrics\.jsonl)?"  # whichever wanted room first
    line = rf"{run.path}{named}: no space left on its disk; make room, then run again"
    assert re.match(line, str(jobs.shown(run).error)), jobs.shown(run)
    assert jobs.shown(run).error == jobs.state("writer").error
    ballast.unlink()
    jobs.quick()
    jobs.again("writer")
    one = tiny.run("pretrain", tiny.params(steps), Path(shutil.copytree(prepared, tmp_path / "undisturbed")))
    assert jobs.end("writer") == ["COMPLETE"]
    assert run.status().attempt == 2
    assert tiny.outcome(run) == tiny.outcome(one)


def test_an_array_builds_one_index_though_an_element_is_killed(cluster: Cluster, tmp_path: Path, jobs: Jobs) -> None:
    """The others finish the shards of a killed host, which costs at most two of them."""

    def command(root: Path, seconds: float) -> list[str]:
        index = ("index", "build", "--root", str(root), "--params", str(tiny.PARAMETERS), "--stage", "warm-start")
        return [sys.executable, str(jobs.root / "build_index.py"), str(seconds), *index]

    (jobs.root / "build_index.py").write_text(BUILD_INDEX)
    shutil.rmtree(jobs.root / "runs" / "embeddings", ignore_errors=True)
    alone = Path(shutil.copytree(jobs.root, tmp_path / "alone"))

    def outputs() -> list[str]:
        paths = [jobs.root / f"element-{number}.txt" for number in range(4)]
        return [path.read_text() if path.exists() else "" for path in paths]

    def begun() -> list[int]:
        return [number for number, text in enumerate(outputs()) if "embedded" in text]

    how = ("--parsable", "--array=0-3", "--exclusive", "--mem=1G", f"--output={jobs.root / 'element-%a.txt'}")
    array = cluster.ask("sbatch", *how, "--wrap", shlex.join(command(jobs.root, 1.0))).strip()
    wait_until(lambda: bool(begun()), "an element has embedded its first shard")  # the first by chance
    first = begun()[0]
    cluster.ask("scancel", "--signal=KILL", f"{array}_{first}")
    wait_until(lambda: not cluster.ask("squeue", "--noheader"), "all have ended")
    said = outputs()
    assert "of 16 numbers" not in said.pop(first)
    assert all("320 passages of 16 numbers" in text for text in said), said
    assert sum("embedded" in text for text in said) > 1, said
    shards = (jobs.root / "begun.txt").read_text().split()
    assert len(set(shards)) == 20
    assert len(shards) <= 22
    subprocess.run(command(alone, 0.0), check=True, cwd=alone)
    [one], [other] = (list(root.glob("runs/embeddings/*/embeddings.bin")) for root in (alone, jobs.root))
    assert one.read_bytes() == other.read_bytes()
