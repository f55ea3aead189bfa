"""The tracking store that a URI names: whether it can be one, a new SQLite file, and its password never shown."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from realm_lab.core.records import cut
from realm_lab.errors import UserError

KINDS = "sqlite:////ABSOLUTE/mlflow.db, postgresql://USER:PASSWORD@HOST/DATABASE or http://HOST:PORT"


def default_uri(runs: Path) -> str:
    """The store of a project that names none: mlflow.db beside its runs."""
    return f"sqlite:///{Path(runs).resolve().parent / 'mlflow.db'}"


def is_server(uri: str) -> bool:
    """True for an MLflow server, which has its own database and its own place for artifacts."""
    return uri.startswith(("http:", "https:"))


def without_password(text: str) -> str:
    """A URI, or a message with one in it, with *** in the place of the password."""
    return re.sub(r"([?&]password=)[^&\s]*", r"\1***", re.sub(r"(//[^:/@\s]*:)\S*@", r"\1***@", text))


def one_line(error: object) -> str:
    """An error's message without line breaks and passwords, cut to what fits a report."""
    return cut(without_password(" ".join(str(error).split())), 300)


def database_file(uri: str) -> Path | None:
    """The file of an SQLite store; any other database must answer now, since MLflow would try for minutes.

    UserError: no such kind of store, a file that is no database, a server that does not answer, no driver.
    """
    name = f"tracking store {without_password(uri)}"
    if is_server(uri):
        return None
    if uri.startswith("postgres:"):
        raise UserError(f"{name}: write postgresql:// instead of postgres://")
    try:
        url = make_url(uri)
        if url.get_backend_name() != "sqlite":
            engine = create_engine(url)
            engine.connect().close()
            engine.dispose()
            return None
    except ModuleNotFoundError as error:
        raise UserError(f"{name}: {error}; pip install 'realm_lab[postgresql]'") from None
    except ArgumentError:  # also a kind that SQLAlchemy does not know
        raise UserError(f"{name}: write {KINDS}") from None
    except SQLAlchemyError as error:
        raise UserError(f"{name}: {one_line(getattr(error, 'orig', None) or error)}") from None
    if not url.database:
        raise UserError(f"{name}: a database in memory shows nothing; name a file")
    path = Path(url.database).absolute()
    if path.exists() and path.stat().st_size:
        try:
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                database.execute("select version_num from alembic_version").fetchone()
        except sqlite3.DatabaseError as error:
            raise UserError(f"{path}: not a database of MLflow ({error}); delete it and mirror again") from None
    return path
