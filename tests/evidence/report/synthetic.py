"""Run folders as the engine leaves them, made of formulas: any cells, any seeds, nothing trained.

Curves follow the shape that the engine shows in the toy world, and some texts are hostile on purpose.
"""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from realm_lab.engine.params import load as config
from realm_lab.evidence.report.comparison import MetricResult
from realm_lab.evidence.report.report import write_study_report
from realm_lab.evidence.report.report_data import Report
from realm_lab.evidence.report.sections.overview import Overview, Verdict
from realm_lab.lab.plan import DEFAULT_FIGURES as FIGURES
from realm_lab.records.code_record import CodeStates
from realm_lab.records.digests import DIGESTS
from realm_lab.records.files import digest, write_json, write_text
from realm_lab.records.plugins import Choice
from realm_lab.records.run import Run, write_run
from realm_lab.records.study import StudyCell, StudyRecord, write_study_record
from tests.factories.finished import finished

HOSTILE = "<script>alert('x')</script> \"quoted\" & | pipe </script><!-- {{ 7*7 }}"
DEFAULT_CELLS = (StudyCell("warm_start", "warm start only", "warm_start", {}), StudyCell("realm", "REALM", "realm", {}))
CELLS = (
    StudyCell("realm", "REALM", "realm", {}, "table2.realm"),
    StudyCell("warm_start", "warm start only", "warm_start", {}, "table2.baseline"),
    StudyCell("random_token", "random <tokens>", "realm", {"pretrain.masking": "random_token"}, "table2.random_token"),
    StudyCell("no_null", "no null document", "realm", {"pretrain.null_document": "off"}),
)
LEVELS = {"realm": 0.95, "warm_start": 0.25, "random_token": 0.80, "no_null": 0.95}
METRICS = ("exact_match", "recall_at_5", "retrieval_utility_end")
STAGES = ("warm_start", "pretrain", "finetune", "evaluate")
# metric of pre-training -> its value as a function of the progress from 0 to 1
CURVES: dict[str, Callable[[float], float]] = {
    "retrieval_utility": lambda x: 0.5 + 7.4 * x,
    "retrieval_utility_top1": lambda x: 0.6 + 8.7 * x,
    "retrieval_utility_best": lambda x: 3.1 + 7.6 * x,
    "cloze_log_likelihood": lambda x: -8.0 + 6.9 * x,
    "cloze_exact_match": lambda x: 0.04 + 0.8 * x,
    "recall_at_1": lambda x: 0.11 + 0.46 * x,
    "recall_at_5": lambda x: 0.44 + 0.45 * x,
    "recall_at_20": lambda x: 0.8 + 0.18 * x,
    "index_overlap": lambda x: 1 - 0.5 * x,
    "prior_shift": lambda x: 0.2 * x,
    "candidate_entropy": lambda x: 2.3 - 1.7 * x,
    "null_probability": lambda x: 0.05 - 0.04 * x,
    "gold_among_candidates": lambda x: 0.42 + 0.55 * x,
    "cloze_null_probability_unknown": lambda x: 0.05 + 0.5 * x,
    "probe_gold_utility": lambda x: 0.3 + 4.1 * x,
    "gradient_norm_reader": lambda x: 4.0 + 3 * x,
    "refresh_operations": lambda x: 1e11 * (1 + x),
}


def make_study(
    runs: Path,
    seeds: tuple[int, ...] = (0, 1, 2),
    *,
    name: str = "table",
    cells: tuple[StudyCell, ...] = CELLS,
    skip: tuple[tuple[str, int], ...] = (),
    figures: tuple[Choice, ...] = (),
) -> StudyRecord:
    """Write complete runs of each cell and seed, except those of `skip`, which have no stages yet."""
    with_null = config.preset_values("toy") | {"pretrain.null_document": "encoded"}
    params = config.resolve(with_null).model_dump(mode="json")
    plain = {key: value for key, value in params.items() if key not in ("launch", "seeds")}
    members = []
    for place, cell in enumerate(cells):
        for seed in seeds:
            mine = json.loads(json.dumps(plain))
            for dotted, value in cell.changes.items():
                section, parameter = dotted.split(".")
                mine[section][parameter] = value
            key = digest({"cell": cell.name, "seed": seed, "study": name})
            stages = [stage for stage in STAGES if (stage, cell.system) != ("pretrain", "warm_start")]
            record = Run(
                cell=cell.name,
                seed=seed,
                run_key=key,
                name=f"{cell.system}-s{seed}-{key[:12]}",
                system=cell.system,
                cell_key=digest({"cell": cell.name}),
                preset="toy",
                engine_version=1,
                params=mine,
                corpus_key=digest({"corpus": seed}),
                stages={stage: digest([stage, key]) for stage in stages},
            )
            write_run(runs, record)
            members.append(record)
            if (cell.name, seed) not in skip:
                folders = record.folders(runs)
                for stage, stage_key in record.stages.items():
                    write_stage(folders[stage], stage, stage_key, cell.name, seed, place)
                    CodeStates(runs).write(stage, folders, ())
    baseline, source = cells[0].name, f"experiments/{name}.yaml"
    study = StudyRecord(
        name, "Which part pays?", baseline, cells, seeds, tuple(members), METRICS, source=source, figures=figures
    )
    write_study_record(runs, study)
    return study


def make_default(runs: Path, seeds: tuple[int, ...] = (0, 1)) -> StudyRecord:
    """The default run, with all its figures."""
    return make_study(runs, seeds, name="default", cells=DEFAULT_CELLS, figures=FIGURES)


def exact_match(cell: str, seed: int, place: int) -> float:
    """Return a score on 100 questions: the cell's level, a shift per seed, and noise of the cell."""
    noise = (0.0, 0.01, -0.01, 0.02, 0.0, -0.02)[(seed + place) % 6] if place else 0.0
    return round(LEVELS.get(cell, 0.5) + 0.01 * (seed % 3) + noise, 2)


def run_json(runs: Path, study: StudyRecord, cell: str, seed: int) -> Path:
    """The path of run.json of one run of a study."""
    return runs / next(run.name for run in study.of(cell) if run.seed == seed) / "run.json"


def stage_folder(runs: Path, study: StudyRecord, cell: str, seed: int, stage: str) -> Path:
    """The folder of one stage of a run of a study."""
    return runs / str(json.loads(run_json(runs, study, cell, seed).read_text())["stages"][stage])


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a JSON file in place."""
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))
    if (path.parent / DIGESTS).exists():
        finished(path.parent)


def verdict(study: StudyRecord, results: list[MetricResult]) -> Verdict:
    """Return the verdict on a study with these results."""
    found = Report(study, pd.DataFrame(), {}, {}, pd.DataFrame())
    found.__dict__["compared"] = results
    return Overview(found).verdict


def report(root: Path, name: str = "table") -> str:
    """Write the report of a study, and return its text."""
    return (write_study_report(root, name) / "report.md").read_text(encoding="utf-8")


def write_stage(folder: Path, stage: str, key: str, cell: str, seed: int, place: int) -> None:
    """Write a complete stage with all of its files."""
    text = f"stage: {stage}\nkey: {key}\nseed: {seed}\nengine_version: 1\nparams: {{}}\nupstream: {{}}\n"
    write_text(folder / "config.yaml", text)
    status = {"state": "COMPLETE", "attempt": 1, "step": 20, "total_steps": 20, "wall_seconds": 60.0 * (1 + place)}
    write_json(folder / "status.json", status)
    write_json(folder / "env.json", {"git_commit": "c" * 40, "packages": {"torch": "2.13.0"}, "processes": 1})
    results: dict[str, Any] = {}
    lines: list[dict[str, float]] = []
    if stage == "pretrain":
        for step in (0, 5, 10, 15, 20):
            rise = LEVELS.get(cell, 0.5) * step / 20 + 0.01 * seed
            lines.append({"step": step, "time": 1.0 + step} | {name: value(rise) for name, value in CURVES.items()})
            lines[-1] |= {"index_staleness_steps": step % 10, "index_staleness_steps_mean": 4.0 + 9 * place}
    if stage == "warm_start":
        lines = [{"step": step, "time": 1.0, "loss_mlm": 5.0 - step / 10} for step in (0, 10, 20)]
    if stage == "evaluate":
        share = exact_match(cell, seed, place)
        results = _results(cell, share)
        rows = [{"id": f"q{n}", "exact_match": float(n < round(100 * share))} for n in range(100)]
        write_text(folder / "eval" / "predictions.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        write_json(folder / "eval" / "explorer.json", explorer(random.Random(f"{cell}{seed}")))
    if lines:
        write_text(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    finished(folder, results)


def _results(cell: str, share: float) -> dict[str, Any]:
    results = {
        "exact_match": share,
        "recall_at_1": share / 4,
        "recall_at_5": share / 2,
        "recall_at_20": share / 2 + 0.4,
        "bm25": {"recall_at_5": 0.625},
        "retrieval_utility_start": 0.5,
        "cloze_gold_rank_start": 24.0,
        "cloze_gold_rank_end": 24.0 - 20 * share,
        "retrieval_utility_end": 10 * share,
        "questions": 100,
        "corpus_update": None,
    }
    if cell != "warm_start":
        results["corpus_update"] = {"follows": share, "stays": 0.0, "wrong": 1 - share, "changed_questions": 50}
    return results


def explorer(rng: random.Random) -> list[dict[str, Any]]:
    """eval/explorer.json: sentences before and after pre-training, and questions."""
    examples = []
    for number in range(6):
        kind = "cloze" if number < 4 else "question"
        text = (
            f"the capital of land{number} is [MASK] ." if kind == "cloze" else f"what is the capital of land{number} ?"
        )
        text = f"{HOSTILE} [MASK] ." if number == 1 else text
        for when in ("start", "end") if kind == "cloze" else ("end",):
            examples.append(_example(kind, text, f"city{number}", when, rng))
    return examples


def _example(kind: str, text: str, answer: str, when: str, rng: random.Random) -> dict[str, Any]:
    null, sharp = -9.0 - rng.random(), 5.0 if when == "end" else 0.3
    scores = [sharp, *(rng.random() for _ in range(3)), -1.0]
    total = sum(map(math.exp, scores))
    candidates = []
    for rank, score in enumerate(scores):
        is_null, is_gold = rank == 4, rank == 0
        reader = null if is_null else -0.1 if is_gold else -7.0
        body = "" if is_null else f"\U0001f600 {answer} is <b>known</b> ." if is_gold else "it has bridges ."
        candidates.append(
            {
                "title": "" if is_null else "land",
                "body": body,
                "span": [2, 2 + len(answer)] if is_gold else None,
                "probability": math.exp(score) / total,
                "reader_log_likelihood": reader,
                "utility": None if is_null else reader - null,
                "is_null": is_null,
                "is_gold": is_gold,
            }
        )
    marginal = math.log(sum(c["probability"] * math.exp(c["reader_log_likelihood"]) for c in candidates))  # type: ignore[operator, arg-type, misc]
    known = {"null_log_likelihood": null if kind == "cloze" else None, "marginal_log_likelihood": marginal}
    prediction = {"prediction": answer} if kind == "question" else {}
    return {"kind": kind, "text": text, "answer": answer, "when": when, "candidates": candidates} | known | prediction
