"""Identity: the stages of a run, and the key of each.

A stage's key is the digest of the parameters that it declares, the seed, the engine version and the key of the stage
before, so two runs with equal first stages share them, and a changed default can never relabel old results. A stage's
work can read these parameters, those of the stages before it, and some that change no result (`view_of`).
Parameters that only observe are not in a key (params/sections.py). If a parameter names files or custom code, their
content counts and not their path. The code of realm_lab is in no key: each stage records it (records/code_record.py),
starting from `code_roots`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from realm_lab import ENGINE_VERSION
from realm_lab.engine.corpus.prepare import corpus_inputs
from realm_lab.engine.corpus.readers.registry import format_modules
from realm_lab.engine.corpus.sources import corpus_source, corpus_tagger
from realm_lab.engine.params.changes import phases
from realm_lab.engine.params.checkpoint import (
    check_bert,
    check_positions,
    digest_checkpoint,
)
from realm_lab.engine.params.frozen import PARAMETER as CAUSAL_MODEL
from realm_lab.engine.params.frozen import causal
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.params.sections import identity_values
from realm_lab.engine.systems.registry import (
    EVALUATE,
    PARTS,
    PREPARE,
    SYSTEMS,
    Stage,
    fixed_params,
    options_of,
    system_of,
    view_of,
)
from realm_lab.errors import UserError, suggestion
from realm_lab.records.files import digest
from realm_lab.records.parameters import CHANGES, OPTIONS, ROUNDING, show
from realm_lab.records.plugins import Choice, Kind, Plugin, import_plugins, load_object, plugin_modules
from realm_lab.records.run import KEY_LENGTH, Run, StageRun, read_run, stage_folder, write_run
from realm_lab.records.yaml_file import read_yaml

DEFAULT_SYSTEMS = ("warm_start", "realm")  # of the default pipeline, the baseline first
NOT_OF_A_RUN = ("launch", "seeds")  # parameters that run.json leaves out: how and how often a run is done


def plan_run(params: Params, system: str, seed: int) -> Run:
    """Return one run of a system."""
    return plan_runs(params, system, [seed])[0]


def plan_runs(params: Params, system: str, seeds: Iterable[int]) -> list[Run]:
    """Return the runs of a system with these seeds."""
    params, declared = fixed_params(params, system), system_of(system)
    _check_order(params, system)
    _check_checkpoints(params, system)
    identities = [_stage_identity(params, system, stage) for stage in declared.stages]
    found = []
    for seed in seeds:
        corpus_key = digest(corpus_inputs(params, seed))
        keys: dict[str, str] = {}
        above = corpus_key
        for identity in identities:
            above = keys[identity["stage"]] = digest(identity | {"seed": seed, "before": above})
        name = f"{declared.name}-s{seed}-{above[:KEY_LENGTH]}"
        fixed = tuple(declared.fixed)
        found.append(Run("", seed, above, name, None, system, params, corpus_key, keys, fixed=fixed))
    return found


def _stage_identity(params: Params, system: str, stage: Stage) -> dict[str, Any]:
    """Return all that the key of a stage is made of, except the seed and the key before it."""
    work = Plugin(stage.work, stage.work, parameter="system").named if stage.is_own else stage.work
    described: dict[str, Any] = {"stage": stage.name, "work": work, "engine": ENGINE_VERSION}
    described |= {"version": stage.version} if stage.version > 1 else {}
    described["params"] = described_view(view_of(params, system, stage.name, key=True))
    return described | ({"system": _system_identity(system)} if stage.calls_system else {})


def described_view(params: Params) -> dict[str, Any]:
    """Return parameters as they are part of a key: plug-ins with their options, custom code and files by their
    content, and without those that a view leaves out."""
    values = identity_values(params, described=_described_part)
    if values.get("pretrain", {}).pop("changes", None) and (changes := _described_changes(params)):
        values["pretrain"]["changes"] = changes
    (system,) = values[OPTIONS]
    values[OPTIONS] = identity_values(options_of(params, system), f"{OPTIONS}.{system}")
    return {name: part for name, part in values.items() if part != {}}


def _described_changes(params: Params) -> list[list[Any]]:
    """Return [step, changed parameters] of each step of pre-training at which parameters change."""
    found: list[list[Any]] = []
    before: dict[str, Any] = {}
    for step, settings in phases(params.pretrain).items():
        values = identity_values(settings, "pretrain", _described_part)
        if step and (changed := {name: value for name, value in values.items() if value != before.get(name)}):
            found.append([step, changed])
        before = values
    return found


def _described_part(parameter: str, choice: Choice) -> dict[str, Any]:
    chosen = _chosen(parameter, choice)
    options = {} if chosen.options is None else identity_values(chosen.options, parameter)
    return {"name": chosen.named, "options": options}


def _check_order(params: Params, system: str) -> None:
    """Refuse a name in `streams.order` that is no training stage of this or a registered system."""
    if not params.streams.order:
        return
    import_plugins()
    known = {stage.name for name in (system, *SYSTEMS) for stage in system_of(name).stages} - {EVALUATE.name}
    for name in params.streams.order:
        if name not in known:
            problem = f"parameter 'streams.order': '{name}' is no training stage; {suggestion(name, sorted(known))}"
            raise UserError(problem, parameter="streams.order")


def code_roots(params: Params, system: str) -> dict[str, tuple[str, ...]]:
    """Return stage -> the root modules of all of its code, from `prepare` on: its work, the system if the
    work calls it or is custom code, and the plug-ins that the stage uses."""
    declared, params = system_of(system), fixed_params(params, system)
    source = corpus_source(params.corpus)
    everywhere = plugin_modules(params.plugins)
    prepare = {PREPARE.module, source.module, corpus_tagger(params.corpus).module, *everywhere}
    prepare |= format_modules() if source.name == "files" else set()
    found: dict[str, tuple[str, ...]] = {"prepare": tuple(sorted(prepare))}
    for stage in declared.stages:
        roots = {stage.module, *everywhere}
        if stage.calls_system or stage.is_own:
            roots.add(declared.__module__)
        if params.pretrain.causal_checkpoint is not None and stage.declares(CAUSAL_MODEL):
            roots.add(causal().module)
        settings = params.phases().values() if stage.declares(CHANGES) else [params.at_end()]
        for parameter, phase in itertools.product(filter(stage.declares, PARTS), settings):
            chosen = _chosen(parameter, functools.reduce(getattr, parameter.split("."), phase))
            is_used = chosen.is_own or parameter.startswith(f"{stage.name}.")
            roots |= {chosen.module} if is_used else set()
        found[stage.name] = tuple(sorted(roots))
    return found


def _system_identity(system: str) -> str | dict[str, Any]:
    """Return a system's name; for custom code with the digests of its modules."""
    source = SYSTEMS.find("system", system).source
    return system if source is None else {"name": system, "source": source}


def _check_checkpoints(params: Params, system: str) -> None:
    """Refuse checkpoints that the system cannot be built from."""
    if params.model.checkpoint is not None:
        folder = Path(params.model.checkpoint)
        digest_checkpoint(folder, "model.checkpoint")
        check_positions(folder, params.corpus.passage_length, params.corpus.sentence_length)
        if system_of(system).only_bert:
            check_bert(folder, system)
    if params.pretrain.causal_checkpoint is not None:
        path, model = Path(params.pretrain.causal_checkpoint), causal().load()
        model.digest(path)
        model.check_positions(path, params.corpus.passage_length, params.corpus.sentence_length)


def _chosen(parameter: str, choice: Any) -> Plugin[Any]:
    """Return the plug-in that a parameter names, with its options. UserError: there is none, or an option is wrong."""
    kind: Kind[Any] = load_object(parameter, PARTS[parameter])
    return kind.choose(parameter, choice)


def _of_this_run(params: Params, system: str) -> dict[str, Any]:
    """Return parameters in the form of run.json: only the options of the run's system, with their defaults."""
    values = {name: part for name, part in params.model_dump(mode="json").items() if name not in NOT_OF_A_RUN}
    own = options_of(params, system).model_dump(mode="json")
    return values | {"system_options": {system: own} if own else {}}


def exported_corpus_folder(root: Path, run: Run) -> Path:
    """Return the folder of a run's corpus that DVC versions, a copy that may vanish at any time."""
    return root / "data" / "prepared" / run.corpus_key[:KEY_LENGTH]


def kept_corpus_folder(root: Path, run: Run) -> Path:
    """Return the folder for the corpus of a run, prepared once for all studies and independent of DVC."""
    return root / "runs" / "corpora" / run.corpus_key[:KEY_LENGTH]


def corpus_folder(root: Path, run: Run) -> Path:
    """Return the folder to read the prepared corpus of a run from."""
    kept = kept_corpus_folder(root, run)
    return kept if (kept / "manifest.json").exists() else exported_corpus_folder(root, run)


def open_stage(runs: Path, run: Run, stage: str) -> StageRun:
    """Return the folder of one stage of a run. Its config.yaml has the parameters that the stage may read."""
    config: dict[str, Any] = {}
    if not (stage_folder(runs, stage, run.key(stage)) / "config.yaml").exists():
        view = view_of(run.params, run.system, stage)
        values = {name: part for name, part in view.model_dump(mode="json").items() if part and name != "launch"}
        config = {"seed": run.seed, "engine_version": ENGINE_VERSION, "params": values}
    found = StageRun.open(runs, stage, run.key(stage), config)
    found.launch = {name: getattr(run.params.launch, name) for name in ROUNDING}
    return found


def check_measured(runs: Path, run: Run, stage: str) -> None:
    """Check that the curves of a stage were measured with the run's evaluate.cloze_sentences and evaluate.questions:
    trials are compared by these curves, but the stage's key lacks both parameters. UserError: other values."""
    path = stage_folder(runs, stage, run.key(stage)) / "config.yaml"
    known = read_yaml(path)["params"].get("evaluate", {}) if path.exists() else {}
    for name in ("cloze_sentences", "questions"):
        value = getattr(run.params.evaluate, name)
        if known.get(name, value) != value:
            problem = f"was measured with evaluate.{name} = {show(known[name])}, not {show(value)}"
            raise UserError(f"{path.parent.name} {problem}", "set it to that, or delete this folder", path=path.parent)


def record_run(runs: Path, run: Run) -> Run:
    """Write run.json of a run, unless there is one, and return the run that the file holds."""
    path = runs / run.name / "run.json"
    if not path.exists():  # an existing file is of the same run, perhaps with other parameters that do not matter
        params, declared = run.params, system_of(run.system)
        inputs = corpus_inputs(params, run.seed)
        inputs.pop("seed", None)  # the toy world's seed, which may differ within a cell
        stages = [_stage_identity(params, run.system, stage) for stage in declared.stages]
        cell = {"stages": stages, "inputs": inputs, "system": _system_identity(run.system)}
        recorded = replace(
            run,
            system=declared.name,
            cell_key=digest(cell),
            preset=params.preset,
            engine_version=ENGINE_VERSION,
            params=_of_this_run(params, run.system),
        )
        write_run(runs, recorded)
    return read_run(path)
