"""The tracking store that a URI names: whether it can be one, its tables made once, its password never shown."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from realm_lab.errors import UserError

KINDS = "sqlite:////ABSOLUTE/mlflow.db, postgresql://USER:PASSWORD@HOST/DATABASE or http://HOST:PORT"
INITIALISATION = 7_310_411_905  # the advisory lock of PostgreSQL that mirrors of this project agree on


def default_uri(runs: Path) -> str:
    """The store of a project that names none: mlflow.db beside its runs."""
    return f"sqlite:///{Path(runs).resolve().parent / 'mlflow.db'}"


def is_server(uri: str) -> bool:
    """True for an MLflow server, which has its own database and its own place for artifacts."""
    return uri.startswith(("http:", "https:"))


def without_password(uri: str) -> str:
    """`uri` as it may be printed."""
    return hide_password(uri, uri)


def hide_password(message: str, uri: str) -> str:
    """`message` with every password that `uri` holds replaced by ***."""
    for secret in sorted(_secrets(uri), key=len, reverse=True):
        message = message.replace(f":{secret}@", ":***@").replace(f"password={secret}", "password=***")
    return message


def _secrets(uri: str) -> set[str]:
    """Passwords as they are written in `uri`, and as they are."""
    try:
        found = {urlsplit(uri).password} if is_server(uri) else {str(make_url(uri).password or "")}
    except (ArgumentError, ValueError):
        found = set()
    found |= set(re.findall(r"//[^:/@]*:(.*)@", uri))  # as written, even where it should have been escaped
    found |= set(re.findall(r"[?&]password=([^&]*)", uri))
    return {secret for secret in found if secret}


def prepare(uri: str) -> bool:
    """Refuse what cannot be a store; make the tables of a new SQLite database, once, even if mirrors start together.

    Returns:
        True if this call made a database: connections to a deleted one of that name are void.

    Raises:
        UserError: no such kind of store, or a file that is no database.
    """
    url = _database_url(uri)
    if url is None or url.get_backend_name() != "sqlite":
        return False
    if not url.database:
        raise UserError(f"tracking store '{uri}': a database in memory shows nothing; name a file")
    path = Path(url.database).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock(path.with_name(path.name + ".lock")):
        made = not path.exists() or path.stat().st_size == 0
        if made:
            _initialise(path)
    _check(path)
    return made


@contextlib.contextmanager
def first_client_alone(uri: str) -> Iterator[None]:
    """Hold PostgreSQL's lock of this project while a client opens the store: the first one makes its tables.

    Raises:
        UserError: the server does not answer, refuses, or the driver is not installed.
    """
    url = _database_url(uri)
    if url is None or url.get_backend_name() != "postgresql":
        yield
        return
    try:
        engine = create_engine(url)
    except ModuleNotFoundError as error:
        raise UserError(
            f"tracking store {without_password(uri)}: {error}; pip install 'realm_lab[postgresql]'"
        ) from None
    try:
        with engine.connect() as connection:
            connection.execute(text("select pg_advisory_lock(:key)"), {"key": INITIALISATION})
            yield
    except SQLAlchemyError as error:
        reason = hide_password(one_line(getattr(error, "orig", None) or error), uri)
        raise UserError(f"tracking store {without_password(uri)}: {reason}") from None
    finally:
        engine.dispose()


def _database_url(uri: str) -> URL | None:
    """None for a server, and for what MLflow itself has to judge."""
    if is_server(uri):
        return None
    if uri.startswith("postgres:"):
        raise UserError(f"tracking store '{without_password(uri)}': write postgresql:// instead of postgres://")
    try:
        return make_url(uri)
    except ArgumentError:
        if "://" in uri:
            return None
        raise UserError(f"tracking store '{without_password(uri)}': write {KINDS}") from None


def _initialise(path: Path) -> None:
    """A new database under its name only when it is whole: MLflow cannot repair a half-made one."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)
    try:
        command = [sys.executable, "-m", "mlflow", "db", "upgrade", f"sqlite:///{scratch}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{path}: MLflow could not make its database ({_last_line(done.stderr)})")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def _check(path: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            database.execute("select version_num from alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise UserError(
            f"{path}: not a database of MLflow ({error}); delete it, it is built again from runs/"
        ) from None


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Wait for and hold a lock on this machine; the kernel frees it when the process dies."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def one_line(error: object) -> str:
    """An error's message without its line breaks, cut to what fits a report."""
    return " ".join(str(error).split())[:300]


def _last_line(output: str) -> str:
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no message")
