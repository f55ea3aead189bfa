"""`realm-lab demo`: copy a finished study of the package into runs/, and let its run answer a question.

The study is demo.yaml in realm_lab/demo/. Next to it are the stages of its runs except `prepare`, without files that
name machine and user, such as env.json. Other studies can use these stages. `make demo-study` trains them again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from realm_lab.engine.systems.identity import kept_corpus_folder
from realm_lab.errors import UserError
from realm_lab.lab.plan import plan_study
from realm_lab.lab.study import StudyPlan
from realm_lab.lab.wanted import record_study
from realm_lab.lab.worker import run_stage
from realm_lab.records.files import atomic_directory
from realm_lab.records.study import read_study_record, study_folder

FOLDER = Path(__file__).parents[1] / "demo"
QUESTION = "who is the president of vovzib ?"


def planned(root: Path) -> StudyPlan:
    """Plan the demo study in a project, with the demo's params.yaml in place of the project's."""
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
        for folder in run.folders(Path(root) / "runs").values():
            source = FOLDER / "stages" / folder.name
            if source.is_dir() and not folder.exists():
                with atomic_directory(folder) as scratch:
                    shutil.copytree(source, scratch, dirs_exist_ok=True)
            elif not folder.exists() and not folder.name.startswith("prepare"):
                raise UserError("no such stage", "the demo was made by another version of the engine", path=source)
    first = plan.runs[0]
    if not (kept_corpus_folder(root, first) / "manifest.json").exists():
        run_stage("prepare", first.system, first.params, first.seed, root)
    return f"{plan.name}/{first.cell}-s{first.seed}"


def next_steps(root: Path) -> str:
    """Return the commands to try next in a project."""
    train = "dvc repro" if (Path(root) / "dvc.yaml").exists() else "realm-lab run"
    show = "realm-lab mirror; mlflow ui"
    if (Path(root) / "Makefile").exists():
        train, show = "make repro", "make ui"
    return f"realm-lab report demo; {show}; {train} trains the default study"
