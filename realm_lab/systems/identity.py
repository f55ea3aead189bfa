"""Identity: which stages a run consists of, and the key of each (DESIGN: a run directory is the truth).

A stage's key is the digest of the parameters that matter to it, the seed, the engine version and the key of the
stage before, so two runs with the same beginning share it, and a changed default can never relabel old results.
Where a parameter names a folder or a source file, its content counts and not its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realm_lab import ENGINE_VERSION
from realm_lab.core.files import digest, digest_file
from realm_lab.corpus.prepare import corpus_inputs
from realm_lab.errors import UserError
from realm_lab.masking import scheme_source
from realm_lab.params.parameters import Params
from realm_lab.systems.registry import system_of
from realm_lab.tracking.run_dir import KEY_LENGTH, RunRecord, StageRun, read_run_record, write_run_record

DEFAULT_SYSTEMS = ("warm_start", "realm")  # of the default pipeline, the baseline first
NOT_OF_A_RUN = ("launch", "seeds", "tagger")  # how and how often it runs, and what makes another folder
# The names that a parameter knows for what a stage begins with; any other value is a folder.
INITIAL_STATES: dict[str, dict[str, tuple[str, ...]]] = {
    "pretrain": {
        "initial_reader": ("warm_start", "scratch"),
        "initial_retriever": ("warm_start", "scratch", "encoder"),
    },
    "finetune": {
        "initial_reader": ("previous", "warm_start", "scratch"),
        "initial_retriever": ("previous", "warm_start", "scratch"),
    },
}


@dataclass(frozen=True)
class Plan:
    """One run: a system and a seed with the key of each of its stages, in order."""

    system: str
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


def plan_run(params: Params, system: str, seed: int) -> Plan:
    """The stages and keys of one run. `warm_start` is the baseline without REALM pre-training."""
    corpus_key = digest(corpus_inputs(params, seed))
    return Plan(system, seed, corpus_key, _keys(params, system, seed, corpus_key))


def plan_runs(params: Params) -> list[Plan]:
    """The runs of the default pipeline: every seed, with and without REALM pre-training."""
    return [plan_run(params, system, seed) for system in DEFAULT_SYSTEMS for seed in params.seeds]


def _keys(params: Params, system: str, seed: int | None, corpus_key: str) -> dict[str, str]:
    values = _by_content(params, system)
    keys: dict[str, str] = {}
    above = corpus_key
    for stage in system_of(system).stages:
        described = {
            "stage": stage.name,
            "engine": ENGINE_VERSION,
            "seed": seed,
            "before": above,
            "params": selected(values, stage.depends_on),
        } | ({"variant": stage.variant} if stage.variant else {})
        above = keys[stage.name] = digest(described)
    return keys


def selected(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The parameters that dotted names choose from nested `values`; a name after a minus is left out again."""
    chosen: dict[str, Any] = {}
    for name in names:
        *parents, last = name.removeprefix("-").split(".")
        source, target = values, chosen
        for parent in parents:
            source, target = source[parent], target.setdefault(parent, {})
        if name.startswith("-"):
            target.pop(last, None)
        else:
            target[last] = json.loads(json.dumps(source[last]))
    return chosen


def _by_content(params: Params, system: str) -> dict[str, Any]:
    """The parameters, with the content of folders and source files that the run uses in the place of their names."""
    values = params.model_dump(mode="json")
    if params.model.checkpoint is not None:
        values["model"]["checkpoint"] = digest_checkpoint(Path(params.model.checkpoint), "model.checkpoint")
    stages = [stage.name for stage in system_of(system).stages]
    for stage in (name for name in INITIAL_STATES if name in stages):
        for name, known in INITIAL_STATES[stage].items():
            if values[stage][name] not in known:
                folder = Path(values[stage][name])
                values[stage][name] = digest_checkpoint(folder, f"{stage}.{name}", known)
    source = scheme_source(params.pretrain.masking) if "pretrain" in stages else None
    if source is not None:
        values["pretrain"]["masking"] = {"name": params.pretrain.masking, "source": digest_file(source)}
    return values


def digest_checkpoint(folder: Path, parameter: str, names: Sequence[str] = ()) -> str:
    """Digest of the models in a folder: all its .safetensors and .json files, by their paths in it.

    Raises:
        UserError: no such folder, or no models in it; `names` are what else the parameter may be.
    """
    remedy = "give a local folder with config.json and safetensors"
    if names:
        remedy = f"choose {', '.join(names)}, or {remedy}"
    if names and not folder.is_dir():
        raise UserError(f"parameter '{parameter}': no folder '{folder}'; {remedy}")
    paths = sorted(path for pattern in ("*.safetensors", "*.json") for path in folder.rglob(pattern) if path.is_file())
    for wanted in ("config.json", "model.safetensors"):
        if not any(path.parent == folder and path.suffix == Path(wanted).suffix for path in paths):
            raise UserError(f"parameter '{parameter}': {folder / wanted}: no such file; {remedy}")
    return digest({path.relative_to(folder).as_posix(): digest_file(path) for path in paths})


def exported_corpus_folder(root: Path, plan: Plan) -> Path:
    """The copy of a run's corpus that DVC versions: it may vanish at any time."""
    return root / "data" / "prepared" / plan.corpus_key[:KEY_LENGTH]


def kept_corpus_folder(root: Path, plan: Plan) -> Path:
    """Where the corpus of a run is prepared, once for all studies; DVC does not know of it."""
    return root / "runs" / "corpora" / plan.corpus_key[:KEY_LENGTH]


def corpus_folder(root: Path, plan: Plan) -> Path:
    """Where to read the prepared corpus of a run."""
    kept = kept_corpus_folder(root, plan)
    return kept if (kept / "manifest.json").exists() else exported_corpus_folder(root, plan)


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
        "params": {section: values[section] for section in ("corpus", "tokenizer", *_sections(plan.system, stage))},
        "upstream": upstream,
    }
    return StageRun.open(runs, stage, plan.key(stage), config)


def _sections(system: str, stage: str) -> list[str]:
    """The top sections that a stage depends on, in the order of its declaration; none for prepare."""
    if stage == "prepare":
        return []
    names = [name.partition(".")[0] for name in system_of(system).stage(stage).depends_on if name[0] != "-"]
    return list(dict.fromkeys(names))


def record_run(runs: Path, plan: Plan, params: Params) -> RunRecord:
    """Write run.json of a run."""
    values, contents = params.model_dump(mode="json"), _by_content(params, plan.system)
    for name in NOT_OF_A_RUN:
        del values[name]
    inputs = corpus_inputs(params, plan.seed)
    inputs.pop("seed", None)  # of a toy world; equal cells differ in their seed alone
    described = {name: part for name, part in contents.items() if name not in (*NOT_OF_A_RUN, "corpus", "tokenizer")}
    record = RunRecord(
        system=plan.system,
        seed=plan.seed,
        run_key=plan.run_key,
        cell_key=digest({"params": described, "inputs": inputs, "system": plan.system, "engine": ENGINE_VERSION}),
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
