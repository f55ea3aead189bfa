"""A builder that kills itself (SIGKILL) or finds the disk full again and again: `python dying_builder.py FILE`.

FILE holds a JSON list: the n-th start dies at its n-th number's event (calls and returns of our functions), or cannot
write a second shard where it says "full"; later ones live. Every start adds a byte to FILE.starts. Shards and chunks
are small, so that a generation has several.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from realm_lab.core.files import atomic_write
from realm_lab.retrieval import index, shards
from realm_lab.systems import builder

ROWS = 64


def full_after(count: int) -> Any:
    """atomic_write, on a disk that has room for so many files."""
    room = [count]

    def write(path: Path, mode: str) -> Any:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return atomic_write(path, mode)

    return write


def main() -> int:
    """Be a builder until death."""
    index.EMBED_CHUNK_ROWS = ROWS
    vars(builder)["SHARD_ROWS"] = ROWS
    file = Path(sys.argv[1])
    events = json.loads(file.read_text())
    with open(f"{file}.starts", "ab+") as starts:
        number = starts.seek(0, os.SEEK_END)
        starts.write(b".")
    left = [events[number]] if number < len(events) else []
    if left == ["full"]:
        vars(shards)["atomic_write"] = full_after(1)
        return builder.main()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "return") and frame.f_globals.get("__name__", "").startswith("realm_lab"):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    if left:
        sys.setprofile(count)
    return builder.main()


if __name__ == "__main__":
    sys.exit(main())
