"""Another library in another environment: a process that answers one line of JSON with another."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from realm_lab.errors import UserError

SCRIPTS = Path(__file__).with_name("peers")


class Peer:
    """A script of peers/ under the given Python; it sleeps while it is not asked, so that timings do not mix."""

    def __init__(self, python: str, script: str, threads: int):
        # The peer gets the OpenMP settings of this process, but not its libraries.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
        }
        command = [python, str(SCRIPTS / script)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        except OSError as error:
            raise UserError(f"{python}: cannot be started ({error.strerror}); name another Python") from None
        self._name = " ".join(command)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, with the reason on standard error
        line = self._process.stdout.readline()
        if not line:
            raise UserError(f"{self._name}: ended without an answer; see its message above, and benchmarks/README.md")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
