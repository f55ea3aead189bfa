"""Seconds to plan a study of 500 cells, to find its tasks and to print it. `python -m benchmarks.sweeps [--cells N]`

The goal: plan, tasks, states and table together under two seconds for 500 cells.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def main() -> None:
    """Print the seconds of each part, and of all of it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=500)
    parser.add_argument("--root", type=Path, help="do it once in this folder, which `measure` has prepared")
    options = parser.parse_args()
    if options.root is not None:
        once(options.root)
    else:
        measure(options.cells)


def measure(cells: int) -> None:
    """Plan, print and record a study over and over: with no runs, and with all runs recorded and complete."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_study(root, cells)
        for state in ("nothing is there", "every run is complete"):
            if state != "nothing is there":
                finish_all(root)
            start = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.sweeps", "--root", str(root)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(f"{cells} cells, {state}: {time.perf_counter() - start:.2f} s from start to end")
            print(done.stdout.rstrip())


def once(root: Path) -> None:
    """Plan, look, print; the seconds of each."""
    start = time.perf_counter()
    from rich.console import Console

    from realm_lab.runner.plan import plan_study
    from realm_lab.runner.preview import plan_as_json, show_plan
    from realm_lab.runner.status import drawn, picture_of
    from realm_lab.runner.tasks import tasks_of
    from realm_lab.tracking.state import StageStates

    print(f"  {'imports':20} {time.perf_counter() - start:6.3f} s")
    plan = timed("plan", lambda: plan_study(root / "study.yaml", root))
    timed("tasks", lambda: tasks_of(plan.runs, StageStates(root / "runs")))
    timed("states", lambda: plan_as_json(plan, root))
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, width=140)
        timed("table", lambda: show_plan(plan, root, console))
        timed("status", lambda: console.print(drawn(picture_of("study", root / "study.yaml", root))))


def timed(name: str, work: Callable[[], Result]) -> Result:
    """Do it and print how long it took."""
    start = time.perf_counter()
    result = work()
    print(f"  {name:20} {time.perf_counter() - start:6.3f} s")
    return result


def make_study(root: Path, cells: int) -> None:
    """A study of one axis with so many points."""
    rates = [round(1e-4 * (1 + place), 7) for place in range(cells)]
    (root / "params.yaml").write_text("preset: toy\n", encoding="utf-8")
    name = "pretrain.retriever.learning_rate"
    text = f"question: Which rate?\nseeds: [0]\nbaseline: {{{name}: {rates[0]}}}\naxes: {{{name}: {rates}}}\n"
    (root / "study.yaml").write_text(text, encoding="utf-8")


def finish_all(root: Path) -> None:
    """The records of every run, and the files that say that its stages are complete."""
    from realm_lab.runner.plan import plan_study, record_study
    from realm_lab.tracking.run_dir import KEY_LENGTH

    plan = plan_study(root / "study.yaml", root)
    record_study(plan, root)
    status = json.dumps({"state": "COMPLETE", "attempt": 1, "wall_seconds": 60.0, "total_steps": 800})
    for run in plan.runs:
        for stage, key in run.plan.stages.items():
            folder = root / "runs" / "stages" / f"{stage}-{key[:KEY_LENGTH]}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "status.json").write_text(status, encoding="utf-8")
            (folder / "results.json").write_text("{}", encoding="utf-8")


if __name__ == "__main__":
    main()
