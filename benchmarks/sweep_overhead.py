"""What a run of a study costs beyond its own work: seconds of its process that are neither imports nor its stages' own.

Run from the repository, on an idle machine: python -m benchmarks.sweep_overhead
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from realm_lab.core.files import write_json
from realm_lab.runner.plan import plan_study
from realm_lab.runner.tasks import Task, tasks_of
from realm_lab.runner.workers import Workers
from realm_lab.tracking.state import StageStates

REPEATS = 5
STUDY = """
question: What does a run cost beyond its own work?
preset: smoke
seeds: [0]
baseline: realm
set:
  warm_start.reader.steps: 2
  warm_start.embedder.steps: 2
  pretrain.steps: 2
  finetune.steps: 2
  evaluate: {questions: 8, cloze_sentences: 8}
cells:
  realm: {}
"""


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep_overhead", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="once, for the tests")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args(argv)
    result = run(1 if arguments.tiny else REPEATS)
    print(report(result))
    if arguments.output:
        write_json(arguments.output, result)
    return 0


def run(repeats: int = REPEATS) -> dict[str, Any]:
    """The same run in a fresh folder again and again: one process for all five stages, then one with nothing to do."""
    imports = statistics.median(_import_seconds() for _ in range(repeats))
    working, idle = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "params.yaml").write_text("preset: smoke\n")
            (root / "overhead.yaml").write_text(STUDY)
            [task] = tasks_of(plan_study(root / "overhead.yaml", root).runs, StageStates(root / "runs"))
            seconds = _worker_seconds(task, root)
            own = sum(run.status().wall_seconds for run in task.runs(root))
            working.append(seconds - own - imports)
            idle.append(_worker_seconds(task, root) - imports)
    return {
        "machine": description(1),
        "import_seconds": imports,
        "overhead_seconds": {"of five stages": statistics.median(working), "of nothing to do": statistics.median(idle)},
        "all": {"of five stages": working, "of nothing to do": idle},
    }


def report(result: dict[str, Any]) -> str:
    """The figures in lines."""
    lines = [f"imports of a worker: {result['import_seconds']:.2f} s"]
    for what, seconds in result["overhead_seconds"].items():
        lines.append(f"beyond imports and the stages' own time, {what}: {seconds:.2f} s")
    return "\n".join(lines)


def _import_seconds() -> float:
    """A process that imports what a worker does; the first optimiser of torch brings torch._dynamo."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import realm_lab.runner.worker, torch._dynamo"], check=True)
    return time.perf_counter() - began


def _worker_seconds(task: Task, root: Path) -> float:
    began = time.perf_counter()
    outcome = Workers.start(task.job(root), threads=1, log=root / "worker.txt").wait()
    seconds = time.perf_counter() - began
    if outcome.code:
        raise RuntimeError(outcome.text)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
