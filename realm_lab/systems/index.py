"""What `realm-lab index` does: embed a run's knowledge corpus into the store, search it, list, verify and prune it."""

# Shapes: B queries (here one), N passages, D embedding size

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.retrieval.embeddings import KEY_LENGTH, Embeddings, EmbeddingStore
from realm_lab.systems.context import Context, embedding_store
from realm_lab.systems.registry import system_of

MASK = "[MASK]"


def build(context: Context, stage: str | None) -> None:
    """Embed the knowledge corpus by what a finished stage left, unless that is in the store already."""
    found = _embeddings(context, _embedder(context, stage))
    print(f"{found.folder}: {len(found):,} passages of {found.shape[1]} numbers, {_size(found)}")


def search(context: Context, stage: str | None, text: str, count: int) -> None:
    """Print the passages nearest to a question or masked sentence: rank, score, title, text."""
    if not text.strip():
        raise UserError("the text to search for is empty")
    embedder = _embedder(context, stage)
    _embeddings(context, embedder)  # with its progress
    first, *others = context.wordpieces(text.split(MASK))
    tokens = np.array([*first, *(piece for part in others for piece in (context.special.mask, *part))], np.int64)
    retriever = context.retriever(embedder.eval())
    with torch.no_grad():
        query_BD = retriever.embed_queries([tokens])
        rows_BK = retriever.find(query_BD, min(count, len(context.passages)))
        scores_BK = retriever.indexed_score(query_BD, rows_BK)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("rank", "score", "title", "text"):
        table.add_column(column, no_wrap=column in ("rank", "score"))
    pairs = zip(rows_BK[0].tolist(), scores_BK[0].tolist(), strict=True)
    for rank, (row, score) in enumerate(pairs, 1):
        passage = context.passages.text.row(row)
        table.add_row(str(rank), f"{score:.4f}", Text(passage["title"], "bold"), Text(passage["body"]))
    Console().print(table)


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
        created = datetime.datetime.fromtimestamp(entry.manifest["created"]).strftime("%Y-%m-%d %H:%M")
        print(f"{keys}  {identity.precision:9}  {identity.rows:10,}  {_size(entry):>12}  {created}")


def verify(root: Path, keys: Sequence[str]) -> None:
    """Read every byte of these embeddings, or of all; any problem is a UserError."""
    entries = _chosen(embedding_store(root), keys)
    problems = [problem for entry in entries for problem in entry.problems()]
    if problems:
        raise UserError("; ".join(problems))
    print(f"{len(entries)} embeddings are as they were written")


def prune(root: Path, keep: Sequence[str]) -> None:
    """Delete all embeddings but those named; they are built again when they are needed."""
    store = embedding_store(root)
    kept = {entry.key for entry in _chosen(store, keep)} if keep else set()
    for key in store.prune(kept):
        print(f"deleted {key[:KEY_LENGTH]}")


def _chosen(store: EmbeddingStore, keys: Sequence[str]) -> list[Embeddings]:
    """Entries by the beginnings of their keys; of no keys, all."""
    entries = store.published()
    for key in keys:
        if not any(entry.key.startswith(key) for entry in entries):
            raise UserError(f"{store.folder}: no embeddings {key!r}; see `realm-lab index list`")
    return [entry for entry in entries if not keys or any(entry.key.startswith(key) for key in keys)]


def _embedder(context: Context, stage: str | None) -> Embedder:
    """The embedder that a stage (by default the last before fine-tuning) left, on the device."""
    chosen = stage.replace("-", "_") if stage else context.trained()
    known = [stage.name for stage in system_of(context.plan.system).stages if stage.keeps == "model"]
    if chosen not in known:
        raise UserError(f"--stage {stage}: a {context.plan.system} run has {', '.join(known)}")
    embedder, _ = context.load_embedder(chosen)
    return embedder.to(context.device)


def _embeddings(context: Context, embedder: Embedder) -> Embeddings:
    with _progress() as progress:
        return context.embeddings(embedder, progress=progress)


def _size(entry: Embeddings) -> str:
    return f"{entry.shape.numel() * entry.matrix.element_size() / 2**20:,.1f} MiB"


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar with the remaining time on a terminal; nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("embedding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("embedding", total=None)
        yield lambda done, total: bar.update(task, total=total, completed=done)
