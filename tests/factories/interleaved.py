"""Two threads that write the same files, in the order that does most harm."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def meanwhile(name: str, other: Callable[[], object]) -> Iterator[None]:
    """Let another thread do `other` when the block is about to write the file `name`, until that ends or needs a
    lock."""
    real, lock, begun = os.replace, fcntl.flock, threading.Event()

    def work() -> None:
        try:
            other()
        finally:
            begun.set()

    thread = threading.Thread(target=work)

    def replace(source: Any, target: Any) -> None:
        if os.path.basename(target) == name and thread.ident is None:
            thread.start()
            begun.wait()
        real(source, target)

    def flock(*given: Any) -> None:
        if threading.current_thread() is thread:
            begun.set()
        lock(*given)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(os, "replace", replace)
        patches.setattr(fcntl, "flock", flock)
        yield
        thread.join()
