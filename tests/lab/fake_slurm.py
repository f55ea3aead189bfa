"""SLURM's programs as scripts that record their calls."""

import os
import sys
from pathlib import Path

import pytest

from realm_lab.lab import slurm_queue

# Each call is a line in `calls`. sbatch numbers its jobs from 100 and keeps their scripts; others print a given answer.
PROGRAM = """#!{python}
import os, pathlib, shutil, sys
here, name = pathlib.Path({folder!r}), pathlib.Path(sys.argv[0]).name
with open(here / "calls", "a") as file:
    print(name, *sys.argv[1:], file=file)
if name == "sbatch" and "--test-only" not in sys.argv and not (here / "sbatch.answer").exists():
    number = 100 + len(list(here.glob("script-*")))
    shutil.copy(sys.argv[1], here / f"script-{{number}}")
    print("Submitted batch job", number)
else:
    answer = here / f"{{name}}.answer"
    text = answer.read_text() if answer.exists() else ""
    code, _, text = text.partition("\\n") if text else ("0", "", "")
    print(text, end="", file=sys.stderr if int(code) else sys.stdout)
    sys.exit(int(code))
"""
PROGRAMS = ("sbatch", "srun", "squeue", "sacct", "scancel", "scontrol")


class Fake:
    """SLURM's programs on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name in PROGRAMS:
            path = folder / "bin" / name
            path.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        for memory in ("_ended", "_asked"):
            monkeypatch.setattr(slurm_queue, memory, {})

    def answer(self, name: str, text: str, code: int = 0) -> None:
        """Set the output of a program from now on."""
        (self.folder / f"{name}.answer").write_text(f"{code}\n{text}")

    def calls(self, name: str) -> list[str]:
        """The arguments of each call of a program."""
        lines = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        return [line.partition(" ")[2] for line in lines if line.split()[0] == name]

    def script(self, number: int) -> list[str]:
        """The lines of a submitted script."""
        return (self.folder / f"script-{number}").read_text().splitlines()
