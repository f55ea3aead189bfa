"""Cost of a study beyond its training: seconds of planning, running and reporting outside the stages.

Everything goes through the command line. One run of a few steps is made; for the report it is copied a thousand times.
Run from the repository, on an idle machine: python -m benchmarks.platform
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from realm_lab.evidence.ledger import note_plan
from realm_lab.records.files import digest, read_json, write_json
from realm_lab.records.run import KEY_LENGTH, Run, read_run, run_paths, stage_folder, write_run
from realm_lab.records.study import StudyCell, StudyRecord, write_study_record

STUDY = """
question: What does a run cost beyond its own work?
preset: smoke
seeds: [0]
baseline: realm
set: {warm_start.reader.steps: 2, warm_start.embedder.steps: 2, pretrain.steps: 2, finetune.steps: 2}
cells:
  realm: {}
"""
COPIED = ("config.yaml", "status.json", "env.json", "metrics.jsonl", "results.json", "eval")


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.platform", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="of the study that is reported (default: 1000)")
    parser.add_argument("--cells", type=int, default=500, help="of the study that is planned (default: 500)")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder), arguments.runs, arguments.cells, arguments.repetitions)
    for name, seconds in result["seconds"].items():
        print(f"{name}: {seconds:.2f} s")
    if arguments.output:
        write_json(arguments.output, result)
    return 0


def run(root: Path, runs: int, cells: int, repetitions: int) -> dict[str, Any]:
    """Measure each command; returns medians over repetitions. Each repetition is a process and includes its imports."""
    (root / "params.yaml").write_text("preset: smoke\n")
    (root / "one.yaml").write_text(STUDY)
    (root / "many.yaml").write_text(_many(cells))
    first, again = [], []
    for _ in range(repetitions):
        shutil.rmtree(root / "runs", ignore_errors=True)
        taken = _seconds("sweep", "one.yaml", root=root)
        own = [read_json(path)["wall_seconds"] for path in (root / "runs" / "stages").glob("*/status.json")]
        first.append(taken - sum(own))
        again.append(_seconds("sweep", "one.yaml", root=root))
    found = {
        "a run, beyond its stages": first,
        "the same, nothing to do": again,
        f"plan of {cells} cells": [
            _seconds("sweep", "many.yaml", "--dry-run", "--json", root=root) for _ in range(repetitions)
        ],
    }
    count = _copied(root / "runs", runs)
    found[f"report of {count} runs"] = [_seconds("report", "copies", root=root) for _ in range(min(2, repetitions))]
    found[f"status of {count} runs"] = [_seconds("status", "copies", "--json", root=root) for _ in range(repetitions)]
    found[f"ledger of {count} runs"] = [_seconds("status", "--ledger", root=root) for _ in range(repetitions)]
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    return {"machine": description(1), "seconds": medians, "all": found}


def _seconds(*arguments: str, root: Path) -> float:
    """Seconds of one command, from start to end."""
    command: Sequence[str] = [sys.executable, "-m", "realm_lab", *arguments]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")
    return time.perf_counter() - began


def _many(cells: int) -> str:
    """A study of this many cells."""
    values = [round(1e-4 * (1 + number), 7) for number in range(cells)]
    lines = [f"  rate{n}: {{set: {{pretrain.retriever.learning_rate: {value}}}}}" for n, value in enumerate(values)]
    return "\n".join(["question: Which rate?", "seeds: [0]", "baseline: rate0", "cells:", *lines]) + "\n"


def _copied(runs: Path, count: int) -> int:
    """Make the study `copies`: about `count` copies of the one run, in twenty cells. Returns the number of copies."""
    [path] = run_paths(runs)
    record = read_run(path)
    cells, seeds = min(20, count), max(1, count // 20)
    designs = [StudyCell(f"cell{n}", f"cell {n}", record.system, {} if n == 0 else {"seed": n}) for n in range(cells)]
    members = []
    for cell in designs:
        for seed in range(seeds):
            members.append(_copy(runs, record, cell.name, seed))
    metrics = ("exact_match", "recall_at_5")
    seen = tuple(range(seeds))
    file = "one.yaml"
    study = StudyRecord("copies", "How fast?", "cell0", tuple(designs), seen, tuple(members), metrics, source=file)
    write_study_record(runs, study)
    note_plan(runs, study, runs.parent / file, complete=0)
    return len(members)


def _copy(runs: Path, record: Run, cell: str, seed: int) -> Run:
    stages = {}
    for stage in record.stages:
        stages[stage] = digest([stage, cell, seed])
        before, folder = (stage_folder(runs, stage, key) for key in (record.stages[stage], stages[stage]))
        for name in COPIED:
            source, target = before / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target)
            elif source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        results = folder / "results.json"
        values = json.loads(results.read_text())
        number = int(digest([cell, seed])[:4], 16) / 0xFFFF
        results.write_text(json.dumps({k: number if k == "exact_match" else v for k, v in values.items()}))
    key = digest([cell, seed])
    name = f"{record.system}-s{seed}-{key[:KEY_LENGTH]}"
    mine = replace(record, cell=cell, run_key=key, name=name, cell_key=digest(cell), seed=seed, stages=stages)
    write_run(runs, mine)
    return mine


if __name__ == "__main__":
    sys.exit(main())
