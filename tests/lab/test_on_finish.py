"""The call at the end of a study: its input, its time, and that its failure fails nothing."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from realm_lab.cli import main
from realm_lab.lab import on_finish
from realm_lab.lab.plan import plan_study
from realm_lab.lab.results import Results
from realm_lab.lab.wanted import record_study, wanted
from tests.lab.conftest import PARAMETERS, leave
from tests.lab.test_sweep import make_project

STUDY = """
question: Does it call?
seeds: [0]
baseline: warm_start
on_finish: {command}
set: {{warm_start.reader.steps: 2, warm_start.embedder.steps: 2, finetune.steps: 2}}
cells:
  warm_start: {{system: warm_start}}
"""
CONTENT = {"study": "masking", "verdict": "No difference: größe ≥ 4."}


@pytest.mark.slow
def test_a_study_calls_once_when_it_ends_and_not_when_nothing_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_project(tmp_path / "project", STUDY.format(command="'cat >> got.json; false'"))
    sweep = ["sweep", "mini", "--root", str(root), "--launcher", "inline"]
    assert main(sweep) == 0  # though the command fails
    assert "on_finish: the command ended with code 1" in capsys.readouterr().err
    got = json.loads((root / "got.json").read_text())
    summary = json.loads((root / "reports" / "mini" / "summary.json").read_text())
    assert (got["study"], got["states"], got["verdict"]) == ("mini", {"COMPLETE": 1}, summary["verdict"])
    assert got["report"] == str((root / "reports" / "mini" / "report.md").resolve())
    (root / "got.json").unlink()
    assert main(sweep) == 0
    assert not (root / "got.json").exists()


@pytest.mark.parametrize(("scores", "goes_on"), [((0.2, 0.7, 0.4), True), ((0.5, 0.5, 0.5), False)])
def test_a_study_that_wants_more_seeds_has_not_ended(
    write: Callable[..., Path], tmp_path: Path, scores: tuple[float, ...], goes_on: bool
) -> None:
    head = "question: q\nseeds: {until: decided, at_least: 3, at_most: 6}\ndelta: {recall_at_5: 0.1}\n"
    path = write("baseline: a\nmetrics: [recall_at_5]\ncells: {a: , b: {system: warm_start}}\n", head=head)
    plan = plan_study(path, tmp_path, params_path=PARAMETERS)
    first = wanted(plan, Results(tmp_path))
    for run in first:
        value = 0.5 if run.cell == "a" else scores[run.seed]
        for stage in ("prepare", *run.stages):
            leave(tmp_path, run, stage, "COMPLETE", {"recall_at_5": value})
    assert len(first) == 6
    record_study(plan, tmp_path)
    assert (wanted(plan, Results(tmp_path)) != first) == goes_on


class Hook(BaseHTTPRequestHandler):
    """Keeps what is posted, and answers 500 below /broken."""

    got: ClassVar[list[tuple[str | None, dict[str, str]]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.headers["Content-Type"], json.loads(body)))
        self.send_response(500 if self.path == "/broken" else 204)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Stay silent."""


@pytest.fixture
def hook() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_json(hook: str, tmp_path: Path) -> None:
    Hook.got.clear()
    assert on_finish.call(f"{hook}/chat", CONTENT, tmp_path) == ""
    assert Hook.got == [("application/json", CONTENT)]
    assert "500" in on_finish.call(f"{hook}/broken", CONTENT, tmp_path)


@pytest.mark.parametrize("target", ["http://127.0.0.1:9/nobody", "no_such_command_at_all", "http://[broken"])
def test_what_cannot_be_called_is_a_line(target: str, tmp_path: Path) -> None:
    problem = on_finish.call(target, CONTENT, tmp_path)
    assert problem.startswith("on_finish: ")
    assert "\n" not in problem


def test_a_command_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_finish, "TIMEOUT_SECONDS", 0.1)
    assert "timed out" in on_finish.call("exec sleep 30", CONTENT, tmp_path)
