"""The command line as a person meets it: real processes, exit codes, and output."""

import errno
import io
import re
import shlex
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
import shtab

from realm_lab import cli
from realm_lab.cli.examples import EXAMPLES
from realm_lab.cli.first_line import first_line
from realm_lab.cli.flags import located
from realm_lab.cli.parser import ALIASES, completion
from realm_lab.engine.params.parameters import Params
from realm_lab.errors import UserError
from realm_lab.lab.sweep import Sweep
from tests.limits import HANG_SECONDS


class Stages(ModuleType):
    """Replaces realm_lab.lab.pipeline, whose work takes minutes, to test the arguments of the command line."""

    def __init__(self) -> None:
        super().__init__("realm_lab.lab.pipeline")
        self.calls: list[tuple[str, tuple[Params, str], Path]] = []
        self.shown: list[tuple[str, tuple[Params, str], Path]] = []
        self.failure: BaseException | None = None

    def check_corpus(self, params: Params) -> None: ...

    def planned(self, params: Params, name: str) -> tuple[Params, str]:
        return params, name

    def run(self, stage: str, plan: tuple[Params, str], root: Path) -> None:
        self.calls.append((stage, plan, root))
        if self.failure is not None:
            raise self.failure

    def show(self, stage: str, plan: tuple[Params, str], root: Path) -> None:
        self.shown.append((stage, plan, root))


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    made = Stages()
    monkeypatch.setitem(sys.modules, "realm_lab.lab.pipeline", made)
    monkeypatch.setattr("realm_lab.lab.pipeline", made, raising=False)
    return made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text("preset: smoke\npretrain:\n  steps: 7\n")
    return tmp_path


def test_help_names_the_verbs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "realm_lab", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    listed = re.findall(r"^  ([a-z]+) {2,}\w", done.stdout, re.MULTILINE)
    assert {*cli.build_parser().verbs()} - {*listed} == {"index", "mine"}


def test_bash_completes_the_choices_of_an_option() -> None:
    typed = ["realm-lab", "sweep", "--launcher", "sl"]
    script = shtab.complete(completion(), "bash")
    function = script.rpartition("-F ")[2].split()[0]
    ask = f"COMP_WORDS=({shlex.join(typed)}); COMP_CWORD={len(typed) - 1}; {function}"
    command = f'{script}\n{ask}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["slurm"]


@pytest.mark.parametrize("verb", cli.build_parser().verbs())
def test_every_verb_has_examples_that_it_understands(verb: str) -> None:
    assert EXAMPLES[verb]
    for command in EXAMPLES[verb]:
        options, unknown = cli.build_parser().parse_known_args(shlex.split(command))
        assert (options.verb, unknown) == (verb, [])
    assert next(iter(EXAMPLES[verb])) in cli.build_parser().verbs()[verb].format_help()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pretain"], "'run --until pretrain'"),
        (["rm"], "'gc'"),
        (["zzzz"], "choose from: init, demo, prepare, "),
        # today's abbreviation of one option may be another option tomorrow
        (["pretrain", "--par", "x"], "--params"),
        (["sweep", "x", "--cell", "a"], "--cells"),
        (["pretrain", "--pretrain.steps=9"], "--set pretrain.steps=9"),
        (["pretrain", "--pretrain.steps", "10"], "--set pretrain.steps=10"),
        (["sweep", "x", "--seeds", "0"], "--seeds: must be at least 1"),
        (["ask", "who", "is", "it"], "in quotes"),
    ],
)
def test_a_wrong_command_line_leaves_with_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_run_that_is_named_has_its_own_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("ask Who? --system orqa,realm", "evaluate --run-file r.run --set pretrain.steps=3"):
        assert cli.main([*words.split(), "--run", "realm-s0"]) == 2
        assert f"leave out {words.split()[-2]}\n" in capsys.readouterr().err


def test_an_option_without_its_other_is_refused(stages: Stages, capsys: pytest.CaptureFixture[str]) -> None:
    said = "--run belongs to --corpus or --run-file; leave it out"
    for words, error in (
        ("evaluate --predictions p --run r", said),
        ("prepare --json", "--json belongs to --count"),
        ("status x --follow --json", "without --json"),
        ("sweep x --try --json", "leave out --json"),
    ):
        assert cli.main(words.split()) == 2
        assert error in capsys.readouterr().err
    assert stages.calls == []


def test_relative_inputs_are_in_the_project_and_paths_of_the_command_line_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "z.jsonl").write_text('{"id": "d", "title": "T", "text": "A text."}\n')
    corpus = "{source: files, tagger: rule, pretrain_corpus: same, "
    corpus += "files: {knowledge: [z.jsonl], questions_test: [q.jsonl]}}"
    (project / "params.yaml").write_text(f"preset: smoke\ncorpus: {corpus}\n")
    (project / "q.jsonl").write_text('{"question": "who", "answer": "Ann"}\n')
    (tmp_path / "more.yaml").write_text((project / "params.yaml").read_text())
    shown = []
    for folder, options in (
        (project, []),
        (tmp_path, ["--root", "project"]),
        (tmp_path, ["--root", "project", "--params", "more.yaml"]),
    ):
        monkeypatch.chdir(folder)
        assert cli.main(["prepare", "--dry-run", *options]) == 0, capsys.readouterr().err
        shown.append(capsys.readouterr().out)
        assert Path.cwd() == folder
    assert shown[0] == shown[1], "with the same keys"
    (tmp_path / "here.txt").write_text("A text.")
    assert cli.main(["prepare", "--count", "here.txt", "--root", "project"]) == 0
    assert "documents 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "last"),
    [
        ("prepare", "prepare"),
        ("run --until warm-start", "warm_start"),
        ("pretrain", "pretrain"),
        ("run", "evaluate"),
    ],
)
def test_a_verb_of_the_pipeline_runs_to_its_stage(words: str, last: str, stages: Stages, project: Path) -> None:
    verb = words.split()
    assert cli.main([*verb, "--root", str(project)]) == 0
    [(stage, (params, study), root)] = stages.calls
    assert (stage, root, study) == (last, project, "default")
    assert (params.preset, params.pretrain.steps) == ("smoke", 7)
    assert cli.main(["--root", str(project), *verb]) == 0
    assert stages.calls[1][::2] == (last, project)
    assert cli.main([*verb, "--dry-run", "--root", str(project), "--set", "pretrain.steps=8"]) == 0
    [(stage, (params, study), _)] = stages.shown
    assert (stage, params.pretrain.steps, study, len(stages.calls)) == (last, 8, "scratch", 2)


@pytest.mark.parametrize(
    ("failure", "code", "line"),
    [
        (UserError("a.txt, line 3:\n  no title; add one"), 2, "error: a.txt, line 3: no title; add one"),
        (KeyboardInterrupt(), 130, "run interrupted; run it again to go on"),
        (OSError(errno.EROFS, "Read-only", "runs/.lock"), 2, "error: runs/.lock: Read-only; make it writable"),
        (ZeroDivisionError("by zero"), 70, "unexpected ZeroDivisionError: by zero; run again with --debug"),
    ],
)
def test_every_failure_is_one_line(
    failure: BaseException, code: int, line: str, project: Path, stages: Stages, capsys: pytest.CaptureFixture[str]
) -> None:
    stages.failure = failure
    assert cli.main(["pretrain", "--root", str(project)]) == code
    printed = capsys.readouterr().err
    assert printed.startswith(f"realm-lab: {line}")
    assert printed.count("\n") == 1
    assert cli.main(["pretrain", "--root", str(project), "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_the_tracking_store_is_the_nearest_one_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from realm_lab.lab.tracking.mirror import MirrorSummary

    summary = MirrorSummary("sqlite:///here", {"COMPLETE": 2})
    mirror = Mock(return_value=summary)
    monkeypatch.setattr("realm_lab.lab.tracking.mirror.mirror", mirror)
    root = ["mirror", "--root", str(project)]
    assert cli.main(root) == 0
    (project / "params.yaml").write_text("launch: {tracking_uri: 'http://params:1'}\n")
    assert cli.main(root) == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://environment:2")
    assert cli.main([*root, "--follow"]) == 0
    assert cli.main([*root, "--uri", "http://option:3"]) == 0
    runs = project / "runs"
    assert [call.args for call in mirror.call_args_list] == [
        (runs, None, False),
        (runs, "http://params:1", False),
        (runs, "http://environment:2", True),
        (runs, "http://option:3", False),
    ]
    assert capsys.readouterr().out == f"{summary}\n" * 4
    mirror.return_value = replace(summary, problems=("runs/x/run.json: broken",))
    assert cli.main(root) == 1


def test_following_mirrors_with_the_parameters_of_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror is started as another program, whose parser must accept the arguments."""
    started = Mock()
    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(subprocess, "run", started)
    with Sweep(tmp_path, tmp_path, params_path=tmp_path / "other.yaml", follow=True).mirroring():
        pass
    options = [cli.build_parser().parse_args(call.args[0][3:]) for call in started.call_args_list]
    assert [(one.verb, one.params, one.follow) for one in options] == [
        ("mirror", tmp_path / "other.yaml", follow) for follow in (True, False)
    ]
    assert None not in [call.kwargs["stdout"] for call in started.call_args_list], "only the sweep prints there"


@pytest.mark.parametrize("name", sorted(ALIASES.keys() - {"evaluate"}))  # a plug-in makes it a command here
def test_another_name_is_the_same_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--root", "elsewhere", *name.split(), "--help"])
    assert left.value.code == 0
    assert f"usage: realm-lab {ALIASES[name].split()[0]} " in capsys.readouterr().out


def test_an_installed_package_adds_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "greeting.py").write_text(GREETING)
    (info := tmp_path / "greeting-1.dist-info").mkdir()
    (info / "METADATA").write_text("Name: greeting\nVersion: 1\n")
    names = "logs = greeting:add_greet\nbroken = greeting:gone\n"  # logs: without plug-ins another name of status
    (info / "entry_points.txt").write_text(f"[realm_lab.verbs]\n{names}")
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["logs", "Ada", "--root", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"hello Ada of {tmp_path}\n"
    assert printed.err.startswith("realm-lab: the command broken of a plug-in is left out (AttributeError: ")
    assert cli.main([]) == 0
    assert "logs        say hello" in capsys.readouterr().out


GREETING = """
def add_greet(add):
    greet = add("tools", "logs", run, "say hello")
    greet.add_argument("name")


def run(options):
    print(f"hello {options.name} of {options.root}")
"""

PRINTS = """
import sys, types
import realm_lab
from realm_lab import cli
def run(stage, plan, root):
    {body}
stages = types.ModuleType("realm_lab.lab.pipeline")
stages.run, stages.planned, stages.check_corpus = run, lambda *given: given, lambda params: None
sys.modules["realm_lab.lab.pipeline"] = realm_lab.stages = stages
sys.exit(cli.main(["pretrain"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("body", ["[print('x' * 1000) for _ in range(1000)]", "print('a line still in the buffer')"])
def test_a_reader_that_went_away_is_no_error(project: Path, body: str) -> None:
    command = [sys.executable, "-c", PRINTS.format(body=f"sys.stderr.write(sys.stdin.readline()); {body}")]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=project, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None  # communicate() would read it
    _, errors = process.communicate(timeout=HANG_SECONDS)
    assert errors == ""
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("text", "flags", "place"),
    [
        ("corpus:\n  tagger: exakt\n", [], "params.yaml, line 3: "),
        ("", ["--set", "corpus.source.entitis=3"], "error: --set corpus.source.entitis: "),
    ],
)
def test_a_wrong_part_is_told_with_its_line_or_flag(
    text: str, flags: list[str], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.yaml").write_text(f"preset: smoke\n{text}")
    assert cli.main(["prepare", "--root", str(tmp_path), *flags]) == 2
    assert place in capsys.readouterr().err


def test_an_error_is_not_searched_for_in_parameters_that_are_not_read(tmp_path: Path) -> None:
    error = UserError("no such module", parameter="plugins")
    for words in (["ask", "--run", "x", "who ?"], ["run"]):
        assert located(error, cli.build_parser().parse_args([*words, "--root", str(tmp_path)])) is error


class Seen(io.StringIO):
    """A stream with an event that is set when something is written."""

    written = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        self.written.set()
        return written


def test_a_silent_command_has_a_first_line_on_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    monkeypatch.setattr(sys, "stderr", seen)
    with first_line("at work", seconds=0.0):
        assert seen.written.wait(30)
    assert seen.getvalue() == "at work\n"
