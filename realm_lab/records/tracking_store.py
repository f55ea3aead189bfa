"""URIs of tracking stores: their default, a check of the database, and messages without passwords; without MLflow."""

from __future__ import annotations

import os
import re
from pathlib import Path

from realm_lab.errors import UserError, install_line
from realm_lab.records.validation import cut

KINDS = "sqlite:////ABSOLUTE/mlflow.db, postgresql://USER:PASSWORD@HOST/DATABASE or http://HOST:PORT"

MLFLOW_SETTINGS = {  # MLflow reads them from the environment when it is loaded
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # An unreachable server is reported soon; by default MLflow retries for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
}
MAX_RUNS = 50_000  # of one search, the most that MLflow allows


def default_uri(runs: Path) -> str:
    """Default tracking store: mlflow.db next to runs/, in the project even if runs/ is a link."""
    return f"sqlite:///{Path(os.path.abspath(runs)).parent / 'mlflow.db'}"


def is_server(uri: str) -> bool:
    """True for an MLflow server, which has a database and a store for artifacts."""
    return uri.startswith(("http:", "https:"))


def without_password(text: str) -> str:
    """Replace the password in a URI, or in a message with one, by ***."""
    return re.sub(r"([?&]password=)[^&\s]*", r"\1***", re.sub(r"(//[^:/@\s]*:)\S*@", r"\1***@", text))


def one_line(error: object) -> str:
    """Shorten an error's message to one line without passwords."""
    return cut(without_password(" ".join(str(error).split())), 300)


def check_database(uri: str) -> None:
    """Read from a database once, since MLflow would retry for minutes. UserError: no such kind of store, a file that is
    not a database, a server that does not answer, no driver."""
    import sqlalchemy  # here, since `doctor` and parts without MLflow need only the names above
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    name = f"tracking store {without_password(uri)}"
    try:
        engine = sqlalchemy.create_engine(uri)
        sqlalchemy.inspect(engine).get_table_names()
        engine.dispose()
    except ModuleNotFoundError as error:
        raise UserError(f"{name}: {error}; {install_line('postgresql')}") from None
    except ArgumentError:  # also a kind that SQLAlchemy does not know
        raise UserError(f"{name}: write {KINDS}") from None
    except SQLAlchemyError as error:
        raise UserError(f"{name}: {one_line(getattr(error, 'orig', None) or error)}") from None
