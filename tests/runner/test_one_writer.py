"""No two processes do one stage: the second is told who is at work, and takes over when that one is dead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from realm_lab.errors import UserError
from realm_lab.tracking.run_lease import writer_of

REPOSITORY = Path(__file__).resolve().parents[2]
HOLDS = """
import sys
from pathlib import Path
from realm_lab.tracking.run_lease import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_leaves_the_stage_to_the_first(tiny: ModuleType, tmp_path: Path) -> None:
    params = tiny.params()
    root = tiny.prepare(params, tmp_path)
    run = tiny.stage_run("warm_start", params, root)
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    pipe = subprocess.PIPE
    command, env = [sys.executable, "-c", HOLDS, str(run.path)], os.environ | {"PYTHONPATH": path}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"process {other.pid} on .* works on this stage; wait for it"):
            tiny.run("warm_start", params, root)
        assert run.status().state == "PENDING"  # not a failure of the run
        other.kill()
    tiny.run("warm_start", params, root)
    assert run.is_complete()
    assert writer_of(run.path) is None  # given back
