"""A small study for real: inline and local, interrupted and gone on with, failed and tried again, never done twice."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from realm_lab.cli import main
from realm_lab.evidence.ledger import verify
from realm_lab.lab.status import study_status
from realm_lab.lab.stopping import stoppable, sweepers
from realm_lab.records.files import read_json
from realm_lab.records.run import StageRun, read_run
from realm_lab.records.study import read_study_record
from tests import tiny
from tests.lab.made_search import write_search
from tests.limits import HANG_SECONDS

REPOSITORY = Path(__file__).resolve().parents[2]
SHORT = """
question: Does a sweep work?
seeds: [0]
baseline: realm
set: {warm_start.reader.steps: 2, warm_start.embedder.steps: 2, pretrain.steps: 2, finetune.steps: 2}
cells:
  realm: {title: REALM}
  warm_start: {title: warm start only, system: warm_start}
  encoder_reset: {title: baseline encoder, set: {finetune.initial_reader: warm_start}}
launcher: {local: {processes: 2}}
"""
GROWING = SHORT.replace("[0]", "{until: decided, at_least: 2, at_most: 6, first: 40}") + (
    "metrics: [recall_at_5]\ndelta: {recall_at_5: 0.0001}\n"
)
LONG = """
question: Does a sweep survive?
seeds: [0]
baseline: realm
set:
  pretrain: {steps: 60, watch.interval_steps: 30, masking: 'tests.tiny_masks:slowly'}
  evaluate.interval_steps: 30
  launch.checkpoint_interval_seconds: 1
cells:
  realm: {title: REALM}
"""
JOINED = LONG.replace("[0]", "[0, 1]").replace("60", "20").replace("30", "10") + (
    "  encoder_reset: {title: baseline encoder, set: {finetune.initial_reader: warm_start}}\n"
)
BROKEN = """
question: What does a failure stop?
seeds: [0]
baseline: warm_start
set: {warm_start.reader.steps: 2, warm_start.embedder.steps: 2, pretrain.steps: 2, finetune.steps: 2}
cells:
  warm_start: {system: warm_start}
  broken: {set: {pretrain.masking: "masking_of_mine:scheme"}}
  broken_too: {set: {pretrain.masking: "masking_of_mine:scheme", finetune.initial_reader: warm_start}}
"""
MASKING_OF_MINE = """
import os
from realm_lab.engine.masking import salient_span

def scheme(*arguments, **options):
    if os.environ.get("MASKING") != "mended" and arguments[0].length != 8:  # it passes the trial on one sentence
        raise RuntimeError("no mask today")
    return salient_span(*arguments, **options)
"""


def make_project(root: Path, text: str, name: str = "mini") -> Path:
    (root / "experiments").mkdir(parents=True)
    (root / "params.yaml").write_bytes((REPOSITORY / "tests" / "tiny.yaml").read_bytes())
    (root / "experiments" / f"{name}.yaml").write_text(text)
    (root / "masking_of_mine.py").write_text(MASKING_OF_MINE)
    return root


def start(root: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "realm_lab", "sweep", "mini", "--root", str(root), *arguments],
        env=os.environ | {"PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{root}"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sweep_here(root: Path, launcher: str = "inline") -> int:
    """Sweep in this process, which has imported everything already."""
    return main(["sweep", "mini", "--root", str(root), "--launcher", launcher])


def members(root: Path) -> dict[str, dict[str, StageRun]]:
    """Cell -> the stages of its run, without the corpus."""
    runs, found = root / "runs", {}
    for run in read_study_record(runs / "studies" / "mini" / "study.json").runs:
        folders = read_run(runs / run.name / "run.json").folders(runs)
        found[run.cell] = {stage: StageRun(folder, stage) for stage, folder in folders.items() if stage != "prepare"}
    return found


def stages(root: Path) -> dict[str, StageRun]:
    """All stage folders, the corpora included."""
    paths = sorted((root / "runs" / "stages").iterdir())
    return {path.name: StageRun(path, path.name.rpartition("-")[0]) for path in paths}


def outcomes(root: Path) -> dict[str, Any]:
    return {name: tiny.outcome(run) for name, run in stages(root).items() if run.stage != "prepare"}


def attempts(root: Path) -> set[int]:
    return {run.status().attempt for run in stages(root).values()}


def rows(root: Path) -> dict[str, dict[str, str]]:
    with open(root / "reports" / "mini" / "results.csv", newline="") as file:
        return {row["cell"]: row for row in csv.DictReader(file)}


def pretraining(root: Path, process: subprocess.Popen[str], attempt: int = 1) -> StageRun:
    """The stage, once it has a checkpoint and is still at work, for the `attempt`-th time."""
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        for run in stages(root).values() if (root / "runs" / "stages").exists() else ():
            begun = run.stage == "pretrain" and any((run.path / "checkpoints").glob("[!.]*"))
            if begun and (run.status().state, run.status().attempt) == ("RUNNING", attempt):
                return run
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was swept inline."""
    root = make_project(tmp_path_factory.mktemp("inline"), SHORT)
    assert sweep_here(root) == 0
    return root


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The long study, swept inline."""
    root = make_project(tmp_path_factory.mktemp("uninterrupted"), LONG)
    assert sweep_here(root) == 0
    return root


def test_every_run_is_complete_and_shared_stages_are_done_once(done: Path) -> None:
    names = sorted(run.stage for run in stages(done).values())
    assert names == sorted(["prepare", "warm_start", "pretrain", *["finetune"] * 3, *["evaluate"] * 3])
    assert attempts(done) == {1}
    assert not (done / "data").exists()  # the corpus of a study is none of DVC's


def test_the_plan_is_noted_before_the_runs(done: Path) -> None:
    lines, problems = verify(done)
    assert ([line.fields["kind"] for line in lines][:2], problems) == (["plan", "look"], [])
    assert lines[0].fields["complete"] == 0
    starts = [run.status().started_at or 0.0 for run in stages(done).values()]
    assert lines[0].fields["at"] < min(starts)
    plan = read_json(done / "reports" / "mini" / "summary.json")["plan"]
    assert plan == {"line": 1, "hash": lines[0].hash[:16], "complete": 0, "deviations": []}


@pytest.mark.slow
def test_results_that_no_report_has_shown_count_for_a_changed_plan(done: Path, tmp_path: Path) -> None:
    root = tmp_path / "changed"
    shutil.copytree(done, root)
    shutil.rmtree(root / "reports")
    ledger = root / "runs" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().splitlines(keepends=True)[0])  # as if it had been stopped before its report
    study = root / "experiments" / "mini.yaml"
    study.write_text(study.read_text().replace("finetune.steps: 2", "finetune.steps: 3"))
    assert sweep_here(root) == 0
    lines, problems = verify(root)
    assert [line.fields["complete"] for line in lines if line.fields["kind"] == "plan"] == [0, 3]
    assert {problem.line for problem in problems} == {2}


def test_results_are_those_of_the_runs(done: Path) -> None:
    table, summary = rows(done), read_json(done / "reports" / "mini" / "summary.json")
    assert list(table) == ["realm", "warm_start", "encoder_reset"]
    header = list(table["realm"])
    assert header[:12] == [
        *("study", "cell", "seed", "run_key", "status", "exact_match", "recall_at_1", "recall_at_5"),
        *("retrieval_utility", "index_staleness_steps", "wall_seconds", "device_hours"),
    ]
    for name, run in members(done).items():
        row, results = table[name], run["evaluate"].results()
        assert (row["study"], row["status"]) == ("mini", "COMPLETE")
        assert row["run_key"].startswith(run["evaluate"].key)
        assert float(row["retrieval_utility"]) == pytest.approx(results["retrieval_utility_end"])
        assert float(row["recall_at_5"]) == pytest.approx(results["recall_at_5"])
        assert float(row["wall_seconds"]) == pytest.approx(sum(one.status().wall_seconds for one in run.values()))
        assert summary["cells"][name]["metrics"]["recall_at_5"]["mean"] == pytest.approx(results["recall_at_5"])
    assert table["warm_start"]["index_staleness_steps"] == ""
    log = members(done)["realm"]["pretrain"].metrics.rows()
    means = [row["index_staleness_steps_mean"] for row in log if "index_staleness_steps_mean" in row]
    assert float(table["realm"]["index_staleness_steps"]) == pytest.approx(means[-1])


@pytest.mark.slow
def test_seeds_are_taken_until_each_cell_is_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_project(tmp_path, GROWING)
    arguments = ["sweep", "mini", "--root", str(root), "--launcher", "inline"]
    assert main(arguments) == 0
    ends = [line.partition(": done in ")[0] for line in capsys.readouterr().err.splitlines() if ": done in " in line]
    assert len(ends) == len({*ends}) > 0, "each task is told once"
    record = read_study_record(root / "runs" / "studies" / "mini" / "study.json")
    assert [run.seed for run in record.of("encoder_reset")] == [40, 41, 42], "equal, as two cannot show"
    assert {run.seed for run in record.of("realm")} == {run.seed for run in record.of("warm_start")}
    summary = read_json(root / "reports" / "mini" / "summary.json")
    assert summary["looks"]["stopped"]["encoder_reset"] == 3
    assert summary["looks"]["last"] == len(record.seeds)
    assert summary["comparisons"]["recall_at_5"]["encoder_reset"]["finding"] == "equivalent"
    assert summary["plan"]["deviations"] == []
    lines, problems = verify(root)
    assert problems == []
    assert sum(line.fields["kind"] == "look" for line in lines) == len(record.seeds) - 1
    before = (root / "reports" / "mini" / "results.csv").read_bytes()
    assert main(arguments) == 0
    assert (root / "reports" / "mini" / "results.csv").read_bytes() == before


def test_again_there_is_nothing_to_do(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = done / "reports" / "mini"
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    assert {path.name for path in before} >= {"results.csv", "summary.json", "report.md", "curves.png"}
    assert sweep_here(done) == 0
    assert main(["sweep", str(done / "experiments" / "mini.yaml"), "--root", str(done)]) == 0
    assert capsys.readouterr().err.count("study mini: 3 runs in 3 variants, 3 complete; nothing to do") == 2
    assert attempts(done) == {1}
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


@pytest.mark.slow
def test_what_is_killed_goes_on_from_its_checkpoint(
    uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_project(tmp_path / "killed", LONG)
    process = start(root)
    worker = pretraining(root, process)
    pid = worker.status().pid
    os.kill(pid, signal.SIGSTOP)  # while another sweep looks at it
    assert sweep_here(root, "local") == 1
    left = f"left alone: realm seed 0: pretrain, finetune, evaluate: taken by process {pid} on "
    assert any(line.startswith(left) for line in capsys.readouterr().err.splitlines())
    os.kill(pid, signal.SIGKILL)
    _, said = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 1
    assert "FAILED: killed by signal 9" in said
    assert rows(root)["realm"]["status"] == study_status("mini", root)["runs"][0]["state"] == "LOST"

    process = start(root)  # without --retry-failed: the run itself did nothing wrong
    pretraining(root, process, attempt=2)
    process.kill()
    process.communicate(timeout=HANG_SECONDS)
    with suppress(psutil.NoSuchProcess):  # it stops by itself, and ends later than its status
        psutil.Process(worker.status().pid).wait(HANG_SECONDS)
    assert (worker.status().attempt, worker.status().state) == (2, "PREEMPTED")
    assert sweep_here(root, "local") == 0  # the dead sweep's lease is in nobody's way
    assert worker.status().attempt == 3
    assert outcomes(root) == outcomes(uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "how"), [("inline", "Ctrl-C"), ("local", "--cancel")])
def test_a_sweep_stops_after_a_checkpoint_and_can_go_on(
    launcher: str,
    how: str,
    uninterrupted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = make_project(tmp_path / "stopped", LONG)
    process, cancel = start(root, "--launcher", launcher), ["sweep", "mini", "--root", str(root), "--cancel"]
    stopped = pretraining(root, process)
    if how == "--cancel":  # from another process
        assert main(cancel) == 0
        assert f"process {process.pid} has stopped" in capsys.readouterr().err.splitlines()
    else:
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == (143 if how == "--cancel" else 130)
    assert said.splitlines()[-1].startswith("stopped after checkpoints; `realm-lab sweep ")
    assert stopped.status().state == "PREEMPTED"
    assert 0 < stopped.status().step < 60
    assert main(cancel) == 0
    assert capsys.readouterr().err == "nothing of study mini runs or waits\n"
    assert sweep_here(root, launcher) == 0
    assert stopped.status().attempt == 2
    assert outcomes(root) == outcomes(uninterrupted)


def test_signals_that_are_ignored_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[int, Any] = dict.fromkeys((signal.SIGHUP, signal.SIGTERM), signal.SIG_IGN)
    monkeypatch.setattr(signal, "getsignal", known.get)
    monkeypatch.setattr(signal, "signal", known.__setitem__)
    with stoppable():  # SIGTERM stops a sweep from another terminal
        assert [number for number, handler in known.items() if handler is signal.SIG_IGN] == [signal.SIGHUP]


@pytest.mark.slow
def test_two_sweeps_at_once_do_nothing_twice(done: Path, tmp_path: Path) -> None:
    root = make_project(tmp_path / "twice", SHORT)
    both = [start(root, "--follow"), start(root, "--follow")]
    ends = [process.communicate(timeout=HANG_SECONDS) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert attempts(root) == {1}
    assert sweepers(root, "mini") == []
    assert outcomes(root) == outcomes(done)


@pytest.mark.slow
def test_several_machines_join_one_is_killed_and_nothing_is_done_twice(tmp_path: Path) -> None:
    root = make_project(tmp_path / "joined", JOINED)
    joined = [start(root, "--join") for _ in range(3)]
    worker = pretraining(root, joined[0])
    pid = worker.status().pid
    killed = next(one for one in joined if one.pid == psutil.Process(pid).ppid())
    for number in (killed.pid, pid):
        os.kill(number, signal.SIGKILL)
    ends = [process.communicate(timeout=HANG_SECONDS) for process in joined]
    assert sorted(process.returncode for process in joined) == [-signal.SIGKILL, 0, 0], ends
    assert {run.status().attempt for name, run in stages(root).items() if name != worker.path.name} == {1}
    assert worker.status().attempt == 2
    lines, problems = verify(root)
    assert ([line.fields["kind"] for line in lines].count("look"), problems) == (1, [])
    alone = make_project(tmp_path / "alone", JOINED)
    assert sweep_here(alone) == 0
    assert outcomes(root) == outcomes(alone)


def test_to_join_with_a_queue_or_where_machines_see_no_locks_is_refused(
    done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    join = ["sweep", "mini", "--root", str(done), "--join"]
    assert main([*join, "--launcher", "slurm"]) == 2
    assert "sweep --join works on this machine" in capsys.readouterr().err
    mount = SimpleNamespace(mountpoint=str(done), fstype="fuse.s3fs", opts="rw")
    for name, opts in (("fuse.s3fs", "rw"), ("lustre", "rw,localflock")):
        mount.fstype, mount.opts = name, opts
        monkeypatch.setattr(psutil, "disk_partitions", lambda all: [SimpleNamespace(mountpoint="/", opts=""), mount])
        assert main(join) == 2
        said = capsys.readouterr().err
        assert (said.count("\n"), "has no locks that other machines see" in said) == (1, True)


@pytest.mark.slow
def test_a_failure_stops_what_needs_it_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project(tmp_path / "broken", BROKEN)
    monkeypatch.syspath_prepend(str(root))
    assert sweep_here(root) == 1
    said = capsys.readouterr().err
    failed = "pretrain, seed 0 (shared by 2 variants)"
    where = "RuntimeError in masking_of_mine.py, line 7 (no mask today)"
    why = f"parameter 'pretrain.masking': 'masking_of_mine:scheme' failed with {where}; correct it"
    assert f"{failed}: FAILED: {why}\n" in said
    assert f"broken_too seed 0: finetune, evaluate: not run: {failed} failed: {why}\n" in said
    table = rows(root)
    assert [row["status"] for row in table.values()] == ["COMPLETE", "FAILED", "FAILED"]
    assert table["broken"]["exact_match"] == table["broken"]["wall_seconds"] == ""
    monkeypatch.setenv("MASKING", "mended")
    assert main(["sweep", "mini", "--root", str(root), "--launcher", "inline", "--retry-failed"]) == 0
    assert {row["status"] for row in rows(root).values()} == {"COMPLETE"}
    assert attempts(root) == {1}  # the failure came before the first step


def test_a_second_file_of_a_studys_name_is_refused(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(done, tmp_path / "copy"))
    (root / "other").mkdir()
    other = root / "other" / "mini.yaml"
    other.write_text(SHORT.replace("question: ", "question: Quite another? "))
    before = tiny.files(root)
    for flags in ([], ["--dry-run"]):
        assert main(["sweep", str(other), "--root", str(root), "--launcher", "inline", *flags]) == 2
        assert "runs and report of study mini are of experiments/mini.yaml" in capsys.readouterr().err
    assert tiny.files(root) == before
    (root / "experiments" / "mini.yaml").unlink()
    assert main(["sweep", str(other), "--root", str(root), "--launcher", "inline", "--dry-run"]) == 0


def test_a_record_that_cannot_be_read_is_planned_anew(done: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(done, tmp_path / "copy"))
    path = root / "runs" / "studies" / "mini" / "study.json"
    known = read_study_record(path)
    wrong = {"own_metrics": [{"name": "letters", "title": "letters", "better": "higher"}]}
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    assert sweep_here(root) == 0
    assert read_study_record(path) == known


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sweep mni", "{root}/experiments/mni.yaml (`realm-lab status` lists all); did you mean 'mini'?"),
        ("status nope/realm", "study 'nope': no such file"),
        ("status mini/realm", "of study mini"),
        ("report default/realm", "of study default"),
        ("sweep mine --try", "search-mine.yaml: is a search; leave out"),
        ("sweep mini --slurm partition", "partition=gpu"),
        ("ask who", "call `realm-lab run`"),
        ("evaluate --corpus {root}/params.yaml", "call `realm-lab run`"),
        ("sweep mini --set pretrain.stpes=3", "--set pretrain.stpes: "),
        ("sweep mini --launcher slurm", "launcher 'slurm': no sbatch"),
        ("sweep scratch", "scratch.yaml: "),
        ("sweep {root}/experiments/...yaml", "...yaml: study '..': use letters, digits"),
        ("sweep q<'>", "q<'>.yaml: study 'q<'>': use letters, digits"),
    ],
)
def test_what_cannot_be_done_is_one_line_before_anything_is_written(
    tmp_path: Path, command: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project(tmp_path / "bad", SHORT)
    for name in ("scratch", "..", "q<'>"):
        (root / "experiments" / f"{name}.yaml").write_text(SHORT)
    write_search(root)
    before = sorted(root.rglob("*"))
    monkeypatch.setenv("PATH", "")
    assert main([*command.format(root=root).split(), "--root", str(root)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message.format(root=root) in line
    assert sorted(root.rglob("*")) == before
