"""Bad input on the command line: one line with file or parameter and remedy, code 2, nothing half done."""

import gzip
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab import cli
from realm_lab.lab.launchers import InlineLauncher
from realm_lab.records.run import StageRun
from tests import tiny
from tests.engine.corpus.test_prepare_files import squad

FILES = (
    "--set corpus.source=files --set corpus.tagger=rule --set corpus.pretrain_corpus=same --set seeds=[0] "
    "--set tokenizer.vocabulary_size=300 --set corpus.passage_length=48 "
    "--set corpus.files.questions_train=[train.json] --set corpus.files.questions_test=[train.json]"
).split()

Complain = Callable[..., str]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a corpus and a warm start."""
    return tiny.prepare(tiny.params(), tmp_path_factory.mktemp("ready"), "warm_start")


@pytest.fixture
def project(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `ready` as the working folder, with the tiny parameters and a file of text."""
    folder = Path(shutil.copytree(ready, tmp_path / "project"))
    shutil.copy(Path(__file__).parents[1] / "tiny.yaml", folder / "params.yaml")
    squad(folder / "train.json", 20)
    for name in ("SECONDS_TO_FIRST_LINE", "SECONDS_BETWEEN_LINES"):  # a slow machine prints where a stage is
        monkeypatch.setattr(f"realm_lab.lab.progress.{name}", 1e9)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the stages in this process, which has imported torch already."""
    monkeypatch.setattr("realm_lab.lab.pipeline.LocalLauncher", InlineLauncher)


def finished(root: Path) -> dict[str, bytes]:
    """Return all results: corpora, models and reports. No temporary file may be left."""
    kept: dict[str, bytes] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and ("corpora/" in name or "model" in name.split("/") or name.startswith("reports/")):
            kept[name] = path.read_bytes()
        assert not path.name.endswith((".tmp", ".old")), f"{name} was left behind"
    return kept


@pytest.fixture
def complaint(project: Path, capsys: pytest.CaptureFixture[str]) -> Complain:
    """Run a command that must fail; returns its one line."""

    def run(*arguments: str) -> str:
        before = finished(project)
        capsys.readouterr()
        code = cli.main(list(arguments))
        printed = capsys.readouterr()
        assert (code, printed.out) == (2, "")
        lines = [line for line in printed.err.splitlines() if not re.search(r": (done in|\w+: step \d)", line)]
        line = lines[-1]
        assert len(lines) == 1 or "prepare" in arguments[0], lines
        assert line.startswith("realm-lab: error: ")
        after = finished(project)
        assert before.items() <= after.items()
        for path in (project / "runs" / "stages").iterdir():
            state = StageRun(path, path.name.split("-")[0]).status().state
            assert state in ("PENDING", "FAILED", "COMPLETE")
            if state != "COMPLETE":  # the other system may have been finished before
                assert not [name for name in after if f"/{path.name}/" in name]
        assert [name for name in after if "runs/stages/" not in name] == [
            name for name in before if "runs/stages/" not in name
        ]
        return line.removeprefix("realm-lab: error: ")

    return run


def knowledge(name: str) -> list[str]:
    return [*FILES, "--set", f"corpus.files.knowledge=[{name}]"]


@pytest.mark.usefixtures("here")
def test_a_broken_line_of_a_corpus_file(complaint: Complain, project: Path) -> None:
    """Other refusals are tested with the readers and in tests/engine/corpus/test_prepare_files.py."""
    (project / "lines.jsonl").write_text('{"title": "T", "text": "Paris."}\n{"title": "T", "te\n')
    assert "lines.jsonl, line 2" in complaint("prepare", *knowledge("lines.jsonl"))


@pytest.mark.usefixtures("here")
def test_the_file_that_is_broken_here_is_fine_when_whole(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prepare", *knowledge("train.json")]) == 0
    assert "passages 60" in capsys.readouterr().err
    assert any("passages 60" in path.read_text() for path in project.glob("runs/stages/prepare-*/summary.md"))


@pytest.mark.usefixtures("here")
def test_more_candidates_than_passages(complaint: Complain) -> None:
    line = complaint("pretrain", "--set", "pretrain.candidates=500")
    assert "parameter 'pretrain.candidates' is 500, but the knowledge corpus has only 320" in line


@pytest.mark.usefixtures("here")
def test_a_prepared_corpus_that_was_cut_off(complaint: Complain, project: Path) -> None:
    [path] = (project / "runs" / "corpora").glob("*/passages/bodies.bin")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 4 * 2])  # whole values of two bytes
    assert "bodies.bin" in complaint("pretrain")


@pytest.mark.slow
def test_a_worker_says_it_as_well(complaint: Complain, project: Path) -> None:
    (project / "cut.json.gz").write_bytes(gzip.compress((project / "train.json").read_bytes())[:-200])
    line = complaint("prepare", *knowledge("train.json, cut.json.gz"))
    assert line.startswith("prepare, seed 0 (shared by 2 variants): cut.json.gz")
