"""Runs as training leaves them, made in a second: smooth curves, three systems, any number of seeds."""

import hashlib
import json
import math
import random
import time
from dataclasses import asdict, replace
from pathlib import Path

from realm_lab.records.metric_log import MetricLog
from realm_lab.records.run import Run, StageRun, Status, write_run
from realm_lab.records.study import StudyCell, StudyRecord, read_study_record, study_folder, write_study_record
from tests.factories.finished import finished

BEGAN_AT = 1_790_000_000.0  # unix seconds; fixed, so that two sets of runs are equal
SYSTEMS = ("warm_start", "realm", "random_mask")
TITLES = {"warm_start": "warm start only", "random_mask": "random token masks"}
SCORES = ("exact_match", "recall_at_5")


def key_of(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


CORPUS = key_of("corpus")


def write_points(log: MetricLog, rows: list[dict[str, float]]) -> None:
    """Write rows with given times; `MetricLog.log` would write the clock's."""
    log.path.parent.mkdir(parents=True, exist_ok=True)
    with open(log.path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def set_status(run: StageRun, **values: object) -> None:
    """Write status.json with these values over those of a stage that has just started."""
    status = Status("RUNNING", 1, "node7", 4711, BEGAN_AT, BEGAN_AT + 60, total_steps=200, wall_seconds=60.0)
    (run.path / "status.json").write_text(json.dumps(asdict(status) | values))


def complete(run: StageRun, step: int, results: dict[str, object], began_at: float, seconds: float) -> None:
    environment = {"git_commit": "0123456789abcdef0123456789abcdef01234567", "git_dirty": False, "user": "ada"}
    (run.path / "env.json").write_text(json.dumps(environment))
    times = {"started_at": began_at, "heartbeat_at": began_at + seconds, "finished_at": began_at + seconds}
    took = {"peak_memory_bytes": 2**29, "training_flop": 1e12, "wall_seconds": seconds}
    set_status(run, state="COMPLETE", step=step, total_steps=step, **times, **took)
    finished(run.path, results)


def pretrain_rows(system: str, seed: int, first: int, last: int, began_at: float) -> list[dict[str, float]]:
    """Steps first..last: a loss every 10, an evaluation every 50."""
    noise = random.Random(f"{system}{seed}{first}")
    level = {"realm": 0.9, "random_mask": 0.45}[system]
    rows: list[dict[str, float]] = []
    for step in range(first, last + 1, 10):
        progress, time = 1 - math.exp(-step / 80), began_at + 0.4 * step
        if step:
            loss = 4.2 - 2.4 * level * progress + noise.gauss(0, 0.06)
            values = {"loss": loss, "null_probability": 0.5 - 0.4 * progress, "gradient_norm_reader": 1.0 + 1 / step}
            rows.append({"step": step, "time": time, **values, "index_staleness_steps": float(step % 50)})
        if step % 50 == 0:
            utility = level * progress + noise.gauss(0, 0.01)
            rows.append({"step": step, "time": time, "retrieval_utility": utility, "recall_at_5": 0.3 + 0.5 * utility})
    return rows


def add_to_study(runs: Path, record: Run, cell: str | None = None, study: str = "default") -> StudyRecord:
    """Add a run to a study, which is made if it is missing, as cell `cell` (default: its system). Baseline: realm."""
    path = study_folder(runs, study) / "study.json"
    before = read_study_record(path) if path.exists() else None
    name = cell or record.system
    changes = {"pretrain.masking": "random_token"} if record.system == "random_mask" else {}
    arm = "warm_start" if record.system == "warm_start" else "realm"
    cells = {"realm": StudyCell("realm", "REALM", "realm", {})}
    cells |= {known.name: known for known in (before.cells if before else ())}
    cells.setdefault(name, StudyCell(name, TITLES.get(name, name), arm, changes))
    members = [*(run for run in (before.runs if before else ()) if run.name != record.name)]
    members.append(Run(name, record.seed, record.run_key, record.name))
    seeds = tuple(sorted({run.seed for run in members}))
    question = "Which spans should be masked?"
    design = StudyRecord(study, question, "realm", tuple(cells.values()), seeds, tuple(members), SCORES)
    write_study_record(runs, design)
    return design


def record_of(system: str, seed: int, stages: dict[str, str]) -> Run:
    masking = "random_token" if system == "random_mask" else "salient_span"
    key = key_of("run", system, seed)
    return Run(
        cell="",
        seed=seed,
        run_key=key,
        name=f"{system}-s{seed}-{key[:12]}",
        system=system,
        cell_key=key_of("cell", system),
        preset="toy",
        engine_version=1,
        params={
            "preset": "toy",
            "pretrain": {"masking": masking, "steps": 200, "reader": {"learning_rate": 3e-5}},
            "corpus": {"source": "toy", "files": {"knowledge": []}, "toy": {"world_seed": None}},
        },
        corpus_key=CORPUS,
        stages=stages,
    )


def prepare(runs: Path) -> None:
    """The corpus of all runs, as far as the mirror looks at it."""
    counts = {"passages": 2048, "sentences": 3936, "questions_test": 648}
    stage = StageRun.open(runs, "prepare", CORPUS, {"stage": "prepare", "key": CORPUS})
    (stage.path / "results.json").write_text(json.dumps({"counts": counts, "dropped": {}, "digest": CORPUS}))


def make_run(runs: Path, system: str, seed: int, study: str | None = "default") -> Run:
    """One finished run, of a study unless that is None; the warm start is shared by all runs of the seed."""
    prepare(runs)
    plan = ["warm_start", *(["pretrain"] if system != "warm_start" else []), "finetune", "evaluate"]
    keys: dict[str, str] = {}
    began_at = BEGAN_AT + 1000 * seed
    for stage in plan:
        key = key_of(stage, seed) if stage == "warm_start" else key_of(stage, system, seed)
        run = StageRun.open(runs, stage, key, {"stage": stage, "key": key, "seed": seed, "params": {}, "upstream": {}})
        keys[stage] = key
        if run.is_complete():
            continue
        noise = random.Random(f"{stage}{system}{seed}")
        if stage == "pretrain":
            write_points(run.metrics, pretrain_rows(system, seed, 0, 200, began_at + 200))
            complete(run, 200, {"retrieval_utility": 0.8, "steps": 200}, began_at + 200, 90.0)
        elif stage == "evaluate":
            scores = {"warm_start": 0.31, "realm": 0.62, "random_mask": 0.44}[system] + noise.gauss(0, 0.02)
            results = {"exact_match": scores, "f1": scores + 0.05, "recall_at_5": 0.5 * scores + 0.4}
            results["retrieval_utility_end"] = 10 * scores
            bm25 = {"recall_at_5": 0.71, "gold_recall_at_5": None}
            complete(run, 0, results | {"questions": 400, "bm25": bm25, "parameters": 1000}, began_at + 400, 20.0)
            (run.path / "eval").mkdir(exist_ok=True)
            prediction = {"id": "q1", "question": "Where was Ada born?", "prediction": "Paris", "exact_match": 1}
            (run.path / "eval" / "predictions.jsonl").write_text(json.dumps(prediction) + "\n")
        else:
            name = "loss_mlm" if stage == "warm_start" else "loss"
            start = began_at + (0 if stage == "warm_start" else 300)
            write_points(
                run.metrics,
                [
                    {"step": s, "time": start + s, name: 5 * math.exp(-s / 40) + noise.gauss(0, 0.05)}
                    for s in range(10, 101, 10)
                ],
            )
            complete(run, 100, {"final_loss": 1.0}, start, 100.0)
    record = record_of(system, seed, keys)
    write_run(runs, record)
    if study is not None:
        add_to_study(runs, record, study=study)
    return record


def make_runs(runs: Path, systems: tuple[str, ...] = SYSTEMS, seeds: tuple[int, ...] = (0, 1)) -> list[Run]:
    return [make_run(runs, system, seed) for system in systems for seed in seeds]


def planned_pretrain(runs: Path, seed: int) -> StageRun:
    """A run of the study with only pretrain, not started."""
    key = key_of("planned", seed)
    stage = StageRun.open(runs, "pretrain", key, {"stage": "pretrain", "key": key})
    record = replace(record_of("realm", seed, {"pretrain": key}), run_key=key, name=f"realm-s{seed}-{key[:12]}")
    write_run(runs, record)
    add_to_study(runs, record)
    return stage


def checkpoint(stage: StageRun, step: int) -> None:
    """A checkpoint as far as the mirror looks at it."""
    folder = stage.path / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "checkpoint.json").write_text(json.dumps({"step": step}))


def heard_of(stage: StageRun, seconds_ago: float = 0.0) -> None:
    """The lease of a process on another host, last heard of so long ago."""
    owner = {"host": "node7", "pid": 4711, "born": BEGAN_AT}
    heard = time.time() - seconds_ago
    lease = {"owner": owner, "token": "t", "since": BEGAN_AT, "heard": heard, "limit_seconds": 120.0}
    (stage.path / "lease").mkdir(exist_ok=True)
    (stage.path / "lease" / "writer.json").write_text(json.dumps(lease))


def begin_pretrain(runs: Path, last_step: int, checkpoint_step: int | None = None) -> tuple[Run, StageRun]:
    """A run whose pretrain is at `last_step`, on another host, with a checkpoint (default: of `last_step`)."""
    prepare(runs)
    key = key_of("live")
    stage = StageRun.open(runs, "pretrain", key, {"stage": "pretrain", "key": key})
    write_points(stage.metrics, pretrain_rows("realm", 0, 0, last_step, BEGAN_AT))
    set_status(stage, step=last_step)
    heard_of(stage)
    checkpoint(stage, last_step if checkpoint_step is None else checkpoint_step)
    run_key = key_of("live run")
    record = record_of("realm", 0, {"pretrain": key})
    record = replace(record, system="live", run_key=run_key, name=f"live-s0-{run_key[:12]}")
    write_run(runs, record)
    add_to_study(runs, record)
    return record, stage
