"""How long the report of a study takes: nothing is trained, run folders of the engine's shape are made of formulas.

Run from the repository: python -m benchmarks.report. The first process finds nothing kept, the second the report of the
same runs (runs/.reports).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from realm_lab.core.files import digest, write_json
from realm_lab.params import load as config
from realm_lab.params.parameters import Params
from realm_lab.tracking.run_dir import RunRecord, write_run_record
from realm_lab.tracking.study_record import StudyCell, StudyRecord, StudyRun, write_study_record

STAGES = ("warm_start", "pretrain", "finetune", "evaluate")
LIMIT_SECONDS = 5.0  # of a study of a thousand runs, once it is warm
WATCHED = 36  # numbers of a line of pre-training, as the engine logs them
COMMAND = (
    "import sys; from pathlib import Path; from realm_lab.runner.collect import collect; "
    "collect(Path(sys.argv[1]), 'big')"
)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--cells", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="six runs, for the tests")
    parser.add_argument("--folder", type=Path, help="keep the study here instead of in a temporary folder")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args(argv)
    cells, runs = (3, 6) if arguments.tiny else (arguments.cells, arguments.runs)
    if arguments.folder:
        result = run(arguments.folder, cells, runs)
    else:
        with tempfile.TemporaryDirectory() as folder:
            result = run(Path(folder), cells, runs)
    print(report(result))
    if arguments.output:
        write_json(arguments.output, result)
    return 0


def run(root: Path, cells: int, runs: int) -> dict[str, Any]:
    """Write the report in a process of its own, twice, and say whether the second wrote the same bytes."""
    if not (root / "runs" / "studies").exists():
        make_study(root / "runs", cells, max(2, runs // cells))
    seconds, written = [], []
    for _ in range(2):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", COMMAND, str(root)], check=True)
        seconds.append(time.perf_counter() - began)
        folder = root / "reports"
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        written.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
    return {
        "machine": description(1),
        "runs": cells * max(2, runs // cells),
        "cells": cells,
        "first_seconds": seconds[0],
        "warm_seconds": seconds[1],
        "same_bytes": written[0] == written[1],
        "page_bytes": len(written[1]["index.html"]),
    }


def report(result: dict[str, Any]) -> str:
    """The figures in lines."""
    return (
        f"{result['runs']} runs in {result['cells']} cells, imports included: first {result['first_seconds']:.1f} s, "
        f"warm {result['warm_seconds']:.1f} s (bound for 1,000 runs: {LIMIT_SECONDS:.0f} s); "
        f"{'the same bytes' if result['same_bytes'] else 'OTHER BYTES'}; page {result['page_bytes'] / 1e6:.1f} MB"
    )


def make_study(runs: Path, cells: int, seeds: int) -> StudyRecord:
    """A complete study `big` of `cells` cells with `seeds` seeds each."""
    preset = Params(**config.preset_values("toy") | {"preset": "toy"}).model_dump(mode="json")
    params = {key: value for key, value in preset.items() if key not in ("launch", "seeds")}
    designs = [StudyCell("realm", "REALM", "realm", {}, "table2.realm")]
    designs += [
        StudyCell(f"rate{n}", f"retriever rate {n}", "realm", {"pretrain.retriever.learning_rate": n / 1e4})
        for n in range(1, cells)
    ]
    members = []
    for place, cell in enumerate(designs):
        for seed in range(seeds):
            key = digest([cell.name, seed])
            folders = {stage: f"stages/{stage}-{digest([stage, key])[:12]}" for stage in STAGES}
            inputs = {"corpus": digest(seed)}
            mine = json.loads(json.dumps(params))
            if place:
                mine["pretrain"]["retriever"]["learning_rate"] = place / 1e4
            record = RunRecord("realm", seed, key, digest(cell.name), "toy", 1, mine, inputs, folders)
            write_run_record(runs, record)
            members.append(StudyRun(cell.name, seed, key, record.name))
            rng = random.Random(key)
            for stage, folder in folders.items():
                _write_stage(runs / folder, stage, digest([stage, key]), seed, 0.9 - 0.02 * place, rng)
    metrics = ("exact_match", "recall_at_5", "retrieval_utility_end")
    study = StudyRecord(
        "big", "Which rate is best?", "realm", tuple(designs), tuple(range(seeds)), tuple(members), metrics
    )
    write_study_record(runs, study)
    return study


def _write_stage(folder: Path, stage: str, key: str, seed: int, level: float, rng: random.Random) -> None:
    _write(
        folder / "config.yaml",
        f"stage: {stage}\nkey: {key}\nseed: {seed}\nengine_version: 1\nparams: {{}}\nupstream: {{}}\n",
    )
    status = {"state": "COMPLETE", "attempt": 1, "step": 560, "total_steps": 560, "wall_seconds": rng.uniform(90, 110)}
    _write(folder / "status.json", json.dumps(status))
    _write(folder / "env.json", json.dumps({"git_commit": "c" * 40, "packages": {"torch": "2.13.0"}}))
    lines = {"warm_start": 124, "pretrain": 67, "finetune": 22, "evaluate": 0}[stage]
    rows = [_line(stage, step * 10, level, rng) for step in range(lines)]
    if rows:
        _write(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    results: dict[str, Any] = {}
    if stage == "evaluate":
        share = min(1.0, max(0.0, level + rng.gauss(0, 0.02)))
        results = {
            "exact_match": share,
            "recall_at_5": share / 2,
            "retrieval_utility_end": 10 * share,
            "questions": 600,
        }
        predictions = [
            {
                "id": f"q{n}",
                "question": f"what is number {n} ?",
                "prediction": "x",
                "exact_match": float(rng.random() < share),
            }
            for n in range(600)
        ]
        _write(folder / "eval" / "predictions.jsonl", "".join(json.dumps(row) + "\n" for row in predictions))
        _write(folder / "eval" / "explorer.json", json.dumps([_example(seed, n, rng) for n in range(36)]))
    _write(folder / "results.json", json.dumps(results))


def _write(path: Path, text: str) -> None:
    """Without waiting for the disk, which thousands of files would take minutes of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _line(stage: str, step: int, level: float, rng: random.Random) -> dict[str, Any]:
    row: dict[str, Any] = {"step": step, "time": 1_700_000_000.0 + step}
    if stage != "pretrain":
        return row | {"loss": rng.random(), "learning_rate": 1e-3, "accuracy": rng.random()}
    row |= {
        "index_staleness_steps": step % 100 * 1.0,
        "index_staleness_steps_mean": 50.0,
        "refresh_share_of_flops": 0.1,
    }
    if step % 80 == 0:
        rise = level * step / 600
        row |= {"retrieval_utility": 8 * rise, "recall_at_5": 0.4 + rise / 2, "cloze_log_likelihood": -5 + 4 * rise}
    return row | {f"watched_{n}": rng.random() for n in range(WATCHED - 3)}


def _example(seed: int, number: int, rng: random.Random) -> dict[str, Any]:
    kind = "question" if number >= 24 else "cloze"
    candidates = [
        {
            "passage_id": f"a{place}",
            "title": f"article {place}",
            "body": f"the town of seed {seed} has number {number % 12} and river {place} . " * 2,
            "span": None,
            "is_null": False,
            "probability": 1 / 12,
            "reader_log_likelihood": -10 * rng.random(),
            "utility": None if kind == "question" else rng.random(),
            "is_gold": place == 3,
        }
        for place in range(12)
    ]
    return {
        "kind": kind,
        "text": f"what is [MASK] {number % 12} of seed {seed}?",
        "answer": "x",
        "null_log_likelihood": -11.0,
        "marginal_log_likelihood": -4.0,
        "when": "start" if number < 12 else "end",
        "candidates": candidates,
    }


if __name__ == "__main__":
    sys.exit(main())
