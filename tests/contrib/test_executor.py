"""The launcher `executor`: a study by the standard library, Ray and Parsl, with workers that are killed."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from realm_lab.cli import main
from realm_lab.contrib.remote import MOST_LOSSES, RemoteLauncher, do_file
from realm_lab.lab.launchers import LauncherSettings, launcher_of
from realm_lab.records.files import read_json
from tests.factories.errors import refused
from tests.lab.test_schedule import task
from tests.lab.test_sweep import LONG, make_project, outcomes, pretraining, start
from tests.limits import HANG_SECONDS

MY_CLUSTER = """
import os
import sys
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context


def pool():
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


def parsl():
    from parsl import Config
    from parsl.concurrent import ParslPoolExecutor
    from parsl.executors import HighThroughputExecutor

    workers = HighThroughputExecutor(max_workers_per_node=2, address="127.0.0.1", heartbeat_period=1)
    return ParslPoolExecutor(Config(executors=[workers], run_dir=os.environ["RUN_DIR"], usage_tracking=0))


class RayExecutor(Executor):
    def __init__(self):
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

    def submit(self, function, /, *given):
        import ray

        return ray.remote(num_cpus=1, max_retries=0)(function).remote(*given).future()

    def shutdown(self, wait=True, *, cancel_futures=False):
        import ray

        ray.shutdown()
"""


def named(factory: str) -> str:
    return f"{{name: executor, factory: 'my_cluster:{factory}'}}"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a file of factories."""
    made = make_project(tmp_path / "executor", LONG)
    (made / "my_cluster.py").write_text(MY_CLUSTER)
    monkeypatch.syspath_prepend(str(made))
    return made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcomes of the long study, done in this process."""
    here = make_project(tmp_path_factory.mktemp("undisturbed") / "here", LONG)
    assert main(["sweep", "mini", "--root", str(here), "--launcher", "inline"]) == 0
    return outcomes(here)


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.parametrize(("package", "factory"), [("", "pool"), ("ray", "RayExecutor"), ("parsl", "parsl")])
def test_a_worker_is_killed_and_the_study_completes(
    package: str, factory: str, root: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    if package:
        pytest.importorskip(package, reason=f"no {package}: pip install {package}")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # with those of Parsl
    process = start(root, "--launcher", named(factory), RUN_DIR=str(tmp_path / "parsl"), PATH=programs)
    stage = pretraining(root, process)
    psutil.Process(psutil.Process(stage.status().pid).ppid()).kill()  # the process that has called do_file
    _, said = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, said
    assert stage.status().attempt == 2
    assert outcomes(root) == undisturbed


class Hand(Executor):
    """An executor whose work ends when a test decides, or when its file is removed."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Any, ...]] = []
        self.futures: list[Future[tuple[int, str]]] = []
        made.append(self)

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        class Work(Future[tuple[int, str]]):
            def done(self) -> bool:
                if not super().done() and not Path(given[0]).exists():
                    self.set_result((143, "stopped by a signal; run again to resume"))
                return super().done()

        self.submitted.append((function, *given))
        self.futures.append(Work())
        return self.futures[-1]


made: list[Hand] = []


@pytest.fixture
def launcher(tmp_path: Path) -> RemoteLauncher:
    made.clear()
    choice = {"name": "executor", "factory": f"{__name__}:Hand", "at_once": 2}
    found = launcher_of("study", tmp_path, LauncherSettings(), choice)
    assert isinstance(found, RemoteLauncher)
    return found


def test_an_executor_gets_a_function_of_realm_lab_and_the_path_of_a_file(launcher: RemoteLauncher) -> None:
    launcher.submit([task(name) for name in ("a", "b", "c")])
    assert [state.state for state in launcher.poll().values()] == ["RUNNING", "RUNNING", "PENDING"]
    ((function, path), _) = made[0].submitted
    assert function is do_file
    assert read_json(Path(path))["job"]["stages"] == ["pretrain", "finetune"]
    made[0].futures[0].set_result((0, ""))
    assert [state.state for state in launcher.poll().values()] == ["COMPLETE", "RUNNING", "RUNNING"]
    assert not Path(path).exists()
    made[0].futures[1].set_result((1, "Traceback\nRuntimeError: odd"))
    states = launcher.poll()
    assert (states["b"].state, (states["b"].error or "").partition(" (see ")[0]) == ("FAILED", "RuntimeError: odd")


@pytest.mark.parametrize("error", [RuntimeError("the worker died"), BrokenExecutor("the worker died")])
def test_a_lost_task_is_started_again_and_given_up_after_a_while(launcher: RemoteLauncher, error: Exception) -> None:
    launcher.submit([task("a"), task("then", "a")])
    for number in range(MOST_LOSSES + 1):
        assert launcher.poll()["a"].state == "RUNNING", number
        [future] = [future for hand in made for future in hand.futures if not future.done()]
        future.set_exception(error)
    state = launcher.poll()["a"]
    assert (state.state, len(made)) == ("FAILED", 6 if isinstance(error, BrokenExecutor) else 1)
    assert f"its process was gone 6 times: {type(error).__name__}: the worker died" in (state.error or "")
    assert launcher.poll()["then"].state == "FAILED"


def test_a_lost_task_waits_for_what_is_left_of_its_processes(
    launcher: RemoteLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.submit([task("a")])
    launcher.poll()
    monkeypatch.setattr(RemoteLauncher, "other_writer", lambda *_: "process 7 on far")
    made[0].futures[0].set_exception(RuntimeError("the worker died"))
    assert launcher.poll()["a"].state == "QUEUED"  # so a sweep does not end here
    monkeypatch.setattr(RemoteLauncher, "other_writer", lambda *_: None)
    monkeypatch.setattr("realm_lab.lab.launchers.LOOK_AGAIN_SECONDS", 0.0)
    assert launcher.poll()["a"].state == "RUNNING"


def test_what_is_cancelled_stops_after_a_checkpoint_and_is_not_started_again(launcher: RemoteLauncher) -> None:
    launcher.submit([task(name) for name in ("a", "b", "c")])
    launcher.poll()
    launcher.close()
    assert {name: state.state for name, state in launcher.states.items()} == {
        **dict.fromkeys("ab", "PREEMPTED"),
        "c": "CANCELLED",
    }


def test_a_machine_that_does_not_see_the_folder_is_named(tmp_path: Path) -> None:
    code, text = do_file(str(tmp_path / "gone.json"))
    assert code == 2
    assert f"does not see the folder of the study: {tmp_path / 'gone.json'}: no such file" in text


def returns_text() -> str:
    return "no executor"


def test_a_wrong_factory_is_one_line(tmp_path: Path) -> None:
    for factory, words in {f"{__name__}:nothing": "no function", f"{__name__}:named": "it is called with ()"}.items():
        with refused(words):
            launcher_of("study", tmp_path, LauncherSettings(), {"name": "executor", "factory": factory})
    choice = {"name": "executor", "factory": f"{__name__}:returns_text"}
    wrong = launcher_of("study", tmp_path, LauncherSettings(), choice)
    wrong.submit([task("a")])
    with refused("returns str; return a concurrent.futures.Executor"):
        wrong.poll()
