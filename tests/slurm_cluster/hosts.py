"""Settings of drills for jobs on the hosts of a Cluster: quick leases, and separate clocks."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realm_lab.lab.launchers import LauncherSettings, SlurmOptions

LIMIT_SECONDS = 20.0  # of silence of a lease
SITE = """
import os, socket, time
ahead, exact = {ahead_seconds}.get(socket.gethostname(), 0.0), time.time
time.time = lambda: exact() + ahead
if "SLURM_PROCID" in os.environ:
    from realm_lab.records import run_lease
    run_lease.LIMIT_SECONDS, run_lease.BEAT_SECONDS = {limit_seconds}, 1.0
"""


def settings(folder: Path, ahead_seconds: Mapping[str, float] | None = None, **options: Any) -> LauncherSettings:
    """Settings of SLURM for jobs with quick leases, on hosts whose clocks are ahead or behind; `folder` is for both."""
    folder.mkdir(exist_ok=True)
    site = SITE.format(ahead_seconds=dict(ahead_seconds or {}), limit_seconds=LIMIT_SECONDS)
    (folder / "sitecustomize.py").write_text(site, encoding="utf-8")
    setup = [f'export PYTHONPATH={folder}{os.pathsep}"$PYTHONPATH"']
    return LauncherSettings(slurm=SlurmOptions.model_validate({"setup": setup, "mem_gb": 1, **options}))
