"""`make demo-study`: train the finished study of `realm-lab demo`, and copy it into the package."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

from realm_lab.errors import UserError
from realm_lab.lab import demo
from realm_lab.lab.sweep import Sweep
from realm_lab.records.digests import read_digests, write_last
from realm_lab.records.run import StageRun

LEFT_OUT = "env.json", "code.patch", "lease"  # of a stage: they name the machine and the user


def collect(root: Path) -> None:
    """Copy the stages of the finished study into the package, without names of the user and the machine."""
    target = demo.FOLDER / "stages"
    shutil.rmtree(target, ignore_errors=True)
    for run in demo.planned(root).runs:
        for stage, folder in run.folders(Path(root) / "runs").items():
            copy = target / folder.name
            if stage != "prepare" and not copy.exists():
                StageRun(folder, stage).check()
                shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
                status = replace(StageRun(folder, stage).status(), host="", pid=0)
                write_last(copy / "status.json", asdict(status), name=read_digests(folder)[0])


def main(root: Path) -> None:
    """Train the study in the project ROOT, unless the present code has done so, and copy it into the package."""
    asked = Sweep(demo.FOLDER / "demo.yaml", root, params_path=demo.FOLDER / "params.yaml", retry_failed=True,
                      overrides={"launch.other_code": "fresh"})  # fmt: skip
    if asked.run():
        raise UserError("the study of the demo is not complete", "run it again")
    collect(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
