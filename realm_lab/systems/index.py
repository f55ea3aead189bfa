"""What `realm-lab index` does: build, list, verify and roll back generations of the knowledge corpus, and search one.

They lie in data/index/<corpus key>/, see retrieval/generation.py.
"""

# Shapes: B queries (here one), K results, N passages, D embedding size

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

from realm_lab.core.process import autocast, limit_threads
from realm_lab.corpus.vocabulary import encode_batch_plain
from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.inputs import join
from realm_lab.params.parameters import Params
from realm_lab.retrieval.backends import NAMES, faiss_settings, make_backend, read_search, write_search
from realm_lab.retrieval.building import WriteSearch
from realm_lab.retrieval.faiss_backends import FaissSettings
from realm_lab.retrieval.generation import Generation, GenerationStore, build_generation, embedder_digest
from realm_lab.retrieval.search import SearchResult
from realm_lab.retrieval.shards import Dtype
from realm_lab.systems.context import Context
from realm_lab.systems.identity import plan_run
from realm_lab.systems.registry import system_of
from realm_lab.tracking.run_dir import KEY_LENGTH

MASK = "[MASK]"
STAGES = ("warm_start", "pretrain", "finetune")


def open_context(params: Params, root: Path, seed: int, system: str) -> Context:
    """The run whose corpus and models are meant."""
    system_of(system)
    limit_threads(params.launch.threads)
    return Context(params, plan_run(params, system, seed), root)


def open_store(context: Context) -> GenerationStore:
    """The generations of a run's corpus, which other runs on it share."""
    folder = context.root / "data" / "index" / context.plan.corpus_key[:KEY_LENGTH]
    return GenerationStore(folder, context.corpus.manifest.digest)


def build(
    context: Context, stage: str | None, dtype: str, part: tuple[int, int] = (0, 1), backend: str = "exact"
) -> None:
    """Embed the knowledge corpus with what a finished stage left, and publish it as the current generation.

    With an approximate index where `backend` is not exact: of pretrain.search's settings, if that is its backend too.
    """
    if backend not in NAMES:
        raise UserError(f"--backend {backend}: choose {', '.join(NAMES)}")
    if dtype not in get_args(Dtype):
        raise UserError(f"--dtype {dtype}: choose {', '.join(get_args(Dtype))}")
    store = open_store(context)
    chosen, embedder = _embedder(context, stage)
    with _progress() as progress:
        generation = build_generation(
            store,
            embedder,
            context.passages,
            context.special,
            step=_steps(context.params, chosen),
            passage_length=context.params.corpus.passage_length,
            token_budget=context.params.launch.token_budget,
            precision=context.params.model.precision,
            dtype=dtype,  # type: ignore[arg-type]
            only=part,
            progress=progress,
            search=_search_writer(context, backend),
        )
    if generation is None:
        print(f"part {part[0]}/{part[1]} is written; the part that ends last publishes")
    else:
        found = _backend(generation)
        if backend not in ("exact", found.split()[0]):
            raise UserError(
                f"{generation.folder}: already built with {found} search, not {backend}; delete it to build it again"
            )
        size = _size(generation.size_bytes())
        print(f"{generation.folder}: {generation.manifest.rows:,} passages, {size}, search {found}; current")


def _search_writer(context: Context, backend: str) -> WriteSearch | None:
    if backend == "exact":
        return None
    chosen, seed = context.params.pretrain.search, context.plan.seed
    settings = faiss_settings(chosen, seed) if chosen.backend == backend else FaissSettings(seed=seed)
    return partial(write_search, backend, replace(settings, threads=0))


def _backend(generation: Generation) -> str:
    """How a generation can be searched: exact, or an approximate index with its recall@8."""
    found = generation.manifest.search
    return "exact" if found is None else f"{found.backend} (recall@8 {found.recall_at_8:.3f})"


def show(context: Context) -> None:
    """Print a table of the generations."""
    store = open_store(context)
    names, current = store.names(), store.current()
    if not names:
        print(f"{store.folder}: no index has been built here; run `realm-lab index build`")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("name", "step", "rows", "dtype", "search", "size", "current", "pinned"):
        table.add_column(column, justify="right" if column in ("step", "rows", "size") else "left", no_wrap=True)
    broken = []
    for name in names:
        marks = ("yes" if name == current else "", _pins(store, name))
        try:
            generation = store.open(name)
        except UserError as error:
            table.add_row(name, "", "", "broken", "", "", *marks)
            broken.append(str(error))
            continue
        manifest = generation.manifest
        size = _size(generation.size_bytes())
        table.add_row(
            name, f"{manifest.step:,}", f"{manifest.rows:,}", manifest.dtype, _backend(generation), size, *marks
        )
    console = Console(soft_wrap=True)
    console.print(table)
    for line in broken:
        console.print(line, markup=False, highlight=False)


def verify(context: Context, name: str | None) -> None:
    """Read every byte of a generation, or of all; any problem is a UserError."""
    store = open_store(context)
    names = store.names() if name is None else [name]
    if not names:
        store.open()  # says that there is none
    found = {name: store.verify(name) for name in names}
    if any(found.values()):
        raise UserError("; ".join(f"{name}: {problem}" for name, problems in found.items() for problem in problems))
    for name in names:
        print(f"{name}: every shard is as it was written")


def rollback(context: Context, name: str) -> None:
    """Make an earlier generation the current one."""
    print(f"{open_store(context).rollback(name).name} is now current")


def search(
    context: Context, stage: str | None, text: str, count: int, name: str | None, approximate: bool = False
) -> None:
    """Print the passages nearest to a question or masked sentence: rank, score, title, text."""
    if not text.strip():
        raise UserError("the text to search for is empty")
    with open_store(context).pin(name) as generation:
        _, embedder = _embedder(context, stage)
        generation.check_embedder(embedder_digest(embedder))
        found = find(context, embedder, generation, text, count, approximate)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("rank", "score"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("title", "text"):
        table.add_column(column)
    pairs = zip(found.rows_BK[0].tolist(), found.scores_BK[0].tolist(), strict=True)
    for rank, (row, score) in enumerate(pairs, 1):
        if row >= 0:
            passage = context.passages.text.row(row)
            table.add_row(str(rank), f"{score:.4f}", Text(passage["title"], "bold"), Text(passage["body"]))
    Console().print(table)


@torch.no_grad()
def find(
    context: Context, embedder: Embedder, generation: Generation, text: str, count: int, approximate: bool = False
) -> SearchResult:
    """The `count` passages of largest inner product with a text by the vectors of a generation, which stay on disk:
    exactly, or by its approximate index."""
    backend = read_search(generation) if approximate else make_backend("exact", generation.matrix())
    tokens = _tokens(context.tokenizer, context.special.mask, text)
    with autocast(context.device, context.params.model.precision):
        batch = join([tokens], None, context.special, context.params.corpus.sentence_length).to(context.device)
        query_BD = embedder.eval().embed_queries(batch)
    return backend.search(query_BD.cpu(), min(count, generation.manifest.rows))


def _tokens(tokenizer: Tokenizer, mask: int, text: str) -> np.ndarray:
    """Wordpieces; each [MASK] of the text is one."""
    first, *others = (encode_batch_plain(tokenizer, [part])[0].ids for part in text.split(MASK))
    tokens = list(first)
    for part in others:
        tokens += [mask, *part]
    return np.array(tokens, np.int64)


def _embedder(context: Context, stage: str | None) -> tuple[str, Embedder]:
    """The stage (by default the last before fine-tuning) and the embedder that it left, on the device."""
    chosen = stage.replace("-", "_") if stage else context.trained()
    if chosen not in context.plan.stages or chosen not in STAGES:
        known = ", ".join(name for name in STAGES if name in context.plan.stages)
        raise UserError(f"--stage {stage}: a {context.plan.system} run has {known}")
    embedder, _ = context.load_embedder(chosen)
    return chosen, embedder.to(context.device)


def _steps(params: Params, stage: str) -> int:
    return {
        "warm_start": params.warm_start.embedder.steps,
        "pretrain": params.pretrain.steps,
        "finetune": params.finetune.steps,
    }[stage]


def _pins(store: GenerationStore, name: str) -> str:
    return ", ".join(f"{owner.host}:{owner.pid}" for owner in store.pinned_by(name))


def _size(count: int) -> str:
    """Bytes for people: 1.5 MiB."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Passages a second of late."""
        return Text(f"{task.speed:,.0f} passages/s" if task.speed else "")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar with rate and remaining time on a terminal; nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("embedding"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("embedding", total=None)
        begun = False

        def progress(done: int, total: int) -> None:
            nonlocal begun
            if not begun:  # what an interrupted build has left was not done at this rate
                bar.reset(task, total=total, completed=done)
                begun = True
            bar.update(task, total=total, completed=done)

        yield progress
