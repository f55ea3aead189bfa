"""`run(stage, ...)`: one stage for every run of the parameters, several side by side, then its exports."""

from __future__ import annotations

import shutil
from pathlib import Path

from realm_lab.core.files import atomic_directory, is_ours, read_json, remove_directory
from realm_lab.core.launched import launched
from realm_lab.errors import UserError
from realm_lab.masking import check_masking
from realm_lab.params.parameters import Params
from realm_lab.retrieval.refresh import refresh_policy
from realm_lab.runner.pool import Job, run_jobs
from realm_lab.runner.summary import write_curves, write_metrics
from realm_lab.systems.identity import Plan, exported_corpus_folder, open_stage, plan_runs, record_run
from realm_lab.tracking.study_record import StudyCell, StudyRecord, StudyRun, write_study_record

# stage -> (what of a run's stage folder is exported, where to). What evaluate exports is no report: it makes DVC run
# the stage in a fresh clone, where the committed reports exist and the run records do not.
EXPORTS = {
    "warm_start": ("model", "models/warm_start"),
    "pretrain": ("model", "models/pretrain"),
    "finetune": ("model", "models/finetune"),
    "evaluate": ("eval", "data/evaluated"),
}


def run(stage: str, params: Params, root: Path) -> None:
    """Do one stage for every seed, with and without REALM pre-training, and export what it made.

    Started by torchrun or srun as several processes, these are the ranks that share every batch, and the runs are done
    one after another.

    Raises:
        UserError: something in the input or in a run failed; finished runs are kept and not done again.
    """
    root = Path(root)
    check_masking(params.pretrain)  # unknown names and options are refused before any work
    refresh_policy(params.pretrain.refresh)
    if launched().size > 1:
        _run_as_rank(stage, params, root)
        return
    if stage == "prepare":
        _prepare_all(params, root)
        return
    run_jobs(_jobs(stage, params, root), params, root)
    _publish(stage, params, root)


def _run_as_rank(stage: str, params: Params, root: Path) -> None:
    """The same in the processes of a launcher; rank 0 alone plans, prepares and exports."""
    from realm_lab.core.process import connect, disconnect, exit_on_signals, on_first_rank, pick_device
    from realm_lab.runner.worker import run_stage

    exit_on_signals()
    connect(pick_device(params.launch.device))
    if stage == "prepare":
        on_first_rank(lambda: _prepare_all(params, root))
    else:
        planned = on_first_rank(lambda: [[job.system, job.seed] for job in _jobs(stage, params, root)])
        for system, seed in planned:
            run_stage(stage, system, params, seed, root)
        on_first_rank(lambda: _publish(stage, params, root))
    disconnect()


def _publish(stage: str, params: Params, root: Path) -> None:
    """What a finished stage gives to others."""
    plans = plan_runs(params)
    _export(stage, plans, params, root)
    if stage == "evaluate":
        write_metrics(root, params, plans)
        write_curves(root, params, plans)


def _jobs(stage: str, params: Params, root: Path) -> list[Job]:
    """One job for each distinct stage key that is not complete; the runs are recorded."""
    plans = plan_runs(params)
    _record(plans, params, root / "runs")
    jobs: dict[str, Job] = {}
    for plan in plans:
        if stage in plan.stages and plan.stages[stage] not in jobs:
            stage_run = open_stage(root / "runs", plan, stage, params)
            if not stage_run.is_complete():
                jobs[plan.stages[stage]] = Job(stage, plan.system, plan.seed, stage_run)
    return list(jobs.values())


def _record(plans: list[Plan], params: Params, runs: Path) -> None:
    """The runs, and the study that they are: REALM beside its own warm start."""
    cells = (
        StudyCell("warm_start", "warm start only", "warm_start", {}),
        StudyCell("realm", "REALM", "realm", {}),
    )
    members = [StudyRun(p.system, p.seed, p.run_key, record_run(runs, p, params).name) for p in plans]
    question = "What does REALM pre-training add to its own warm start?"
    study = StudyRecord("default", question, "warm_start", cells, tuple(params.seeds), tuple(members))
    write_study_record(runs, study)


def _prepare_all(params: Params, root: Path) -> None:
    """Prepare every distinct corpus of the seeds, and remove those of other parameters."""
    plans = {plan.corpus_key: plan for plan in plan_runs(params)}
    jobs = []
    for key, plan in plans.items():
        manifest = exported_corpus_folder(root, plan) / "manifest.json"
        if not manifest.exists() or read_json(manifest)["key"] != key:
            jobs.append(Job("prepare", plan.system, plan.seed, open_stage(root / "runs", plan, "prepare", params)))
    run_jobs(jobs, params, root)
    kept = {exported_corpus_folder(root, plan).name for plan in plans.values()}
    for other in (root / "data" / "prepared").glob("*"):
        if other.name not in kept and is_ours(other):
            remove_directory(other)


def _export(stage: str, plans: list[Plan], params: Params, root: Path) -> None:
    """Copy what a finished stage made to its place for DVC and other tools, a folder `<system>-s<seed>` each."""
    part, place = EXPORTS[stage]
    target = root / place
    wanted = set()
    done = set()
    for plan in plans:
        key = plan.stages.get(stage)
        if key is None or key in done:
            continue
        done.add(key)
        source = open_stage(root / "runs", plan, stage, params).path / part
        if not source.exists():
            raise UserError(f"{source}: the results of a finished stage are gone; delete {source.parent} and run again")
        shared = stage == "warm_start"
        folder = target / (f"s{plan.seed}" if shared else f"{plan.system}-s{plan.seed}")
        wanted.add(folder.name)
        if (folder / "manifest.json").exists() and read_json(folder / "manifest.json")["key"] == key:
            continue
        with atomic_directory(folder) as scratch:
            shutil.copytree(source, scratch, dirs_exist_ok=True)
    for other in target.glob("*"):
        if other.name not in wanted and is_ours(other):
            remove_directory(other)
