"""`realm-lab index`: embed a run's knowledge corpus into the store, and list the store."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from realm_lab.engine.retrieval.embeddings import Embeddings
from realm_lab.engine.systems.context import Context, embedding_store
from realm_lab.engine.systems.registry import system_of
from realm_lab.errors import UserError
from realm_lab.records.run import KEY_LENGTH


def build(context: Context, stage: str | None) -> Embeddings:
    """Embed the knowledge corpus with the models of a finished stage (the last before fine-tuning), unless done."""
    chosen = stage.replace("-", "_") if stage else context.trained()
    known = [stage.name for stage in system_of(context.run.system).stages if stage.keeps == "model"]
    if chosen not in known:
        raise UserError(f"--stage {stage}: a {context.run.system} run has {', '.join(known)}")
    embedder, _ = context.load_embedder(chosen)
    return context.embeddings(embedder.to(context.device))


def fields_of(found: Embeddings) -> dict[str, Any]:
    """Return its folder and digests, the number of passages and of numbers of each, and its size."""
    identity = found.identity
    fields = {"folder": found.folder, "key": found.key, "corpus": identity.corpus_digest}
    fields |= {"embedder": identity.tower_digest, "precision": identity.precision, "passages": len(found)}
    return fields | {"dimension": found.shape[1], "mebibytes": _mebibytes(found)}


def in_words(found: Embeddings) -> str:
    """One line about it."""
    return f"{found.folder}: {len(found):,} passages of {found.shape[1]} numbers, {_size(found)}"


def show(root: Path) -> None:
    """Print a table of the store."""
    store = embedding_store(root)
    entries = store.published()
    if not entries:
        print(f"{store.folder}: nothing is embedded yet; evaluation, `ask` and `index build` do so")
        return
    print(f"{'key':12}  {'corpus':12}  {'embedder':12}  precision  {'rows':>10}  {'size':>12}  created")
    for entry in entries:
        identity = entry.identity
        keys = "  ".join(key[:KEY_LENGTH] for key in (entry.key, identity.corpus_digest, identity.tower_digest))
        created = datetime.datetime.fromtimestamp((entry.folder / "manifest.json").stat().st_mtime)
        print(f"{keys}  {identity.precision:9}  {identity.rows:10,}  {_size(entry):>12}  {created:%Y-%m-%d %H:%M}")


def _size(entry: Embeddings) -> str:
    return f"{_mebibytes(entry):,.1f} MiB"


def _mebibytes(entry: Embeddings) -> float:
    return entry.shape.numel() * entry.matrix.element_size() / 2**20
