"""Run folders as the engine leaves them, made of formulas: two systems, any seeds, nothing trained.

Curves follow the shape that the engine shows in the toy world, and some texts are hostile on purpose.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from realm_lab.core.files import digest, write_json, write_text
from realm_lab.params import load as config
from realm_lab.params.parameters import Params
from realm_lab.tracking.run_dir import RunRecord, write_run_record
from realm_lab.tracking.study_record import StudyCell, StudyRecord, StudyRun, write_study_record

HOSTILE = "<script>alert('x')</script> \"quoted\" & | pipe </script><!-- {{ 7*7 }}"
NAMES = (
    "dosfel",
    "karwim",
    "bentor",
    "lupgas",
    "mirvan",
    "sodrek",
    "pelnut",
    "tagzor",
    "hobdun",
    "facwex",
    "rinbol",
    "juktem",
)
FACTS = (
    ("capital", "the capital of {s} is {o} ."),
    ("currency", "people in {s} pay with the {o} ."),
    ("river", "the river {o} runs through {s} ."),
)
START, END = 1_700_000_000.0, 1_700_000_900.0


def make_runs(
    runs: Path,
    seeds: tuple[int, ...] = (0, 1),
    *,
    exact_match: dict[str, list[float]] | None = None,
    explorer: bool = True,
    edition_swap: bool = True,
    bm25: bool = True,
) -> list[str]:
    """Write complete runs "warm_start" and "realm" for each seed; return the run names.

    `exact_match` gives the value of each label for each seed in order.
    """
    names, members = [], []
    for index, seed in enumerate(seeds):
        params = Params(**config.preset_values("toy") | {"preset": "toy"})
        plain = {key: value for key, value in params.model_dump(mode="json").items() if key not in ("launch", "seeds")}
        for label in ("warm_start", "realm"):
            match = (exact_match or {"warm_start": [0.416, 0.206], "realm": [0.972, 0.948]})[label][index % 2]
            stages = {stage: f"stages/{stage}-{_key(label, stage, seed)[:12]}" for stage in _stages(label)}
            key = digest({"label": label, "seed": seed})
            record = RunRecord(
                system=label,
                seed=seed,
                run_key=key,
                cell_key=digest({"label": label}),
                preset="toy",
                engine_version=1,
                params=plain,
                inputs={"corpus": digest({"corpus": seed})},
                stages=stages,
            )
            write_run_record(runs, record)
            names.append(record.name)
            members.append(StudyRun(label, seed, key, record.name))
            rng = random.Random(f"{label}{seed}")
            for stage, folder in stages.items():
                _write_stage(runs / folder, stage, _key(label, stage, seed), seed, random.Random(f"{stage}{seed}"))
            evaluate = runs / stages["evaluate"]
            write_json(
                evaluate / "results.json", _results(label, match, seed, rng, edition_swap=edition_swap, bm25=bm25)
            )
            if explorer:
                write_json(evaluate / "eval" / "explorer.json", _explorer(label, rng))
    cells = (StudyCell("warm_start", "warm start only", "warm_start", {}), StudyCell("realm", "REALM", "realm", {}))
    study = StudyRecord("default", "What does REALM add?", "warm_start", cells, tuple(seeds), tuple(members))
    write_study_record(runs, study)
    return names


def write_metrics(reports: Path, names: list[str], seeds: tuple[int, ...] = (0, 1)) -> None:
    """The part of reports/metrics.json that the report reads."""
    write_json(reports / "metrics.json", {"runs": names, "seeds": list(seeds), "preset": "toy"})


def stage_folder(runs: Path, run: str, stage: str) -> Path:
    """The folder of one stage of a run made by `make_runs`."""
    return runs / json.loads((runs / run / "run.json").read_text())["stages"][stage]


def set_status(folder: Path, **changes: Any) -> None:
    """Overwrite fields of a stage's status.json."""
    path = folder / "status.json"
    write_json(path, json.loads(path.read_text()) | changes)


def _stages(label: str) -> tuple[str, ...]:
    return (
        ("warm_start", "finetune", "evaluate")
        if label == "warm_start"
        else ("warm_start", "pretrain", "finetune", "evaluate")
    )


def _key(label: str, stage: str, seed: int) -> str:
    return digest({"stage": stage, "seed": seed} | ({} if stage == "warm_start" else {"label": label}))


def _write_stage(folder: Path, stage: str, key: str, seed: int, rng: random.Random) -> None:
    steps, rows = {
        "warm_start": _warm_rows,
        "pretrain": _pretrain_rows,
        "finetune": _finetune_rows,
        "evaluate": _no_rows,
    }[stage](rng)
    write_text(
        folder / "config.yaml",
        f"stage: {stage}\nkey: {key}\nseed: {seed}\nengine_version: 1\nparams: {{}}\nupstream: {{}}\n",
    )
    seconds = {"warm_start": 128.0, "pretrain": 214.0, "finetune": 47.0, "evaluate": 39.0}[stage] + rng.uniform(-5, 5)
    status = {
        "state": "COMPLETE",
        "attempt": 1,
        "host": "node",
        "pid": 1,
        "started_at": START,
        "heartbeat_at": END,
        "finished_at": END,
        "step": steps,
        "total_steps": steps,
        "steps_per_second": round(steps / seconds, 3),
        "wall_seconds": round(seconds, 3),
        "error": None,
        "flags": [],
    }
    write_json(folder / "status.json", status)
    write_text(
        folder / "metrics.jsonl",
        "".join(json.dumps({"step": step, "time": START + step} | row) + "\n" for step, row in rows),
    )
    write_json(
        folder / "env.json",
        {
            "python": "3.11.7",
            "platform": "Linux",
            "cpu": "x86_64",
            "cores": 2,
            "device": "cpu",
            "packages": {"torch": "2.13.0"},
            "git_commit": "4f2d9c1a7b3e5f60718293a4b5c6d7e8f9012345",
            "git_dirty": False,
        },
    )
    write_json(folder / "results.json", {})


def _no_rows(rng: random.Random) -> tuple[int, list]:
    return 0, []


def _warm_rows(rng: random.Random) -> tuple[int, list]:
    rows: list = []
    for step in range(10, 1101, 10):
        x = step / 1100
        late = 1 / (1 + math.exp(-14 * (x - 0.4)))
        loss = 5.8 * math.exp(-9 * x) + 2.6 - 1.7 * late + rng.gauss(0, 0.06)
        rows.append(
            (
                step,
                {
                    "loss_mlm": loss,
                    "accuracy_mlm": min(1, max(0, 0.18 + 0.55 * late + rng.gauss(0, 0.02))),
                    "learning_rate": 3e-3,
                },
            )
        )
    for step in range(1110, 1221, 10):
        x = (step - 1100) / 120
        rows.append(
            (
                step,
                {
                    "loss_ict": 4.1 * math.exp(-2.2 * x) + 0.4 + rng.gauss(0, 0.05),
                    "accuracy_ict": 0.9 * (1 - math.exp(-2.6 * x)),
                    "learning_rate": 2e-3,
                },
            )
        )
    return 1220, rows


def _pretrain_rows(rng: random.Random) -> tuple[int, list]:
    rows: list = []
    middle, height = rng.uniform(0.5, 0.62), rng.uniform(0.9, 1.0)
    for step in range(0, 561, 10):
        rise = height / (1 + math.exp(-11 * (step / 560 - middle)))
        if step % 70 == 0:
            dip = 0.6 * math.exp(-(((step / 560) - 0.25) ** 2) / 0.01)
            rows.append(
                (
                    step,
                    {
                        "retrieval_utility": 0.5 + 7.4 * rise - dip,
                        "retrieval_utility_top1": 0.6 + 8.7 * rise - dip / 2,
                        "retrieval_utility_best": 3.1 + 7.6 * rise,
                        "cloze_log_likelihood": -8.0 + 6.9 * rise + 0.4 * step / 560,
                        "cloze_exact_match": 0.04 + 0.8 * rise,
                        "cloze_entropy": 1.9 - 1.4 * rise,
                        "index_overlap": 1 - 0.5 * rise,
                        "prior_shift": 0.2 * rise,
                        "recall_at_1": 0.11 + 0.46 * rise,
                        "recall_at_5": 0.44 + 0.45 * rise,
                        "recall_at_20": 0.8 + 0.18 * rise,
                    },
                )
            )
        if step:
            noise = rng.gauss(0, 0.03)
            probe = {
                "probe_gold_utility": 0.3 + 4.1 * rise + noise,
                "probe_same_article_utility": 0.1 - 0.5 * rise + noise,
                "probe_random_utility": -0.02 - 0.9 * rise + noise,
            }
            rows.append(
                (
                    step,
                    {
                        "loss": 8 - 6.5 * rise + noise,
                        "marginal_log_likelihood": -8 + 6.5 * rise,
                        "candidate_entropy": 2.3 - 1.7 * rise + noise,
                        "candidate_entropy_fraction": (2.3 - 1.7 * rise + noise) / math.log(12),
                        "null_probability": 0.05 * math.exp(-step / 90) + abs(noise) / 10,
                        "score_spread": 1.2 + 9 * rise + 3 * noise,
                        "gold_among_candidates": min(1.0, max(0.0, 0.42 + 0.55 * rise + noise)),
                        "gradient_norm_reader": 4.0 + 3 * rise + 20 * abs(noise),
                        "gradient_norm_retriever": 0.05 + 2 * rise + abs(noise),
                        "index_staleness_steps": float((step - 1) % 25),
                        "index_overlap_sampled": 1 - 0.4 * rise + noise / 2,
                        "prior_shift_sampled": 0.18 * rise + abs(noise) / 4,
                        "step_seconds": 0.3,
                        **(probe if step % 20 == 0 else {}),
                    },
                )
            )
    return 560, rows


def _finetune_rows(rng: random.Random) -> tuple[int, list]:
    return 220, [
        (step, {"loss": 3 * math.exp(-step / 60) + rng.gauss(0, 0.02), "answerable_fraction": 0.9})
        for step in range(10, 221, 10)
    ]


def _results(
    label: str, match: float, seed: int, rng: random.Random, *, edition_swap: bool, bm25: bool
) -> dict[str, Any]:
    realm = label == "realm"
    shift = rng.uniform(-0.02, 0.02)
    recall = {1: 0.54, 5: 0.87, 20: 0.97} if realm else {1: 0.11, 5: 0.44, 20: 0.81}
    results: dict[str, Any] = {
        "exact_match": match,
        "exact_match_span": match - 0.004,
        "f1": min(1.0, match + 0.009),
        "questions": 624,
        "cloze_sentences": 400,
        "retrieval_utility_start": 0.5 + shift,
        "retrieval_utility_top1_start": 0.55 + shift,
        "bm25": None,
        "edition_swap": None,
    }
    if realm:
        results |= {"retrieval_utility_end": 7.6 + 10 * shift, "retrieval_utility_top1_end": 9.1 + shift}
    for k, value in recall.items():
        results |= {f"recall_at_{k}": value + shift, f"recall_at_{k}_finetuned": min(1.0, value + 0.06 + shift)}
    if bm25:
        results["bm25"] = {
            "recall_at_1": 0.31 + seed / 50,
            "recall_at_5": 0.74 + seed / 50,
            "recall_at_20": 0.95,
            "gold_recall_at_5": 0.7,
        }
    if edition_swap and realm:
        follows = 0.96 + shift / 2
        results["edition_swap"] = {
            "follows": follows,
            "stays": 0.0,
            "wrong": 1 - follows,
            "changed_questions": 584 + 48 * seed,
            "unchanged_exact_match_before": 0.971,
            "unchanged_exact_match_after": 0.972,
        }
    return results


def _explorer(label: str, rng: random.Random) -> list[dict[str, Any]]:
    examples = []
    for index in range(8):
        subject, answer = NAMES[index % len(NAMES)], NAMES[(index * 5 + 3) % len(NAMES)]
        relation, phrase = FACTS[index % len(FACTS)]
        kind = "cloze" if index < 5 else "question"
        text = (
            f"the {relation} of {subject} is [MASK] [MASK] according to records ."
            if kind == "cloze"
            else f"what is the {relation} of {subject} ?"
        )
        if index == 1:
            text = f"{HOSTILE} [MASK] ."
        body = phrase.format(s=subject, o=answer) + f" {subject} shares a border with {NAMES[(index + 7) % 12]} ."
        for when in ("start", "end") if label == "realm" and kind == "cloze" else ("end",):
            examples.append(_example(kind, text, answer, when, subject, body, index, rng))
    return examples


def _example(
    kind: str, text: str, answer: str, when: str, subject: str, body: str, index: int, rng: random.Random
) -> dict[str, Any]:
    sharp = 5.0 if when == "end" and index != 4 else 0.3
    null = -9.0 - rng.random()
    scores = [sharp] + [rng.random() for _ in range(6)] + [-1.0]
    total = sum(math.exp(score) for score in scores)
    candidates: list[dict[str, Any]] = []
    for rank, score in enumerate(scores):
        is_null, gold = rank == 7, rank == 0
        reader = null if is_null else (-0.1 if gold else -7 - rng.random())
        passage = (
            ""
            if is_null
            else body
            if gold
            else f'{subject} is known for <b>{NAMES[(index + rank) % 12]}</b> and its "old" bridges .'
        )
        start = passage.find(answer)
        candidates.append(
            {
                "passage_id": None if is_null else f"p{rank}",
                "title": "" if is_null else subject,
                "body": passage,
                "span": [start, start + len(answer)] if start >= 0 else None,
                "probability": math.exp(score) / total,
                "reader_log_likelihood": reader,
                "utility": None if is_null else reader - null,
                "is_null": is_null,
                "is_gold": gold,
            }
        )
    marginal = math.log(sum(c["probability"] * math.exp(c["reader_log_likelihood"]) for c in candidates))
    if kind == "question":  # The engine knows no empty document there, and keeps each passage's own best span.
        candidates = [candidate | {"utility": None} for candidate in candidates if not candidate["is_null"]]
    return {
        "kind": kind,
        "text": text,
        "answer": answer,
        **({"prediction": answer} if kind == "question" else {}),
        "null_log_likelihood": None if kind == "question" else null,
        "marginal_log_likelihood": marginal,
        "when": when,
        "candidates": candidates,
    }
