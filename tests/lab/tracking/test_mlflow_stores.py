"""Stores: many processes at once, a server, PostgreSQL, unusable stores, and hidden passwords."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Engine, event

from realm_lab import cli
from realm_lab.errors import UserError
from realm_lab.lab.tracking.mirror import mirror
from realm_lab.records.tracking_store import without_password
from tests.lab.tracking import made_runs, shown

MIRROR = "import sys; from pathlib import Path; from realm_lab.lab.tracking.mirror import mirror; " + (
    "print(mirror(Path(sys.argv[1]), sys.argv[2]).created)"
)


@pytest.mark.slow
def test_mirrors_at_once_make_the_database_and_one_run_each(tmp_path: Path) -> None:
    """The first use of a new database by several processes, which MLflow by itself does not survive."""
    runs = tmp_path / "runs"
    made_runs.make_runs(runs, systems=("realm",))
    command = [sys.executable, "-c", MIRROR, str(runs), f"sqlite:///{tmp_path / 'mlflow.db'}"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate()[0].strip() for process in started) == ["0", "2"]
    assert set(shown.content(runs)) == {"realm-s0", "realm-s1"}


@pytest.mark.slow
def test_a_mirror_that_dies_while_it_makes_the_tables_leaves_a_file_to_begin_with(tmp_path: Path) -> None:
    def dies(*execution: Any) -> None:
        if execution[2].startswith("INSERT INTO _alembic_tmp_metrics"):  # a table that SQLite has kept already
            raise RuntimeError("killed")

    (tmp_path / "runs").mkdir()
    event.listen(Engine, "before_cursor_execute", dies)
    with pytest.raises(RuntimeError, match="killed"):
        mirror(tmp_path / "runs")
    event.remove(Engine, "before_cursor_execute", dies)
    assert not mirror(tmp_path / "runs").problems


@pytest.mark.slow
def test_a_server_shows_what_sqlite_shows(
    runs: Path, tmp_path: Path, empty_database: Path, pictures: ModuleType
) -> None:
    made_runs.make_run(runs, "realm", 0)
    _, stage = made_runs.begin_pretrain(runs, 100)
    database = f"sqlite:///{shutil.copy(empty_database, tmp_path / 'server.db')}"
    with pictures.served(database, "--artifacts-destination", str(tmp_path / "artifacts")) as uri:
        assert mirror(runs, uri).created == 2
        made_runs.write_points(stage.metrics, made_runs.pretrain_rows("realm", 0, 110, 200, made_runs.BEGAN_AT))
        made_runs.checkpoint(stage, 200)
        assert mirror(runs, uri).updated == 1
        again = mirror(runs, uri)
        assert (again.created, again.updated, again.recreated, again.points) == (0, 0, 0, 0)
        found = shown.everything(runs, uri)
    mirror(runs)
    here = shown.everything(runs)
    for content in (*found["default run"].values(), *here["default run"].values()):
        for name in ("files", "values"):  # only a server knows where it keeps them
            content.pop(name)
    assert found["default run"] == here["default run"]
    assert len(list((tmp_path / "artifacts").rglob("results.json"))) == 4


@pytest.mark.slow
@pytest.mark.postgres
def test_postgresql_shows_what_sqlite_shows(runs: Path, postgres: str, capsys: pytest.CaptureFixture[str]) -> None:
    made_runs.make_runs(runs, seeds=(0,))
    assert mirror(runs, postgres).created == 3
    found = shown.everything(runs, postgres)
    mirror(runs)
    assert shown.everything(runs) == found
    again = mirror(runs, postgres)
    assert (again.created, again.updated, again.recreated, again.points) == (0, 0, 0, 0)
    assert cli.main(["mirror", "--root", str(runs.parent), "--uri", postgres]) == 0
    printed = capsys.readouterr().out
    assert "postgresql://realm:***@127.0.0.1" in printed
    assert "ss%3Aw" not in printed
    with pytest.raises(UserError, match=r"tracking store postgresql://realm:\*\*\*@.*password authentication failed"):
        mirror(runs, postgres.replace("p%40ss", "wr%40ng"))


@pytest.mark.parametrize(
    ("uri", "printed"),
    [
        ("sqlite:////home/me/a:b@c/mlflow.db", "sqlite:////home/me/a:b@c/mlflow.db"),
        ("postgresql://me:se/c:r@t@host:5432/mlflow", "postgresql://me:***@host:5432/mlflow"),
        ("postgresql+psycopg2://me:s%40cret@host/mlflow", "postgresql+psycopg2://me:***@host/mlflow"),
        ("postgresql://host/mlflow?user=me&password=secret", "postgresql://host/mlflow?user=me&password=***"),
        ("http://me:secret@host:5000", "http://me:***@host:5000"),
    ],
)
def test_no_password_is_printed(uri: str, printed: str) -> None:
    assert without_password(uri) == printed


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("mlflow.db", "write sqlite:////"),
        ("http://127.0.0.1:9", "tracking store http://127.0.0.1:9"),
        ("postgres://me:secret@127.0.0.1:9/mlflow", r"postgres://me:\*\*\*@.*write .*postgresql://USER"),
        ("postgresql://me:secret@127.0.0.1:9/mlflow", r"tracking store postgresql://me:\*\*\*@127.0.0.1:9"),
    ],
)
def test_a_store_that_cannot_be_used_is_a_user_error(
    runs: Path, monkeypatch: pytest.MonkeyPatch, uri: str, message: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match=message) as caught:
        mirror(runs, uri)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_a_user_error(runs: Path) -> None:
    (runs.parent / "mlflow.db").write_text("not a database, certainly")
    with pytest.raises(UserError, match=r"tracking store sqlite:.*mlflow\.db: file is not a database"):
        mirror(runs)


def test_a_folder_that_is_not_there_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"elsewhere: no such folder; train something first"):
        mirror(tmp_path / "elsewhere")
