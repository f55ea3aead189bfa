"""The prepare stage of one corpus. The stage's folder gets the progress, and a summary of kept and dropped texts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from realm_lab.engine.corpus.chunking import CUT_WORDPIECES
from realm_lab.engine.corpus.prepare import PASSAGE_WORDPIECES
from realm_lab.engine.corpus.prepare import prepare as prepare_corpus
from realm_lab.engine.corpus.store import Manifest
from realm_lab.engine.systems.identity import exported_corpus_folder, kept_corpus_folder
from realm_lab.records.files import link_directory, write_text
from realm_lab.records.launched import cores
from realm_lab.records.run import StageRun

if TYPE_CHECKING:
    from realm_lab.engine.systems.corpus_context import CorpusContext


def prepare(context: CorpusContext, run: StageRun) -> None:
    """Prepare the corpus of a run under runs/; one that DVC versions in data/prepared is linked, not made again."""
    folder = kept_corpus_folder(context.root, context.run)
    exported = exported_corpus_folder(context.root, context.run)
    if (folder / "manifest.json").exists():
        return
    if run.is_complete() and (exported / "manifest.json").exists():
        link_directory(exported, folder)
        return
    params = context.params
    run.start(0)  # the number of records is known only at the end
    written: dict[str, int] = {}

    def progress(part: str, count: int) -> None:
        written[part] = count
        run.heartbeat(sum(written.values()))

    workers = params.launch.threads or cores()
    manifest = prepare_corpus(params, folder, context.run.seed, progress, workers=workers)
    lines = summary(manifest)
    print(f"corpus {folder.name}: {'; '.join(lines)}", file=sys.stderr)
    write_text(run.path / "summary.md", "\n".join(["# Prepared corpus", "", *(f"- {line}" for line in lines)]) + "\n")
    run.heartbeat(sum(written.values()), force=True)
    run.finish({"counts": manifest.counts, "dropped": manifest.dropped, "digest": manifest.digest})


def summary(manifest: Manifest) -> list[str]:
    """Summarise kept, dropped and cut texts with the reasons."""
    lines = [", ".join(f"{name} {count:,}" for name, count in manifest.counts.items())]
    reasons = sorted(manifest.dropped.items(), key=lambda pair: -pair[1])
    lines += [f"dropped or cut: {count:,} ({reason})" for reason, count in reasons]
    cut, total = manifest.dropped.get(CUT_WORDPIECES, 0), manifest.counts.get(PASSAGE_WORDPIECES, 0)
    if cut:
        lines.append(
            f"{cut / total:.2%} of the passages' wordpieces are in sentences too long for a passage and never read"
        )
    return lines
