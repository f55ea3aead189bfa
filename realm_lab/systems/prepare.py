"""The prepare stage of one corpus: progress into its run folder, a summary of what was kept and dropped."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from realm_lab.core.files import atomic_directory, write_text
from realm_lab.core.launched import cores
from realm_lab.corpus.prepare import prepare as prepare_corpus
from realm_lab.corpus.salient_spans import register_tagger
from realm_lab.corpus.store import Manifest
from realm_lab.corpus.toy_world import ToyWorld
from realm_lab.models.tagger import read_tagger
from realm_lab.params.parameters import Params
from realm_lab.systems.context import Context
from realm_lab.systems.identity import exported_corpus_folder, kept_corpus_folder
from realm_lab.tracking.run_dir import StageRun


def prepare(context: Context, run: StageRun) -> None:
    """Prepare the corpus of a run under runs/; one that DVC versions in data/prepared is linked, not made again."""
    folder = kept_corpus_folder(context.root, context.plan)
    exported = exported_corpus_folder(context.root, context.plan)
    if (folder / "manifest.json").exists():
        return
    if run.is_complete() and (exported / "manifest.json").exists():
        link_corpus(exported, folder)
        return
    _prepare(context, run, folder)


def link_corpus(source: Path, folder: Path) -> None:
    """The same corpus at another place; the two share their bytes where the file system can."""
    with atomic_directory(folder) as scratch:
        shutil.copytree(source, scratch, dirs_exist_ok=True, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(source, target)


def _prepare(context: Context, run: StageRun, folder: Path) -> None:
    offer_tagger(context.params)
    run.start(expected_records(context.params))
    written: dict[str, int] = {}
    files = context.params.corpus.files
    read = ReadShare([*files.knowledge, *files.pretrain, *files.knowledge_updated])

    def progress(part: str, count: int) -> None:
        written[part] = count
        done = sum(written.values())
        share = read.now() if context.params.corpus.source == "files" else None
        if share:
            run.expect(max(done, round(done / share)))
        run.heartbeat(done)

    shard_counts: Counter[str] = Counter()
    manifest = prepare_corpus(
        context.params,
        folder,
        context.plan.seed,
        progress,
        shards=context.root / "runs" / "shards",
        workers=context.params.launch.threads or cores(),
        shard_counts=shard_counts,
    )
    lines = summary(manifest, shard_counts)
    print("\n".join(f"{folder.name}: {line}" for line in lines), file=sys.stderr)
    write_text(run.path / "summary.md", "\n".join(["# Prepared corpus", "", *(f"- {line}" for line in lines)]) + "\n")
    done = sum(written.values())
    run.expect(done)
    run.heartbeat(done, force=True)
    run.finish({"counts": manifest.counts, "dropped": manifest.dropped, "digest": manifest.digest})


def summary(manifest: Manifest, shard_counts: Mapping[str, int]) -> list[str]:
    """What was kept, what was dropped of each kind and why, and how many shards were not made again."""
    lines = [", ".join(f"{name} {count:,}" for name, count in manifest.counts.items())]
    by_kind: dict[str, list[tuple[str, int]]] = {}
    for reason, count in manifest.dropped.items():
        by_kind.setdefault(reason.partition(":")[0].partition(" ")[0], []).append((reason, count))
    for kind, reasons in by_kind.items():
        told = "; ".join(f"{count:,} ({reason})" for reason, count in sorted(reasons, key=lambda pair: -pair[1]))
        lines.append(f"dropped or cut, {kind}: {told}")
    shards = ", ".join(f"{shard_counts[name]:,} {name}" for name in ("made", "reused", "damaged") if shard_counts[name])
    return [*lines, f"shards: {shards}"] if shards else lines


class ReadShare:
    """How much of some files has been read, by where this process stands in them (Linux; elsewhere it is not known)."""

    def __init__(self, names: Sequence[str]):
        paths = [str(Path(name).resolve()) for name in names if Path(name).is_file()]
        self._paths = paths if len(paths) == len(names) else []  # folders and data sets: not known
        self._sizes = [os.stat(path).st_size for path in self._paths]
        self._at = 0

    def now(self) -> float | None:
        """The share of the bytes read, None where it is not known."""
        opened = self._positions()
        for number in range(self._at, len(self._paths)):
            if self._paths[number] in opened:
                self._at = number
                return (sum(self._sizes[:number]) + opened[self._paths[number]]) / sum(self._sizes)
        return None

    def _positions(self) -> dict[str, int]:
        positions = {}
        for entry in Path("/proc/self/fd").glob("*"):
            with contextlib.suppress(OSError, ValueError):  # closed meanwhile
                target = os.readlink(entry)
                if target in self._paths:
                    positions[target] = int(Path(f"/proc/self/fdinfo/{entry.name}").read_text().split()[1])
        return positions


def offer_tagger(params: Params) -> None:
    """Register the tagger of corpus.files.tagger_model: the corpus room, which has no torch, cannot find it itself."""
    folder = params.corpus.files.tagger_model
    if params.corpus.tagger == "model" and folder is not None:
        register_tagger("model", partial(read_tagger, folder))


def expected_records(params: Params) -> int:
    """How many passages and articles will be written; 0 where files do not say beforehand."""
    if params.corpus.source == "files":
        return 0
    toy = params.corpus.toy
    world = ToyWorld(toy.entities, toy.fillers_per_entity, toy.changed_fraction, 0, toy.restate_facts)
    editions = 2 if toy.changed_fraction else 1
    return toy.entities * world.passages_per_entity * editions + toy.articles
