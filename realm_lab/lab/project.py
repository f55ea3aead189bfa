"""The studies of a project, and `realm-lab init`, which makes a project from the templates in realm_lab/project/."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

from realm_lab.errors import UserError, needs
from realm_lab.records.files import write_text
from realm_lab.records.study import Studies, StudyRecord

TEMPLATE = Path(__file__).parents[1] / "project"
HEAD = """\
# The parameters of realm_lab. Choose a preset in the next line; an empty value means: as the preset says.
# The comment shows each preset's value.
"""


def studies_of(root: Path) -> Studies:
    """Return the studies of a project. `default` is planned from params.yaml whenever it is read, since the runs in its
    study.json may belong to a DVC experiment; nothing is written. Without torch or params.yaml it is as it ran last."""
    root = Path(root)
    can_plan = (root / "params.yaml").exists() and find_spec("torch") is not None
    return Studies(root / "runs", functools.partial(_planned, root) if can_plan else None)


def _planned(root: Path) -> StudyRecord:
    from realm_lab.engine.params.load import load  # these modules take half a second to import
    from realm_lab.lab.plan import default_plan

    plan = default_plan(load(root / "params.yaml"))
    return plan.record(plan.runs)


def init(folder: Path, preset: str) -> None:
    """Write params.yaml, dvc.yaml, files in experiments/ and examples/, and DVC's folder, in a Git repository or not.
    A .gitignore gets more lines. UserError: another of these files or the folder .dvc exists; nothing is written."""
    with needs("`realm-lab init`", "dvc", "platform"):
        from dvc.repo import Repo

    from realm_lab.engine.params.load import from_flags, preset_values
    from realm_lab.engine.params.params_yaml import render_params_yaml

    preset_values(from_flags({"preset": preset})["preset"])  # an unknown preset is refused before anything is written
    texts = {
        path.relative_to(TEMPLATE).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(TEMPLATE.rglob("*"))
        if path.is_file()
    }
    for name in ("gitignore", "dvcignore"):
        texts[f".{name}"] = texts.pop(name)
    # not named dvc.yaml in the package: DVC would take such a file for a pipeline of the checkout
    texts["dvc.yaml"] = texts.pop("pipeline.yaml")
    written = render_params_yaml({"preset": preset})
    texts["params.yaml"] = HEAD + written[written.index("preset:") :]
    study = "experiments/quick.yaml"
    texts[study] = texts[study].replace("preset: toy\n", f"preset: {preset}\n")
    there = [name for name in (*texts, ".dvc") if name != ".gitignore" and (folder / name).exists()]
    if there:
        raise UserError(f"{folder / there[0]} already exists; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    in_git = [parent for parent in (folder.resolve(), *folder.resolve().parents) if (parent / ".git").exists()]
    repo = Repo.init(str(folder), no_scm=not in_git, subdir=bool(in_git) and in_git[0] != folder.resolve())
    with repo.config.edit() as settings:
        settings["core"]["analytics"] = False
    repo.close()
    for name, text in texts.items():
        path = folder / name
        if name == ".gitignore" and path.exists():
            text = path.read_text(encoding="utf-8").rstrip("\n") + f"\n\n{text}"
        write_text(path, text)
