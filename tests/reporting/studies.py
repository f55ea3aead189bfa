"""A synthetic study of many cells, on top of the run folders of synthetic.py: numbers are given, nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from realm_lab.core.files import digest, write_json, write_text
from realm_lab.tracking.run_dir import RunRecord, write_run_record
from realm_lab.tracking.study_record import StudyCell, StudyRecord, StudyRun, write_study_record
from tests.reporting import synthetic

CELLS = (
    StudyCell("realm", "REALM", "realm", {}, "table2.realm"),
    StudyCell("warm_start", "warm start only", "warm_start", {}, "table2.baseline"),
    StudyCell("random_token", "random <tokens>", "realm", {"pretrain.masking": "random_token"}, "table2.random_token"),
    StudyCell("no_null", "no null document", "realm", {"pretrain.null_document": "off"}),
)
LEVELS = {"realm": 0.95, "warm_start": 0.25, "random_token": 0.80, "no_null": 0.95}


def make_study(
    runs: Path,
    seeds: tuple[int, ...] = (0, 1, 2),
    *,
    name: str = "table",
    cells: tuple[StudyCell, ...] = CELLS,
    skip: tuple[tuple[str, int], ...] = (),
) -> StudyRecord:
    """Complete runs of each cell and seed, but those of `skip`, which have no stages yet."""
    base = runs.parent / "base"
    names = synthetic.make_runs(base, (0,))
    template = json.loads((base / next(n for n in names if n.startswith("realm")) / "run.json").read_text())
    members = []
    for place, cell in enumerate(cells):
        for seed in seeds:
            params = json.loads(json.dumps(template["params"]))
            for key, value in cell.changes.items():
                section, parameter = key.split(".")
                params[section][parameter] = value
            key = digest({"cell": cell.name, "seed": seed, "study": name})
            stages = [
                s
                for s in ("warm_start", "pretrain", "finetune", "evaluate")
                if (s, cell.system) != ("pretrain", "warm_start")
            ]
            record = RunRecord(
                system=cell.system,
                seed=seed,
                run_key=key,
                cell_key=digest({"cell": cell.name}),
                preset="toy",
                engine_version=1,
                params=params,
                inputs={"corpus": digest({"corpus": seed})},
                stages={stage: f"stages/{stage}-{digest([stage, key])[:12]}" for stage in stages},
            )
            write_run_record(runs, record)
            members.append(StudyRun(cell.name, seed, key, record.name))
            if (cell.name, seed) not in skip:
                for stage, folder in record.stages.items():
                    _write_stage(runs / folder, stage, digest([stage, key]), cell.name, seed, place)
    question = "Which part pays?"
    metrics = ("exact_match", "recall_at_5", "retrieval_utility_end")
    study = StudyRecord(
        name, question, cells[0].name, cells, seeds, tuple(members), metrics, source="experiments/table.yaml"
    )
    write_study_record(runs, study)
    return study


def exact_match(cell: str, seed: int, place: int) -> float:
    """Of 100 questions: the cell's level, and a shift that each seed has, with noise of the cell's own."""
    noise = (0.0, 0.01, -0.01, 0.02, 0.0, -0.02)[(seed + place) % 6] if place else 0.0
    return round(LEVELS.get(cell, 0.5) + 0.01 * (seed % 3) + noise, 2)


def _write_stage(folder: Path, stage: str, key: str, cell: str, seed: int, place: int) -> None:
    text = f"stage: {stage}\nkey: {key}\nseed: {seed}\nengine_version: 1\nparams: {{}}\nupstream: {{}}\n"
    write_text(folder / "config.yaml", text)
    status = {"state": "COMPLETE", "attempt": 1, "step": 10, "total_steps": 10, "wall_seconds": 60.0 * (1 + place)}
    write_json(folder / "status.json", status)
    write_json(folder / "env.json", {"git_commit": "c" * 40, "packages": {"torch": "2.13.0"}})
    results: dict[str, Any] = {}
    if stage == "pretrain":
        lines = [
            {
                "step": step,
                "time": 1.0 + step,
                "retrieval_utility": step * LEVELS.get(cell, 0.5),
                "index_staleness_steps_mean": 4.0 + 9 * place,
            }
            for step in range(0, 11, 5)
        ]
        write_text(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    if stage == "evaluate":
        share = exact_match(cell, seed, place)
        results = {
            "exact_match": share,
            "recall_at_5": share / 2,
            "bm25": {"recall_at_5": 0.625},
            "retrieval_utility_end": 10 * share,
            "questions": 100,
        }
        rows = [{"id": f"q{n}", "exact_match": float(n < round(100 * share))} for n in range(100)]
        write_text(folder / "eval" / "predictions.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write_json(folder / "results.json", results)
