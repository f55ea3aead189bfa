"""Common settings of all tests: no telemetry, no tracking server of the user's, one thread."""

import gc
import importlib.util
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.tiny_system import Reference, TinySystem
    from tests.whole import Whole

signal.signal(signal.SIGINT, signal.default_int_handler)  # even if a shell started the tests with SIGINT ignored
settings.register_profile("untimed", deadline=None)  # a busy machine is no fault
settings.load_profile("untimed")

gc.disable()  # while modules are imported: a search for cycles, again and again, takes nearly half of that time
REPOSITORY = Path(__file__).resolve().parents[1]

# Set before any library is imported, and inherited by the processes that tests start.
os.environ["DVC_NO_ANALYTICS"] = "1"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch and faiss each have an OpenMP; tests at once share the cores
os.environ.pop("MLFLOW_TRACKING_URI", None)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _postgres() -> bool:
    has_server = shutil.which("initdb") is not None or any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return has_server and importlib.util.find_spec("psycopg") is not None


# marker -> (is it here?, why a test is skipped)
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "browser": (lambda: shutil.which("chromium") is not None, "no Chromium: apt-get install chromium"),
    "slurm": (lambda: shutil.which("sbatch") is not None, "no SLURM: apt-get install slurm-wlm munge"),
    "gpu": (_cuda, "no CUDA device"),
    "postgres": (_postgres, "no PostgreSQL: apt-get install postgresql, pip install psycopg[binary]"),
}


def pytest_collection_finish() -> None:
    """Search for cycles from now on, but not in imported modules, which stay."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that this machine cannot run, with the reason. Files with the most slow tests come first, so that no
    long file starts when the other processes have nothing left."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    for item in items:
        if any(item.get_closest_marker(marker) for marker in NEEDS) and item.get_closest_marker("slow"):
            item.add_marker("drill")
    items.sort(key=lambda item: -slow[item.path])
    for marker, (is_here, reason) in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not is_here():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the markers that the tests were limited to."""
    if config.option.markexpr:
        terminalreporter.write_line(f"only tests that are {config.option.markexpr}")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """See tiny.undrawn."""
    from tests import tiny

    with tiny.undrawn():
        yield


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> "TinySystem":
    """An untrained system; tests leave it as it is."""
    from tests.tiny_system import build_system, prepare_corpus

    return build_system(prepare_corpus(tmp_path_factory.mktemp("tiny") / "corpus"))


@pytest.fixture(scope="session")
def reference(system: "TinySystem", tmp_path_factory: pytest.TempPathFactory) -> "Reference":
    """The weights of `system` in transformers' classes."""
    from tests.tiny_system import Reference

    return Reference(system, tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> "Whole":
    """A project in which systems run all of their stages."""
    from tests.whole import Whole

    return Whole(tmp_path_factory.mktemp("whole"))
