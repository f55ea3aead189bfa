"""The default pipeline stage by stage, as DVC runs it: a study of two cells, with its exports.

The study `default` uses params.yaml. With other parameters the same cells are the study `scratch`, which exports
nothing. Missing inputs of a stage are computed before it. DVC versions copies of the results, in data/ and models/,
without checkpoints. If runs/ was deleted, it is filled again from these copies.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from realm_lab.engine.params.load import load
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.identity import exported_corpus_folder, kept_corpus_folder
from realm_lab.engine.systems.registry import system_of
from realm_lab.errors import UserError
from realm_lab.lab.launchers import LauncherSettings, LocalLauncher
from realm_lab.lab.other_code import settle_code
from realm_lab.lab.plan import default_plan
from realm_lab.lab.preview import expected_time, show_plan
from realm_lab.lab.progress import drive, say
from realm_lab.lab.stopping import stoppable, sweeping
from realm_lab.lab.study import StudyPlan
from realm_lab.lab.tasks import tasks_of
from realm_lab.lab.wanted import record_study
from realm_lab.records.code_record import NAME as CODE_NAME
from realm_lab.records.digests import CHANGING
from realm_lab.records.files import (
    MARK,
    atomic_directory,
    is_ours,
    link_directory,
    read_json,
    remove_directory,
    write_text,
)
from realm_lab.records.run import Run, stage_folder
from realm_lab.records.state import StageStates
from realm_lab.records.study import DEFAULT, SCRATCH, check_study_name, study_folder


def check_corpus(params: Params) -> None:
    """Raise a UserError if nothing can be prepared: no file of passages is named, as in the bare preset `paper`."""
    if params.corpus.source.name == "files" and not params.corpus.files.knowledge:
        raise UserError("parameter 'corpus.files.knowledge': no file of passages is named; name at least one")


def planned(params: Params, name: str = DEFAULT) -> StudyPlan:
    """Plan the default pipeline."""
    return default_plan(params, name)


def run(stage: str, plan: StudyPlan, root: Path) -> None:
    """Run the default pipeline, or the study `scratch`, as far as a stage, for every system and seed. Export the
    results of that stage for the study `default`. UserError: the input is wrong, a run failed, or other code computed
    results that would be used again; finished runs are kept."""
    root, name = Path(root), plan.name
    restore(plan, root)
    if (experiment := os.environ.get("DVC_EXP_NAME")) and name == DEFAULT:
        _record_experiment(experiment, plan, _project(root))
    runs = _as_far_as(stage, plan).runs
    settle_code(runs, root, stage)
    tasks = tasks_of(runs, StageStates(root / "runs"), retry_failed=True, until=stage)
    if tasks:
        if stage in ("prepare", "evaluate") and (expected := expected_time(plan, plan.runs, root)):
            say(f"to the end of the pipeline: {expected}")
        launcher = LocalLauncher(LauncherSettings(), root, plan.name)
        with _restorable(root), stoppable(), sweeping(root, plan.name), closing(launcher):
            launcher.submit(tasks)
            states = drive(launcher, tasks, root, wait_for_others=True, say_failures=False)
        for task in tasks:  # counts of kept and dropped texts of each newly prepared corpus
            path = stage_folder(root / "runs", "prepare", task.keys.get("prepare", "")) / "summary.md"
            if path.exists():
                say(path.read_text(encoding="utf-8"))
        failed = [f"{task.title}: {states[task.name].error}" for task in tasks if states[task.name].state != "COMPLETE"]
        if failed:
            raise UserError("; ".join(failed))
    else:
        say(f"study {name}: {stage.replace('_', '-')} is complete")
    if name == DEFAULT:
        _publish(stage, plan, root)
    elif stage != "prepare":
        for folder in sorted({_model(stage, run, root) for run in runs if _keeps_model(stage, run)}):
            say(f"reader and embedder: {folder}")


@contextmanager
def _restorable(root: Path) -> Iterator[None]:
    """Print how to undo the experiment's changes of params.yaml if a DVC experiment is stopped inside the context."""
    try:
        yield
    except SystemExit:
        if os.environ.get("DVC_EXP_NAME") and _project(root) == root:  # a queued experiment works in a copy
            say("params.yaml has the experiment's values; `git checkout HEAD -- params.yaml` puts yours back")
        raise


def show(stage: str, plan: StudyPlan, root: Path) -> None:
    """Print the work that `run` would do, and the states of runs; nothing is trained."""
    records = (root / "data" / "records").glob("*/*")
    if absent := sum(not (root / "runs" / "stages" / record.name / "status.json").exists() for record in records):
        print(f"runs/ lacks {absent} finished stages, which DVC keeps: they are put back first")
    part = _as_far_as(stage, plan)
    show_plan(part, part.runs, root, stage)


def _as_far_as(stage: str, plan: StudyPlan) -> StudyPlan:
    """Return the plan with only the runs that have the stage; all runs for `prepare`."""
    return replace(plan, runs=tuple(run for run in plan.runs if stage == "prepare" or stage in run.stages))


def restore(plan: StudyPlan, root: Path) -> None:
    """Record the default pipeline, and restore missing parts of runs/ from the copies that DVC keeps. So nothing is
    trained or measured again after runs/ was deleted, or after a checkout on another machine."""
    _share_runs(root)
    runs = root / "runs"
    for exported in (root / "data" / "prepared").glob("*/manifest.json"):
        if not (corpus := runs / "corpora" / exported.parent.name).exists():
            link_directory(exported.parent, corpus)
    manifests = (root / "models").glob("*/*/manifest.json")
    models = {stage_folder(runs, path.parts[-3], read_json(path).get("key", "")): path.parent for path in manifests}
    for status in (root / "data" / "records").glob("*/*/status.json"):
        records, folder = status.parent, runs / "stages" / status.parent.name
        if not (folder / status.name).exists():
            if folder in models:
                shutil.copytree(models[folder], folder / "model", dirs_exist_ok=True)
            others = shutil.ignore_patterns(MARK, status.name)
            shutil.copytree(records, folder, dirs_exist_ok=True, ignore=others)
            write_text(folder / status.name, status.read_text(encoding="utf-8"))  # last: the stage is complete
    record_study(plan, root)


def put_back(root: Path) -> None:
    """Fill runs/ from DVC's copies of the default pipeline, if that folder was deleted."""
    is_deleted = not (study_folder(root / "runs", DEFAULT) / "study.json").exists()
    if is_deleted and (root / "data" / "records").exists():
        restore(default_plan(load(root / "params.yaml")), root)


def _project(root: Path) -> Path:
    """Return PROJECT for the folder of a queued DVC experiment, PROJECT/.dvc/tmp/exps/...; another folder as it is."""
    found = [path.parents[2] for path in root.resolve().parents if path.parts[-3:] == (".dvc", "tmp", "exps")]
    return found[0] if found else root


def _share_runs(root: Path) -> None:
    """Share the project's runs/ with a queued experiment. It works in a copy of the project that is deleted later, so
    its stages are kept in the project, and finished ones are found there. Its records of runs and studies are
    separate."""
    runs, shared = root / "runs", _project(root) / "runs"
    for name in ("stages", "corpora", "embeddings", "bm25") if shared != runs else ():
        if not (runs / name).exists():
            runs.mkdir(exist_ok=True)
            (shared / name).mkdir(parents=True, exist_ok=True)
            (runs / name).symlink_to((shared / name).resolve())


def _record_experiment(name: str, plan: StudyPlan, project: Path) -> None:
    """Record a DVC experiment as a study with its name, so that it stays when the next experiment changes `default`."""
    remedy = "choose another with `dvc exp run --name`"
    if (project / "experiments" / f"{name}.yaml").exists() or name in (DEFAULT, SCRATCH):
        raise UserError(f"DVC experiment '{name}': a study has this name; {remedy}")
    check_study_name(name, f"DVC experiment '{name}'", remedy)
    record_study(replace(plan, design=replace(plan.design, name=name)), project)


def _publish(stage: str, plan: StudyPlan, root: Path) -> None:
    """Copy the results of a finished stage to data/ and models/, where DVC versions them, and to reports/."""
    if stage == "prepare":
        _export_corpora(plan, root)
    else:
        _export_models(stage, plan, root)
    _export_records(stage, plan, root)
    if stage == "evaluate":
        from realm_lab.evidence.report.default_run import write_default_outputs  # pandas takes a second to import
        from realm_lab.evidence.report.frames import load_study

        write_default_outputs(load_study(root / "runs", plan.name), root / "reports")


def _export_corpora(plan: StudyPlan, root: Path) -> None:
    wanted = set()
    for run in plan.runs:
        folder = exported_corpus_folder(root, run)
        if folder.name not in wanted and not (folder / "manifest.json").exists():
            link_directory(kept_corpus_folder(root, run), folder)
        wanted.add(folder.name)
    _remove_others(root / "data" / "prepared", wanted)


def _export_models(stage: str, plan: StudyPlan, root: Path) -> None:
    """Copy the models of a finished stage: a folder `<system>-s<seed>` each, or `s<seed>` if all systems share it."""
    wanted: set[str] = set()
    runs = [run for run in plan.runs if stage in run.stages]
    target = root / "models" / stage
    shared = {run.seed: {other.key(stage) for other in runs if other.seed == run.seed} for run in runs}
    for run in runs:
        if not _keeps_model(stage, run):
            continue
        source = _model(stage, run, root)
        is_shared = len(shared[run.seed]) == 1 < sum(other.seed == run.seed for other in runs)
        folder = target / (f"s{run.seed}" if is_shared else f"{run.system}-s{run.seed}")
        wanted.add(folder.name)
        if not source.exists():
            remedy = f"delete {source.parent} and run again"
            raise UserError("the results of a finished stage are gone", remedy, path=source)
        if not _is_copy(folder, source, "manifest.json"):
            with atomic_directory(folder) as scratch:
                shutil.copytree(source, scratch, dirs_exist_ok=True)
    _remove_others(target, wanted)


def _keeps_model(stage: str, run: Run) -> bool:
    return system_of(run.system).stage(stage).keeps == "model"


def _model(stage: str, run: Run, root: Path) -> Path:
    """Return the folder with the models of a stage."""
    return stage_folder(root / "runs", stage, run.key(stage)) / "model"


def _export_records(stage: str, plan: StudyPlan, root: Path) -> None:
    """Copy the records of a finished stage (metrics, results, code). They contain times, so no later stage has them as
    inputs."""
    records, kept = root / "data" / "records" / stage, set()
    for run in (run for run in plan.runs if stage == "prepare" or stage in run.stages):
        source = stage_folder(root / "runs", stage, run.key(stage))
        kept.add(source.name)
        if not _is_copy(records / source.name, source, CODE_NAME):
            with atomic_directory(records / source.name) as scratch:
                shutil.copytree(source, scratch, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model", *CHANGING))
    _remove_others(records, kept)


def _is_copy(folder: Path, source: Path, name: str) -> bool:
    """True if a folder is a copy of `source`, judged by the file `name`."""
    return (folder / name).exists() and (folder / name).read_bytes() == (source / name).read_bytes()


def _remove_others(target: Path, wanted: set[str]) -> None:
    for other in target.glob("*"):
        if other.name not in wanted and is_ours(other):
            remove_directory(other)
