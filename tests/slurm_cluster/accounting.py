"""SLURM's accounting, for `sacct`: slurmdbd, and a mariadbd that is reached only by a socket in the folder.

Needs Debian's packages slurmdbd and mariadb-server. With it SLURM also watches memory, and ends a job above its limit.
"""

import getpass
import socket as sockets
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.slurm_cluster.programs import find_program

PROGRAMS = ("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db")
# For slurm.conf.
CONFIGURATION = """
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
DefMemPerCPU=2000
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.socket
""".strip()
DAEMON_CONFIGURATION = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
CommunicationParameters=NoInAddrAny
SlurmUser={user}
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=accounts
"""
DATABASE = (
    "--no-defaults",
    "--skip-networking",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=8M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-lock-wait-timeout=900",
)


def start(folder: Path, port: int, daemon: Callable[..., object], wait_for: Callable[..., None]) -> None:
    """Start both with `daemon`(program, *options, **environment), and `wait_for` them; slurmdbd listens at `port` of
    127.0.0.1. RuntimeError: one does not start."""
    user, socket = getpass.getuser(), folder / "mariadb.socket"
    program = find_program("mariadb-install-db")
    assert program is not None
    install = (program, "--no-defaults", f"--datadir={folder / 'accounts'}", f"--user={user}", "--skip-test-db")
    owner = ("--auth-root-authentication-method=socket", f"--auth-root-socket-user={user}")
    done = subprocess.run((*install, *owner), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mariadb-install-db: {(done.stderr or done.stdout).strip()}")
    daemon("mariadbd", *DATABASE, f"--datadir={folder / 'accounts'}", f"--socket={socket}", f"--user={user}")
    wait_for("mariadbd", socket.exists)
    configuration = folder / "slurmdbd.conf"  # found next to slurm.conf
    configuration.write_text(DAEMON_CONFIGURATION.format(folder=folder, port=port, user=user), encoding="utf-8")
    configuration.chmod(0o600)
    daemon("slurmdbd", "-D", MYSQL_UNIX_PORT=str(socket))
    wait_for("slurmdbd", lambda: _listens(port))


def _listens(port: int) -> bool:
    with sockets.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
