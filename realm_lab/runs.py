"""Identity: which stages a run consists of, and the key of each (DESIGN: a run directory is the truth).

A stage's key is the digest of the parameters that matter to it, the seed, the engine version and the key of the
stage before, so two runs with the same beginning share it, and a changed default can never relabel old results.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realm_lab import ENGINE_VERSION
from realm_lab.config import Params
from realm_lab.core.files import digest, digest_file
from realm_lab.corpus.prepare import corpus_inputs
from realm_lab.errors import UserError
from realm_lab.tracking.run_dir import KEY_LENGTH, RunRecord, StageRun, read_run_record, write_run_record

LABELS = ("warm_start", "realm")  # the baseline arm first
SECTIONS = {
    "warm_start": ("model", "warm_start"),
    "pretrain": ("model", "pretrain"),
    "finetune": ("model", "finetune"),
    "evaluate": ("pretrain", "evaluate"),
}


@dataclass(frozen=True)
class Plan:
    """One run: a label and a seed with the key of each of its stages, in order."""

    label: str
    seed: int
    corpus_key: str
    stages: dict[str, str]

    @property
    def run_key(self) -> str:
        """The key of the last stage names the run."""
        return self.stages["evaluate"]

    def key(self, stage: str) -> str:
        """The key of a stage; that of prepare is the corpus's."""
        return self.corpus_key if stage == "prepare" else self.stages[stage]

    def before(self, stage: str) -> str | None:
        """The training stage before `stage` in this run, None for the first."""
        if stage == "prepare":
            return None
        names = list(self.stages)
        place = names.index(stage)
        return names[place - 1] if place else None


def plan_run(params: Params, label: str, seed: int) -> Plan:
    """The stages and keys of one run. `warm_start` is the baseline without REALM pre-training."""
    corpus_key = digest(corpus_inputs(params, seed))
    return Plan(label, seed, corpus_key, _keys(params, label, seed, corpus_key))


def plan_runs(params: Params) -> list[Plan]:
    """The runs of the default pipeline: every seed, with and without REALM pre-training."""
    return [plan_run(params, label, seed) for label in LABELS for seed in params.seeds]


def _keys(params: Params, label: str, seed: int | None, corpus_key: str) -> dict[str, str]:
    values = params.model_dump(mode="json")
    names = [name for name in SECTIONS if label == "realm" or name != "pretrain"]
    keys: dict[str, str] = {}
    above = corpus_key
    for name in names:
        matters = {section: values[section] for section in SECTIONS[name]}
        described = {"stage": name, "engine": ENGINE_VERSION, "seed": seed, "before": above, "params": matters}
        if name == "warm_start" and params.model.checkpoint is not None:
            described["checkpoint"] = digest_checkpoint(Path(params.model.checkpoint))
        above = keys[name] = digest(described)
    return keys


def digest_checkpoint(folder: Path) -> str:
    """Digest of a Hugging Face folder's weights; a missing one is a UserError."""
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).exists():
            raise UserError(
                f"{folder / name}: no such file; model.checkpoint must be a local Hugging Face folder with safetensors"
            )
    return digest({name: digest_file(folder / name) for name in ("config.json", "model.safetensors")})


def corpus_folder(root: Path, plan: Plan) -> Path:
    """Where the prepared corpus of a run lies."""
    return root / "data" / "prepared" / plan.corpus_key[:KEY_LENGTH]


def open_stage(runs: Path, plan: Plan, stage: str, params: Params) -> StageRun:
    """The folder of one stage of a run."""
    values = params.model_dump(mode="json")
    upstream = {}
    before = plan.before(stage)
    if before is not None:
        upstream[before] = f"{before}-{plan.stages[before][:KEY_LENGTH]}"
    config: dict[str, Any] = {
        "seed": plan.seed,
        "engine_version": ENGINE_VERSION,
        "params": {section: values[section] for section in ("corpus", "tokenizer", *SECTIONS.get(stage, ()))},
        "upstream": upstream,
    }
    return StageRun.open(runs, stage, plan.key(stage), config)


def record_run(runs: Path, plan: Plan, params: Params, study: str = "default") -> RunRecord:
    """Write run.json of a run."""
    values = params.model_dump(mode="json")
    values.pop("launch")
    values.pop("seeds")
    inputs = corpus_inputs(params, plan.seed)
    inputs.pop("seed", None)  # of a toy world; equal cells differ in their seed alone
    record = RunRecord(
        label=plan.label,
        seed=plan.seed,
        run_key=plan.run_key,
        cell_key=digest({"params": values, "inputs": inputs, "label": plan.label, "engine": ENGINE_VERSION}),
        study=study,
        baseline=plan.label == LABELS[0],
        preset=params.preset,
        engine_version=ENGINE_VERSION,
        params=values,
        inputs={"corpus": plan.corpus_key},
        stages={name: f"stages/{name}-{key[:KEY_LENGTH]}" for name, key in plan.stages.items()},
    )
    path = runs / record.name / "run.json"
    if path.exists():  # the same run under a preset or with parameters that do not concern it
        return read_run_record(path)
    write_run_record(runs, record)
    return record
