"""A line on standard error if a command has printed nothing for some seconds: on a busy machine, loading libraries
and reading a large project take longer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

SECONDS = 3.0


class _Noting:
    """A stream that notes when something is written to it; otherwise it is the stream itself."""

    def __init__(self, stream: TextIO, written: threading.Event):
        self._stream, self._written = stream, written

    def write(self, text: str) -> int:
        """Write, and note it."""
        self._written.set()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def first_line(line: str, seconds: float = SECONDS) -> Iterator[None]:
    """Print `line` after `seconds` in the context, unless something was written to standard output or error before."""
    written, streams = threading.Event(), (sys.stdout, sys.stderr)

    def watch() -> None:
        if not written.wait(seconds):
            print(line, file=streams[1], flush=True)

    sys.stdout, sys.stderr = (_Noting(stream, written) for stream in streams)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        written.set()
        watcher.join()
        sys.stdout, sys.stderr = streams
