"""A real SLURM on this one machine: its own munged, slurmctld and slurmd, in one folder, on 127.0.0.1.

    python -m tests.slurm_cluster.cluster FOLDER    # start; prints how to use it; Ctrl-C stops it

Needs Debian's packages slurm-wlm and munge; nothing of the system's own SLURM is read or touched, no service is
started, and root is not needed. The nodes (n1, n2, ...) are slurmd that pretend to be machines. With `hosts` each is in
separate namespaces, which needs root: its jobs see its name as their host and only its processes, and it can go away
at once, with all of them. Hosts see late the files of another machine in the folder `late`. Without `accounting`
(accounting.py) `sacct` has no answers.
"""

import getpass
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.limits import HANG_SECONDS
from tests.slurm_cluster import accounting as accounts
from tests.slurm_cluster.programs import SYSTEM_PATH, find_program, missing

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
CPUS_PER_NODE = 2
LOST_SECONDS = 30  # a host that has been silent for so long is gone
NO_ACCOUNTING = "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none"
# A first process that collects what others leave behind, as on a machine.
HOST = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=slave")
BOOT = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; eval "$1"; shift; "$@" & wait'
# As on a network file system: a missing name is remembered as missing, even if another host makes it meanwhile. Locks
# hold between hosts; one that waits for a lock must not stop the others, hence the threads.
SEE_LATE = (
    "bindfs --enable-lock-forwarding --multithreaded "
    "-o negative_timeout={seconds},entry_timeout=0,attr_timeout=0 {folder} {folder}"
)
LATE_SECONDS = 15
# cred_expire and sched_interval: a requeued job starts again after seconds rather than minutes.
# KillWait: from SIGTERM to SIGKILL. MinJobAge: squeue remembers ended jobs, if nothing else does.
# MessageTimeout: how long SLURM waits for the answer of a node, several times before the node counts as gone.
CONFIGURATION = """
ClusterName=realmlab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=cred_expire=5,socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters={resources}
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{accounting}
JobCompType=jobcomp/none
JobRequeue=1
ReturnToService=1
KillWait=120
MessageTimeout=10
SlurmdTimeout={silence}
MinJobAge={memory}
BatchStartTimeout=60
SlurmdParameters=config_overrides
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=5 PreemptMode=REQUEUE GraceTime=120
PartitionName=spot Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=5 PreemptMode=CANCEL GraceTime=120
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


class Cluster:
    """SLURM while the block lasts; `environment` is for the programs that use it."""

    def __init__(
        self, folder: Path, nodes: int = 2, *, accounting: bool = False, hosts: bool = False, late: Path | None = None
    ):
        self.folder = folder.resolve()
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.environment = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._accounting, self._hosts, self._late = accounting, hosts, late
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._of_node: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def ask(self, *command: str) -> str:
        """The output of one of SLURM's programs."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def lose(self, node: str) -> None:
        """End a node without notice: its slurmd and, if nodes are hosts, every process on it (SIGKILL)."""
        daemon = self._of_node.pop(node)
        self._daemons.remove(daemon)
        daemon.kill()
        daemon.wait()

    def on(self, node: str, *command: str) -> None:
        """Run a command on a host, which sees only its own processes."""
        [first] = psutil.Process(self._of_node[node].pid).children()
        subprocess.run(("nsenter", f"--target={first.pid}", "--pid", "--mount", "--uts", *command), check=True)

    def boot(self, node: str) -> None:
        """Start the slurmd of a node."""
        late = SEE_LATE.format(seconds=LATE_SECONDS, folder=shlex.quote(str(self._late))) if self._late else ":"
        host = [*HOST, "sh", "-c", BOOT, node, str(self.folder / "hosts"), late] if self._hosts else []
        self._of_node[node] = self._daemon(*host, "slurmd", "-D", "-N", node)

    def _start(self) -> None:
        for name in ("state", *(f"spool/{name}" for name in self.nodes)):
            (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o755)
        ports = free_ports(len(self.nodes) + 2)
        self._configure(*ports)
        self._start_munge()
        if self._accounting:
            accounts.start(self.folder, ports[1], self._daemon, self._wait_for)
        self._daemon("slurmctld", "-D")
        for node in self.nodes:
            self.boot(node)
        self._wait_for("the nodes", self._is_ready)

    def _configure(self, port: int, accounting_port: int, *ports: int) -> None:
        host = socket.gethostname().split(".")[0]
        nodes = [
            f"NodeName={name} NodeHostname={name if self._hosts else host} NodeAddr=127.0.0.1 Port={node_port} "
            f"CPUs={CPUS_PER_NODE} RealMemory=4000 State=UNKNOWN"
            for name, node_port in zip(self.nodes, ports, strict=True)
        ]
        text = CONFIGURATION.format(
            host=host,
            port=port,
            user=getpass.getuser(),
            folder=self.folder,
            nodes="\n".join(nodes),
            silence=LOST_SECONDS if self._hosts else 300,
            memory=2 if self._accounting else 86_400,
            resources="CR_CPU_Memory" if self._accounting else "CR_CPU",
            accounting=accounts.CONFIGURATION.format(port=accounting_port, folder=self.folder)
            if self._accounting
            else NO_ACCOUNTING,
        )
        (self.folder / "slurm.conf").write_text(text, encoding="utf-8")
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost {host} {' '.join(self.nodes)}\n", encoding="utf-8")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid", "log-file": "munge.log"}
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        seed = f"--seed-file={self.folder / 'munge.seed'}"
        self._daemon("munged", "--foreground", "--force", "--num-threads=2", seed, *options)
        self._wait_for("munged", lambda: (self.folder / "munge.socket").exists())

    def _daemon(self, name: str, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        program = find_program(name)
        assert program is not None
        log = self.folder / f"{name}.{len(self._daemons)}.log"
        with open(log, "ab") as file:
            # A separate session: Ctrl-C is for us, and the daemons end after the jobs.
            daemon = subprocess.Popen(
                [program, *options],
                env=self.environment | {"PATH": SYSTEM_PATH} | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        return daemon

    def _is_ready(self) -> bool:
        try:
            return self.ask("sinfo", "--noheader", "--Node", "--partition=debug", "--format=%T").split() == (
                ["idle"] * len(self.nodes)
            )
        except RuntimeError:
            return False

    def _wait_for(self, what: str, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HANG_SECONDS
        while not is_there():
            dead = [daemon for daemon in self._daemons if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come up; {self._last_words()}")
            time.sleep(0.1)

    def _last_words(self) -> str:
        lines = []
        for log in sorted(self.folder.glob("*.log")):
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            lines += [f"{log.name}: {said[-1]}"] if said else []
        return "; ".join(lines) or "the daemons said nothing"

    def _stop(self) -> None:
        """End jobs, then the daemons in the opposite order of their start."""
        if self._daemons and self._is_controlled():
            for options in (["--signal=KILL", "--full"], []):
                subprocess.run(
                    ["scancel", "--user", getpass.getuser(), *options],
                    env=self.environment,
                    check=False,
                    capture_output=True,
                    timeout=HANG_SECONDS,
                )
        for node in [*self._of_node] if self._hosts else []:
            self.lose(node)  # unshare ignores SIGTERM
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        self._of_node.clear()

    def _is_controlled(self) -> bool:
        try:
            return "UP" in self.ask("scontrol", "ping")
        except (RuntimeError, subprocess.TimeoutExpired):
            return False


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def main() -> int:
    """Run a cluster until Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):  # even if a shell started us with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    absent = missing(PROGRAMS)
    if absent or len(sys.argv) != 2:
        print(f"not installed: {', '.join(absent)}; apt-get install slurm-wlm munge" if absent else __doc__)
        return 2
    with Cluster(Path(sys.argv[1])) as cluster:
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())
