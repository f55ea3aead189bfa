"""A command that prints nothing for some seconds has a first line."""

import io
import sys
import threading

import pytest

from realm_lab.cli.first_line import first_line


class Seen(io.StringIO):
    """A stream with an event that is set when something is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

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


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_one_that_prints_by_itself_has_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, before = Seen(), set(threading.enumerate())
    monkeypatch.setattr(sys, name, seen)
    with first_line("at work", seconds=60.0):
        print("a result", file=getattr(sys, name))
        [watcher] = set(threading.enumerate()) - before
        watcher.join(30)
        assert not watcher.is_alive()
    assert (seen.getvalue(), getattr(sys, name)) == ("a result\n", seen)
