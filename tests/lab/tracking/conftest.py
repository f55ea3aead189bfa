"""An empty database, and a real PostgreSQL server."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from realm_lab.lab.tracking.mlflow_store import Store
from tests.factories.modules import load_module
from tests.limits import HANG_SECONDS

PASSWORD = "p@ss:w/rd%41"  # with everything that a URI has to escape


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables, made once, since that takes seconds."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    Store(f"sqlite:///{path}", "nobody")
    return path


@pytest.fixture
def runs(tmp_path: Path, empty_database: Path) -> Path:
    """A folder runs/ with an empty database where `mirror` looks for it."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def pictures() -> ModuleType:
    """docs/mlflow_screenshots.py, which knows how to start MLflow's server and to drive its interface."""
    module = load_module("docs/mlflow_screenshots.py")
    module.__dict__.update(START_SECONDS=HANG_SECONDS, WAIT_MS=1000 * HANG_SECONDS)
    return module


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URI, with a password, of the database `mlflow` of a PostgreSQL server on 127.0.0.1."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)  # of Debian
    folders += [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    binaries = next(folder for folder in folders if (folder / "initdb").exists())
    home = Path(tempfile.mkdtemp(prefix="realm_lab-postgres-"))
    # The server refuses to run as root.
    user = None
    if os.geteuid() == 0:
        user = next(found.pw_name for found in pwd.getpwall() if found.pw_name in ("postgres", "nobody"))
        shutil.chown(home, user)

    def run(*command: str | Path) -> None:
        # The server inherits the output, which goes to a file, since a pipe would stay open.
        with open(home / "log", "a") as log:
            done = subprocess.run(command, cwd=home, user=user, extra_groups=[], stdout=log, stderr=log, check=False)
        assert done.returncode == 0, (home / "log").read_text()

    def as_me(*command: str | Path) -> None:
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PGPASSWORD": PASSWORD})

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (home / "password").write_text(PASSWORD)
    data = home / "data"
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={home} -c fsync=off"
    try:
        run(binaries / "initdb", "-D", data, "-U", "realm", "--auth=scram-sha-256", f"--pwfile={home / 'password'}")
        run(binaries / "pg_ctl", "-D", data, "-w", "-t", str(round(HANG_SECONDS)), "-o", options, "start")
        try:
            as_me(binaries / "createdb", "-h", "127.0.0.1", "-p", port, "-U", "realm", "mlflow")
            yield f"postgresql://realm:p%40ss%3Aw%2Frd%2541@127.0.0.1:{port}/mlflow"
        finally:
            run(binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home)
