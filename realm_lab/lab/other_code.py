"""Handle results computed by other code: name them before they are used, then compute again or accept them
(`launch.other_code`)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from realm_lab.engine.systems.identity import code_roots, exported_corpus_folder, kept_corpus_folder
from realm_lab.errors import UserError
from realm_lab.records.code_record import CODE_LOCK, CodeStates, StageCode, changes_line
from realm_lab.records.files import remove_directory
from realm_lab.records.lease import exclusive
from realm_lab.records.run import Run
from realm_lab.records.run_lease import writing

KEPT = ("config.yaml", "lease")  # files of a stage that stay if it starts from nothing
OtherCode = tuple[StageCode, list[Run]]


def other_code(runs: Iterable[Run], root: Path, until: str = "") -> list[OtherCode]:
    """Return the stages that other code computed, each with the planned runs that would use it again. Stages after
    `until` are left out; "": none are."""
    states = CodeStates(Path(root) / "runs")
    found: dict[Path, StageCode] = {}
    owners: dict[Path, list[Run]] = {}
    for run in runs:
        folders = run.folders(Path(root) / "runs", until)
        kept = states.of_run(folders, code_roots(run.params, run.system))
        for stage in kept:
            if stage.changes:
                found[stage.folder] = stage
                owners.setdefault(stage.folder, []).append(run)
    return [(stage, owners[folder]) for folder, stage in found.items()]


def described(found: Sequence[OtherCode]) -> str:
    """Describe the results of other code, and the changes since then, in a line."""
    return changes_line([stage for stage, _ in found], len({run.name for _, runs in found for run in runs}))


def settle_code(runs: Sequence[Run], root: Path, until: str = "", check: Callable[[], None] = lambda: None) -> None:
    """Treat results of other code as `launch.other_code` asks: stop, delete them, or accept them. `check` is called
    before anything is written. UserError: the setting is `stop`, or a process works on such a stage."""
    found = other_code(runs, root, until)
    policy = runs[0].params.launch.other_code if runs else "stop"
    if found and policy == "stop":
        raise UserError(f"{described(found)}; --fresh computes it again, --accept records that the change is harmless")
    check()
    if not found:
        return
    print(f"{'accepted' if policy == 'accept' else 'computing again'}: {described(found)}", file=sys.stderr)
    runs_folder = Path(root) / "runs"
    with exclusive(runs_folder / CODE_LOCK):
        for one, users in other_code(runs, root, until):  # less, if another process has just settled some
            if policy == "accept":
                run, stage = users[0], one.stage
                folders, roots = run.folders(runs_folder), code_roots(run.params, run.system)
                with writing(one.folder):
                    CodeStates(runs_folder).accept(stage, folders, roots[stage])
                continue
            for run in users:
                folders = run.folders(runs_folder, until)
                way = list(folders)
                for stage in way[way.index(one.stage) :]:  # and the stages computed from it
                    _empty(folders[stage])
                    if stage == "prepare":
                        kept = kept_corpus_folder(root, run)
                        remove_directory(kept)
                        remove_directory(exported_corpus_folder(root, run))
                        for cuts in kept.parent.glob(f".{kept.name}.*.cuts"):
                            shutil.rmtree(cuts)


def _empty(folder: Path) -> None:
    """Delete a stage's results so that it starts from nothing. UserError: a process works on it."""
    if not (folder / "config.yaml").exists():
        return
    with writing(folder):
        for path in folder.iterdir():
            if path.name not in KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
