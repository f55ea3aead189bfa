"""Many processes, deaths in the middle, and PostgreSQL: in the end the store says what the run folders say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from realm_lab import cli
from realm_lab.errors import UserError
from realm_lab.tracking.metric_log import read_metrics
from realm_lab.tracking.mlflow_mirror import mirror
from realm_lab.tracking.run_dir import read_run_records
from realm_lab.tracking.tracking_store import without_password
from tests.tracking import made_runs, shown

# Does what a training job does, with the library's own writers: logs, checkpoints, dies once, resumes, finishes.
WRITER = """
import json, sys
from pathlib import Path
from realm_lab.core.files import atomic_directory
from realm_lab.tracking.run_dir import StageRun

folder, resumes = Path(sys.argv[1]), sys.argv[2] == "resumes"
sys.stdin.readline()
for attempt in (0, 1) if resumes else (0,):
    run = StageRun(folder, "pretrain")
    first = 0
    if attempt:
        first = max(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))
        run.metrics.truncate_after(first)
    run.start(400)
    for step in range(first + 1, 401):
        run.metrics.log(step, {"loss": step + attempt / 2, "seconds": 0.1 * attempt})
        if step % 40 == 0:
            with atomic_directory(folder / "checkpoints" / f"step-{step:08d}") as scratch:
                (scratch / "checkpoint.json").write_text(json.dumps({"step": step}))
        run.heartbeat(step, force=step % 20 == 0)
        if resumes and not attempt and step == 230:
            break
    else:
        run.finish({"steps": 400})
"""
# One import of mlflow for many processes: argv is a folder of runs and how many mirrors to start at once.
AT_ONCE = """
import os, sys, traceback
from pathlib import Path
from realm_lab.tracking.mlflow_mirror import mirror

children = []
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        try:
            print(mirror(Path(sys.argv[1]), sys.argv[3]).created, flush=True)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(child)
sys.exit(any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""
# Mirrors that kill themselves at their first, second, ... call of MLflow, before or after it, until one survives.
KILLED = """
import os, signal, sys
from pathlib import Path
from mlflow import MlflowClient
from realm_lab.tracking.mlflow_mirror import mirror

WRITES = "create_experiment create_run delete_run log_batch log_inputs log_artifacts set_tag update_run set_terminated"
deaths = 0
for instant in range(int(sys.argv[2]), 1000, int(sys.argv[3])):
    child = os.fork()
    if child == 0:
        calls = 0
        def dying(real):
            def call(*arguments, **named):
                global calls
                calls += 1
                if calls == instant and instant % 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = real(*arguments, **named)
                if calls == instant:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result
            return call
        for name in WRITES.split():
            setattr(MlflowClient, name, dying(getattr(MlflowClient, name)))
        mirror(Path(sys.argv[1]))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        break
    assert code == -signal.SIGKILL, code
    deaths += 1
print(deaths)
"""


def python(code: str, *arguments: object) -> str:
    """The output of a program in a process of its own, which must succeed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_no_point_is_lost_while_eight_jobs_write_and_a_mirror_follows(runs: Path) -> None:
    stages = [made_runs.planned_pretrain(runs, seed) for seed in range(8)]
    writers = []
    for number, stage in enumerate(stages):
        command = [sys.executable, "-c", WRITER, str(stage.path), "resumes" if number % 2 else "goes through"]
        writers.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True))
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.close()
    summary = mirror(runs, follow=True, interval_seconds=0.02)
    assert [writer.wait() for writer in writers] == [0] * 8
    assert (summary.states, summary.problems) == ({"COMPLETE": 8}, ())
    assert (summary.created, summary.rebuilt, summary.removed) == (8, 0, 0)
    for seed, stage in enumerate(stages):
        rows = read_metrics(stage.path / "metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(1, 401))
        points = shown.content(runs)[f"realm-s{seed}"]["points"]
        for name in ("loss", "seconds"):
            expected = [(row["step"], round(row["time"] * 1000), row[name]) for row in rows]
            assert points[f"pretrain/{name}"] == expected
    before = shown.everything(runs)
    assert mirror(runs).updated == 0
    assert shown.everything(runs) == before


@pytest.mark.slow
@pytest.mark.parametrize(("first", "stride"), [(1, 1), (4, 3)])
def test_killed_at_any_instant_the_next_mirror_ends_with_the_same_content(
    runs: Path, empty_database: Path, first: int, stride: int
) -> None:
    made_runs.make_runs(runs, seeds=(0,))
    made_runs.begin_pretrain(runs, 100)
    mirror(runs)
    expected = shown.everything(runs)
    (runs.parent / "mlflow.db").unlink()
    shutil.rmtree(runs.parent / "mlartifacts")
    shutil.copy(empty_database, runs.parent / "mlflow.db")
    deaths = int(python(KILLED, runs, first, stride))
    assert deaths >= 3
    moved = runs.parent / "moved" / "runs"  # this process keeps connections to the deleted file
    moved.mkdir(parents=True)
    shutil.copy(runs.parent / "mlflow.db", moved.parent / "mlflow.db")
    assert shown.everything(moved) == expected


@pytest.mark.slow
def test_eight_mirrors_at_once_make_the_database_and_one_run_each(tmp_path: Path) -> None:
    """The first use of a new database by several processes, which MLflow alone does not survive."""
    runs = tmp_path / "runs"
    made_runs.make_runs(runs, labels=("realm",))
    created = python(AT_ONCE, runs, 8, f"sqlite:///{tmp_path / 'mlflow.db'}").split()
    assert sorted(created) == ["0"] * 7 + ["2"]
    assert set(shown.content(runs)) == {"realm-s0", "realm-s1"}


@pytest.mark.slow
@pytest.mark.postgres
def test_postgresql_shows_what_sqlite_shows(runs: Path, postgres: str, capsys: pytest.CaptureFixture[str]) -> None:
    made_runs.make_runs(runs, seeds=(0,))
    _, stage = made_runs.begin_pretrain(runs, 100)
    # Eight first clients at once of a database without tables.
    assert sorted(python(AT_ONCE, runs, 8, postgres).split()) == ["0"] * 7 + ["4"]
    made_runs.write_points(stage.metrics, made_runs.pretrain_rows("realm", 0, 110, 200, made_runs.BEGAN_AT))
    made_runs.checkpoint(stage, 200)
    assert mirror(runs, postgres).updated == 1
    found = shown.everything(runs, postgres)
    mirror(runs)
    assert shown.everything(runs) == found
    assert len(found["default run"]["live-s0"]["points"]["pretrain/loss"]) == 20
    for _ in range(3):
        again = mirror(runs, postgres)
        assert (again.created, again.updated, again.rebuilt, again.points) == (0, 0, 0, 0)
    assert cli.main(["mirror", "--runs", str(runs), "--uri", postgres]) == 0
    printed = capsys.readouterr().out
    assert "postgresql://realm:***@127.0.0.1" in printed
    assert "ss%3Aw" not in printed
    with pytest.raises(UserError, match=r"tracking store postgresql://realm:\*\*\*@.*password authentication failed"):
        mirror(runs, postgres.replace("p%40ss", "wr%40ng"))


@pytest.mark.parametrize(
    ("uri", "printed"),
    [
        ("sqlite:////home/me/a:b@c/mlflow.db", "sqlite:////home/me/a:b@c/mlflow.db"),
        ("postgresql://me@host/mlflow", "postgresql://me@host/mlflow"),
        ("postgresql://me:se/c:r@t@host:5432/mlflow", "postgresql://me:***@host:5432/mlflow"),
        ("postgresql+psycopg2://me:s%40cret@host/mlflow", "postgresql+psycopg2://me:***@host/mlflow"),
        ("postgresql://host/mlflow?user=me&password=secret", "postgresql://host/mlflow?user=me&password=***"),
        ("http://me:secret@host:5000", "http://me:***@host:5000"),
        ("https://host:5000/mlflow", "https://host:5000/mlflow"),
    ],
)
def test_no_password_is_printed(uri: str, printed: str) -> None:
    assert without_password(uri) == printed


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("postgres://me:secret@127.0.0.1:9/mlflow", r"postgres://me:\*\*\*@.*write postgresql://"),
        ("postgresql://me:secret@127.0.0.1:9/mlflow", r"tracking store postgresql://me:\*\*\*@127.0.0.1:9"),
    ],
)
def test_a_database_that_does_not_answer_is_a_user_error_without_its_password(
    runs: Path, uri: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        mirror(runs, uri)
    assert "secret" not in str(caught.value)


def test_the_records_of_the_tests_are_those_of_the_library(runs: Path) -> None:
    made_runs.make_runs(runs, seeds=(0,))
    assert [record.system for record in read_run_records(runs)] == ["random_mask", "realm", "warm_start"]
    assert json.loads((runs / "studies" / "default" / "study.json").read_text())["baseline"] == "realm"
