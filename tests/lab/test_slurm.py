"""Requests to SLURM, and the use of its answers; its programs are scripts that record their calls."""

import os
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from realm_lab.errors import UserError
from realm_lab.lab import slurm, slurm_job
from realm_lab.lab.launchers import LauncherSettings, SlurmOptions
from realm_lab.lab.slurm import PACKAGE, SlurmLauncher, freeze_code
from realm_lab.lab.slurm_queue import SubmittedJob, latest_jobs, record_jobs
from realm_lab.lab.tasks import Task
from realm_lab.records import environment
from realm_lab.records.files import read_json, write_json
from realm_lab.records.run import Run, State
from realm_lab.records.state import Cause, Reason, StageState
from tests import tiny
from tests.factories.finished import finished
from tests.lab.fake_slurm import Fake


@pytest.fixture
def make() -> Any:
    """Make a task: its name, the names before it, and launch.ranks."""

    def task(name: str, *after: str, ranks: int = 1, stages: tuple[str, ...] = ("pretrain",)) -> Task:
        keys = dict.fromkeys(stages, name[-1] * 64)
        run = Run("realm", 0, "", "", system="realm", params=tiny.params({"launch.ranks": ranks}))
        return Task(name, stages, run, keys, after, ("realm",))

    return task


def slurm_launcher(root: Path, **settings: Any) -> SlurmLauncher:
    return SlurmLauncher(LauncherSettings(slurm=SlurmOptions(**settings)), root, "masking")


def directives(script: list[str]) -> dict[str, str]:
    """{option: value} of the #SBATCH lines."""
    pairs = [line.removeprefix("#SBATCH --").partition("=") for line in script if line.startswith("#SBATCH")]
    return {name: value for name, _, value in pairs}


def test_what_is_submitted(fake: Fake, root: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "MOST_ELEMENTS", 2)
    settings = {
        "partition": "gpu",
        "constraint": "a100|h100",
        "nodes": 2,
        "gpus_per_node": 4,
        "cpus_per_task": 6,
        "mem_gb": 64,
        "timeout_min": 90,
        "signal_delay_s": 200,
        "array_parallelism": 7,
        "setup": ["module load cuda"],
        "additional": {"reservation": "mine", "exclusive": True, "contiguous": False},
    }
    launcher = slurm_launcher(root, **settings)
    first = [make("a", stages=("prepare",)), make("b", stages=("prepare",)), make("c", stages=("prepare",))]
    launcher.submit([*first, make("d", "a", ranks=8)])
    one, two, three = (directives(fake.script(number)) for number in (100, 101, 102))
    assert one["array"] == "0-1%2"
    assert ("array" in two, "dependency" in one) == (False, False)
    assert (two["dependency"], three["dependency"]) == ("afterany:100", "afterany:100:101")
    # One array after the other, so that the cap holds for all of them.
    assert (one["nodes"], one["ntasks-per-node"]) == ("1", "1")
    assert (three["nodes"], three["ntasks-per-node"]) == ("2", "4")
    wanted = {
        "job-name": "realm_lab-masking",
        "partition": "gpu",
        "constraint": "'a100|h100'",
        "gpus-per-node": "4",
        "cpus-per-task": "6",
        "mem": "65536MB",
        "time": "90",
        "signal": "USR2@200",
        "reservation": "mine",
        "exclusive": "",
        "requeue": "",
    }
    assert wanted.items() <= three.items()
    assert not {"wckey", "contiguous"} & three.keys()
    script = fake.script(102)
    [code] = (root / "runs/studies/masking/code").iterdir()
    begins = f'export PYTHONPATH={code}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    order = [script.index(line) for line in (begins, "export OMP_NUM_THREADS=6", "module load cuda")]
    assert order == sorted(order)
    [command] = [line for line in script if line.startswith("srun")]
    assert "--cpus-per-task=6" in command
    assert {"unset RANK WORLD_SIZE", "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))"} <= set(script)
    jobs = latest_jobs(root, "masking")
    assert [(job.task, job.job) for job in jobs] == [("a", "100_0"), ("b", "100_1"), ("c", "101"), ("d", "102")]
    assert jobs[3].keys == {"pretrain": "d" * 64}
    slurm_launcher(root, requeue=False).submit([make("e")])
    assert {"no-requeue", "requeue"} & directives(fake.script(103)).keys() == {"no-requeue"}


def test_a_task_waits_for_a_job_of_an_earlier_submission(fake: Fake, root: Path, make: Any) -> None:
    """The earlier job may be of another study. A job of the task that has ended does not hide the one that runs."""
    a, b = (f"pretrain-{letter * 12}" for letter in "ab")
    SlurmLauncher(LauncherSettings(slurm=SlurmOptions()), root, "recall").submit([make(a)])
    slurm_launcher(root).submit([make(a), make(b)])
    fake.answer("squeue", "101_0|RUNNING|None\n101_1|COMPLETED|None\n")
    slurm_launcher(root).submit([make("c", a), make("d", b)])
    assert directives(fake.script(102))["dependency"] == "afterany:101"
    SlurmLauncher(LauncherSettings(slurm=SlurmOptions()), root, "table").submit([make("c", a), make("d", b)])
    assert directives(fake.script(103))["dependency"] == "afterany:101"
    fake.answer("squeue", "101_0|COMPLETED|None\n")
    slurm_launcher(root).submit([make("e", a)])
    assert "dependency" not in directives(fake.script(104))


def test_nothing_waits_for_a_job_of_another_study_that_stops_before(fake: Fake, root: Path, make: Any) -> None:
    task = make(f"pretrain-{'a' * 12}", stages=("warm_start", "pretrain"))
    record_jobs(root, "recall", [SubmittedJob("warm", {"warm_start": "a" * 64}, "17")])
    fake.answer("squeue", "17|RUNNING|None\n")
    free, left = slurm_launcher(root).free([task, make("b", task.name)])
    assert (free, len(left)) == ([], 2)


def status(root: Path, task: str, state: str, error: str | None = None, stage: str = "pretrain") -> None:
    """Write the status that a job left in the folder of a stage."""
    folder = root / "runs" / "stages" / f"{stage}-{task[-1] * 12}"
    write_json(folder / "status.json", {"state": state, "error": error})


def test_how_jobs_stand(fake: Fake, root: Path, make: Any) -> None:
    """SLURM's answer counts for jobs that wait or run, the files for stages that have ended."""
    names = "adefghijkl"
    launcher = slurm_launcher(root)
    launcher.submit([make(name) for name in names])
    said = {
        "a": "PENDING|Dependency",
        "d": "RUNNING|None",
        "e": "COMPLETED|None",
        "f": "FAILED|NonZeroExitCode",
        "g": "TIMEOUT|TimeLimit",
        "h": "CANCELLED|None",
        "i": "NODE_FAIL|None",
        "j": "FAILED|NonZeroExitCode",  # and k is not remembered
        "l": "PREEMPTED|None",
    }
    lines = [f"100_{names.index(name)}|{words}" for name, words in said.items()]
    fake.answer("squeue", "\n".join([*lines, "100_10|RUNNING|None\n"]))
    status(root, "e", "COMPLETE")
    status(root, "f", "FAILED", "the loss is nan")
    status(root, "g", "PREEMPTED")
    status(root, "h", "PREEMPTED")
    status(root, "i", "RUNNING")
    status(root, "k", "COMPLETE")
    status(root, "l", "RUNNING")  # killed before it had written a checkpoint
    logs = root / "runs/studies/masking/slurm"
    (logs / "100_7_0_log.err").write_text("boom\nsrun: error: vm: task 0: Exited with exit code 2\n")
    assert launcher.poll() == {
        "a": StageState("QUEUED", "100_0", Reason(Cause.QUEUE, queue="Dependency")),
        "d": StageState("RUNNING", "100_1"),
        "e": StageState("COMPLETE", "100_2"),
        "f": StageState("FAILED", "100_3", Reason(Cause.ERROR, detail="the loss is nan")),
        "g": StageState("PREEMPTED", "100_4"),
        "h": StageState("CANCELLED", "100_5"),
        "i": StageState("FAILED", "100_6", Reason(Cause.QUEUE, queue="NODE_FAIL")),
        "j": StageState("FAILED", "100_7", Reason(Cause.ERROR, detail="boom")),
        "k": StageState("COMPLETE", "100_8"),
        "l": StageState("PREEMPTED", "100_9"),
    }
    assert fake.calls("squeue")[-1].endswith("--jobs=100")


def test_of_what_squeue_has_forgotten_the_accounts_tell(fake: Fake, root: Path, make: Any) -> None:
    launcher = slurm_launcher(root)
    launcher.submit([make(name) for name in "abcdefghi"])
    fake.answer("squeue", "100_0|RUNNING|None\n")
    words = ("FAILED", "CANCELLED by 1000", "OUT_OF_MEMORY", "RUNNING", "FAILED", "TIMEOUT")
    lines = [f"100_{number}|{state}" for number, state in enumerate(words)]
    fake.answer("sacct", "\n".join([*lines, "100_[6-8]|CANCELLED by 1000\n"]))
    for task in "ac":
        status(root, task, "RUNNING")
    status(root, "f", "COMPLETE")
    finished(root / "runs/stages" / f"pretrain-{'f' * 12}", {})
    logs = root / "runs/studies/masking/slurm"
    for number in (2, 4):
        (logs / f"100_{number}_0_log.err").write_text("a last word\n")
    ended = {
        "a": StageState("RUNNING", "100_0"),
        "b": StageState("CANCELLED", "100_1"),
        # the last status of c is older than its end
        "c": StageState("FAILED", "100_2", Reason(Cause.QUEUE, queue="OUT_OF_MEMORY")),
        "d": StageState("FAILED", "100_3", Reason(Cause.QUEUE)),
        "e": StageState("FAILED", "100_4", Reason(Cause.ERROR, detail="a last word")),
        "f": StageState("COMPLETE", "100_5"),
        "g": StageState("CANCELLED", "100_6"),
        "h": StageState("CANCELLED", "100_7"),  # before it started
        "i": StageState("CANCELLED", "100_8"),
    }
    assert launcher.poll() == launcher.poll() == ended
    [asked] = fake.calls("sacct")  # asked once, since an end is final
    assert asked.endswith("--jobs=100")


def test_what_could_not_start_is_not_a_failure_of_its_own(fake: Fake, root: Path, make: Any) -> None:
    launcher = slurm_launcher(root)
    launcher.submit([make("a"), make("b")])
    fake.answer("squeue", "slurm_load_jobs error: Invalid job id specified\n", code=1)
    states: tuple[State, ...] = ("PREEMPTED", "FAILED")
    reasons = [Reason(Cause.NEEDED, "pretrain", state) for state in states]
    for number, reason in enumerate(reasons):
        write_json(root / f"runs/studies/masking/ends/100_{number}.json", asdict(reason))
    found = launcher.poll()
    assert found["a"] == StageState("CANCELLED", "100_0", reasons[0])
    assert found["b"] == StageState("FAILED", "100_1", reasons[1])


def test_when_slurm_does_not_answer_nothing_is_concluded(fake: Fake, root: Path, make: Any) -> None:
    launcher = slurm_launcher(root)
    launcher.submit([make("a")])
    fake.answer("squeue", "slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(UserError, match=r"squeue: slurm_load_jobs error: Unable to contact .*; try again later"):
        launcher.poll()


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\nsbatch: fatal: no config source\n",
        "sbatch: error: If munged is up, restart with --num-threads=10\nsbatch: error: Munge encode failed\n",
    ],
)
def test_a_controller_that_is_not_reached_is_no_fault_of_the_study(
    fake: Fake, root: Path, make: Any, said: str
) -> None:
    fake.answer("sbatch", said, code=1)
    for ask in (SlurmLauncher.submit, lambda *given: list(SlurmLauncher.preview(*given))):
        with pytest.raises(UserError, match="SLURM_CONF") as caught:
            ask(slurm_launcher(root), [make("a")])
        assert "launcher.slurm" not in str(caught.value)


def test_a_preview_has_what_is_asked_for_and_how_many_jobs(fake: Fake, root: Path, make: Any) -> None:
    tasks = [make("a"), make("b"), make("c", "a"), make("d", "a", ranks=4)]
    settings = {"partition": "gpu", "gpus_per_node": 4, "mem_gb": 8, "timeout_min": 90, "array_parallelism": 7}
    launcher = slurm_launcher(root, **settings, additional={"reservation": "a b", "contiguous": False})
    _, jobs, *lines = launcher.preview(tasks)
    assert jobs.startswith("4 jobs in 3 arrays")
    launcher.submit(tasks)
    waits = []
    for line, number in zip(lines, (100, 101, 102), strict=True):
        flags = {name: value for name, _, value in (flag.partition("=") for flag in shlex.split(line)[2:])}
        waits.append(flags.pop("--dependency", ""))
        script = {f"--{name}": value.strip("'") for name, value in directives(fake.script(number)).items()}
        assert flags.items() <= script.items()
        assert script.keys() - flags.keys() <= {"--dependency", "--output", "--error", "--open-mode"}
    assert waits == ["", "afterany:ARRAY1", "afterany:ARRAY2"]


def test_sbatch_is_asked_whether_it_would_take_such_jobs(fake: Fake, root: Path, make: Any) -> None:
    list(slurm_launcher(root, partition="gpu").preview([make("a"), make("b"), make("c", ranks=2)]))
    assert len(fake.calls("sbatch")) == 2
    assert all("--test-only" in call and "--partition=gpu" in call for call in fake.calls("sbatch"))
    fake.answer("sbatch", "sbatch: error: invalid partition specified: gpu\nallocation failure\n", code=1)
    with pytest.raises(UserError, match=r"invalid partition specified: gpu; change launcher.slurm"):
        list(slurm_launcher(root, partition="gpu").preview([make("a")]))


def test_code_is_frozen_once_for_equal_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = freeze_code(tmp_path)
    written = {path: path.stat().st_mtime_ns for path in one.rglob("*")}
    assert freeze_code(tmp_path) == one
    assert {path: path.stat().st_mtime_ns for path in one.rglob("*")} == written
    same = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
    assert {path.relative_to(one / "realm_lab") for path in one.rglob("*.py")} == same
    assert (one / "realm_lab" / "engine" / "params" / "presets" / "toy.yaml").exists()
    assert not list(one.rglob("__pycache__"))
    before = environment.source()
    monkeypatch.setattr(environment, "REPOSITORY", one)
    assert environment.source() == before


JOB_17_3 = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3", "SLURM_PROCID": "0"}


def stopped(is_queued_again: bool = True, **environment: str) -> str:
    """Run a job that was asked to stop, in a separate process: it ignores signals afterwards."""
    program = f"from realm_lab.lab import slurm_job; slurm_job._stopped(is_queued_again={is_queued_again})"
    given = os.environ | JOB_17_3 | environment
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=given, capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize(
    ("state", "how", "requeue", "said"),
    [
        ("RUNNING", {}, "0\n", "job 17_3 was asked to stop: queued again\n"),
        ("RUNNING", {}, "1\nPresently disabled\n", "not queued again (Presently disabled); sweep again"),
        # scancel, a preemption and `scontrol requeue` have decided its fate
        ("COMPLETING", {}, None, "job 17_3 was asked to stop: SLURM ends it (COMPLETING)\n"),
        ("RUNNING", {"SLURM_RESTART_COUNT": "100"}, None, "not queued again after 100 times"),
        ("RUNNING", {"is_queued_again": False}, None, "requeue is false"),
        ("RUNNING", {"SLURM_PROCID": "1"}, None, ""),  # the first rank prints it
    ],
)
def test_a_job_goes_back_to_the_queue_while_slurm_lets_it_run(
    fake: Fake, state: str, how: dict[str, Any], requeue: str | None, said: str
) -> None:
    fake.answer("squeue", f"{state}\n")
    (fake.folder / "scontrol.answer").write_text(requeue or "0\n")
    found = stopped(**how)
    assert said in found
    assert bool(found) is bool(said)
    # this element: 17 would be the whole array
    assert fake.calls("scontrol") == ([] if requeue is None else ["requeue 17_3"])


def test_a_job_whose_beginning_is_missing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from realm_lab.engine.systems.identity import plan_run

    plan = plan_run(tiny.params(), "realm", 0)
    task = Task("a", ("pretrain",), plan, {"pretrain": plan.stages["pretrain"]}, (), ("realm",))
    more = {"keys": task.keys, "root": str(tmp_path), "requeue": False, "ends": str(tmp_path / "ends")}
    job = task.job(tmp_path) | more
    monkeypatch.setattr("realm_lab.records.files.VISIBLE_SECONDS", 0.0)
    monkeypatch.setattr(slurm_job, "exit_on_signals", lambda: None)
    monkeypatch.setenv("SLURM_JOB_ID", "17")

    def end(job: dict[str, Any]) -> Any:
        with pytest.raises(SystemExit) as caught:
            slurm_job.run_job(job)
        assert caught.value.code == 2
        return read_json(tmp_path / "ends" / "17.json")

    needed = end(job)
    assert (needed["cause"], needed["about"], needed["state"]) == ("needed", "prepare", "PENDING")
    tiny.prepare(tiny.params(), tmp_path)
    assert end(job)["about"] == "warm_start"
    assert end(job | {"keys": {"pretrain": "b" * 64}})["cause"] == "error"
