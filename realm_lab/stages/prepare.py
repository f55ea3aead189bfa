"""The prepare stage of one corpus: progress into its run folder, a summary of what was kept and dropped."""

from __future__ import annotations

import sys

from realm_lab.corpus.prepare import prepare as prepare_corpus
from realm_lab.corpus.toy_world import ToyWorld
from realm_lab.parameters import Params
from realm_lab.runs import corpus_folder
from realm_lab.systems.context import Context
from realm_lab.tracking.run_dir import StageRun


def prepare(context: Context, run: StageRun) -> None:
    """Prepare the corpus of a run."""
    folder = corpus_folder(context.root, context.plan)
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
    world = ToyWorld(toy.entities, toy.fillers_per_entity, toy.changed_fraction, 0)
    editions = 2 if toy.changed_fraction else 1
    return toy.entities * world.passages_per_entity * editions + toy.articles
