"""Processes that are the ranks of a run."""

import json
import os
import socket
import subprocess
import sys
from typing import Any

from tests.limits import HANG_SECONDS

SETUP = """
import json, os, signal, sys
import torch
from realm_lab.engine.core.process import *
from realm_lab.errors import UserError
connect(torch.device("cpu"))
rank, size = ranks()
def say(value):
    print(json.dumps(value), flush=True)
"""


def run_ranks(code: str, size: int = 2) -> list[tuple[int, list[Any], str]]:
    """Run code in `size` processes with a launcher's variables; return each one's exit code, output and errors."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SETUP + code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"WORLD_SIZE": str(size), "RANK": str(rank)},
        )
        for rank in range(size)
    ]
    outcomes = []
    for one in started:
        said, errors = one.communicate(timeout=HANG_SECONDS)
        outcomes.append((one.returncode, [json.loads(line) for line in said.splitlines()], (errors or "\n").strip()))
    return outcomes
