"""`realm-lab demo`: a finished study that comes with the package, copied into runs/, which answers a question.

The study is demo.yaml in realm_lab/demo/, with the stages of its runs next to it, without those files that nothing
reads. `python -m realm_lab.runner.demo ROOT` takes the stages over from the finished study `demo` in the project ROOT.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from realm_lab.core.files import atomic_directory, write_json
from realm_lab.errors import UserError
from realm_lab.runner.plan import StudyPlan, plan_study, record_study
from realm_lab.runner.worker import run_stage
from realm_lab.systems.identity import kept_corpus_folder, stage_folders
from realm_lab.tracking.study_record import read_study_record, study_folder

FOLDER = Path(__file__).parents[1] / "demo"
QUESTION = "who is the president of vovzib ?"
KEPT = "config.yaml", "results.json", "metrics.jsonl", "status.json"  # files of every stage
MODELS = {"realm": ("pretrain", "finetune")}  # stages whose models `ask` and `fill` need


def planned(root: Path) -> StudyPlan:
    """Plan the demo in a project, whatever its params.yaml contains."""
    return plan_study(FOLDER / "demo.yaml", root, params_path=FOLDER / "params.yaml")


def install(root: Path) -> str:
    """Copy the demo into ROOT/runs and prepare its corpus, unless that is done; returns the name of its REALM run.

    UserError: the project has another study of this name, or the stages belong to another version of the engine.
    """
    plan = planned(root)
    path = study_folder(Path(root) / "runs", plan.name) / "study.json"
    if path.exists() and {run.run_key for run in read_study_record(path).runs} != {run.run_key for run in plan.runs}:
        raise UserError("another study has the name of the demo", path=path, remedy="run the demo in another folder")
    record_study(plan, root)
    for run in plan.runs:
        for folder in stage_folders(Path(root) / "runs", run.plan).values():
            source = FOLDER / "stages" / folder.name
            if source.is_dir() and not folder.exists():
                with atomic_directory(folder) as scratch:
                    shutil.copytree(source, scratch, dirs_exist_ok=True)
            elif not folder.exists() and not folder.name.startswith("prepare"):
                raise UserError("no such stage", "the demo was made by another version of the engine", path=source)
    first = plan.runs[0]
    if not (kept_corpus_folder(root, first.plan) / "manifest.json").exists():
        run_stage("prepare", first.plan.system, first.params, first.seed, root)
    return f"{plan.name}/{first.cell}-s{first.seed}"


def collect(root: Path) -> None:
    """Take the stages of the finished study over into the package, without names of the user and the machine."""
    target = FOLDER / "stages"
    shutil.rmtree(target, ignore_errors=True)
    for run in planned(root).runs:
        for stage, folder in stage_folders(Path(root) / "runs", run.plan).items():
            if stage == "prepare" or (target / folder.name).exists():
                continue
            (target / folder.name).mkdir(parents=True)
            for name in KEPT:
                if (folder / name).exists():
                    shutil.copy2(folder / name, target / folder.name / name)
            status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
            write_json(target / folder.name / "status.json", status | {"host": "", "pid": 0})
            if stage in MODELS.get(run.plan.system, ()):
                shutil.copytree(folder / "model", target / folder.name / "model")
            if stage == "evaluate" and run.plan.system in MODELS:
                (target / folder.name / "eval").mkdir()
                shutil.copy2(folder / "eval" / "explorer.json", target / folder.name / "eval")


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
