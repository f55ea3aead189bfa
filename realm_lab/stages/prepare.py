"""The prepare stage of one corpus: progress into its run folder, a summary of what was kept and dropped."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from realm_lab.core.files import atomic_directory
from realm_lab.corpus.prepare import prepare as prepare_corpus
from realm_lab.corpus.toy_world import ToyWorld
from realm_lab.parameters import Params
from realm_lab.runs import Plan, exported_corpus_folder, kept_corpus_folder
from realm_lab.systems.context import Context
from realm_lab.tracking.run_dir import StageRun

Place = Callable[[Path, Plan], Path]


def prepare(context: Context, run: StageRun) -> None:
    """Prepare the corpus of a run, for DVC to version."""
    _from_other_or_anew(context, run, exported_corpus_folder, kept_corpus_folder)


def prepare_kept(context: Context, run: StageRun) -> None:
    """Prepare the corpus of a run of a study."""
    _from_other_or_anew(context, run, kept_corpus_folder, exported_corpus_folder)


def _from_other_or_anew(context: Context, run: StageRun, place: Place, other: Place) -> None:
    """The two places of a corpus share their bytes, where the file system can."""
    folder, source = place(context.root, context.plan), other(context.root, context.plan)
    if (folder / "manifest.json").exists():
        return
    if run.is_complete() and (source / "manifest.json").exists():
        with atomic_directory(folder) as scratch:
            shutil.copytree(source, scratch, dirs_exist_ok=True, copy_function=_link_or_copy)
        return
    _prepare(context, run, folder)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(source, target)


def _prepare(context: Context, run: StageRun, folder: Path) -> None:
    run.start(expected_records(context.params))
    written: dict[str, int] = {}

    def progress(part: str, count: int) -> None:
        written[part] = count
        run.heartbeat(sum(written.values()))

    manifest = prepare_corpus(context.params, folder, context.plan.seed, progress)
    counts = ", ".join(f"{name} {count:,}" for name, count in manifest.counts.items())
    print(f"{folder.name}: {counts}", file=sys.stderr)
    for reason, count in manifest.dropped.items():
        print(f"{folder.name}: dropped {count:,} ({reason})", file=sys.stderr)
    run.heartbeat(sum(written.values()), force=True)
    run.finish({"counts": manifest.counts, "dropped": manifest.dropped, "digest": manifest.digest})


def expected_records(params: Params) -> int:
    """How many passages and articles will be written; 0 where files do not say beforehand."""
    if params.corpus.source == "files":
        return 0
    toy = params.corpus.toy
    world = ToyWorld(toy.entities, toy.fillers_per_entity, toy.changed_fraction, 0, toy.restate_facts)
    editions = 2 if toy.changed_fraction else 1
    return toy.entities * world.passages_per_entity * editions + toy.articles
