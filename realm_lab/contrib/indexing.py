"""The command `index`: embed a run's knowledge corpus into the store, and list the store."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.cli.flags import Add, add_everywhere, add_json, add_params, add_run, opened
from realm_lab.errors import UserError
from realm_lab.records.files import print_json

if TYPE_CHECKING:
    from realm_lab.engine.retrieval.embeddings import Embeddings
    from realm_lab.engine.systems.context import Context


def add_index(add: Add) -> None:
    """Add `index` with its subcommands to the command line."""
    index = add("", "index", _run_index, "embed the knowledge corpus into the store; list it")
    verbs = index.add_subparsers(dest="index_verb", metavar="COMMAND", required=True)

    def add_verb(name: str, summary: str) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:], allow_abbrev=False)
        add_json(verb)
        add_everywhere(verb)
        return verb

    build = add_verb("build", "embed the knowledge corpus with a finished stage's embedder; resumes")
    add_run(build)
    add_params(build)
    text = "stage that trained the embedder (default: the last before fine-tuning)"
    build.add_argument("--stage", metavar="NAME", help=text)
    add_verb("list", "list the embeddings with corpus, embedder and size; a deleted folder is built again when needed")


def _run_index(options: argparse.Namespace) -> None:
    from realm_lab.engine.systems.context import embedding_store

    if options.index_verb == "build":
        found = build(opened(options), options.stage)
        if options.json:
            print_json(fields_of(found))
        else:
            print(f"{found.folder}: {len(found):,} passages of {found.shape[1]} numbers, {_size(found)}")
    elif options.json:
        print_json([fields_of(entry) for entry in embedding_store(options.root).published()])
    else:
        show(options.root)


def build(context: Context, stage: str | None) -> Embeddings:
    """Return the embeddings of the knowledge corpus by the embedder of a finished stage (None: the last before
    fine-tuning that has one), from the store or computed now. UserError: there is no such stage or embedder."""
    from realm_lab.engine.systems.registry import system_of

    system = context.run.system
    known = [one.name for one in system_of(system).stages if one.keeps == "model"]
    asked = [stage.replace("-", "_")] if stage else [name for name in reversed(known) if name != "finetune"]
    if stage and asked[0] not in known:
        raise UserError(f"--stage {stage}: a {system} run has {', '.join(known) or 'no models'}")
    for name in asked:
        if (context.model_folder(name) / "embedder").exists():
            embedder, _ = context.load_embedder(name)
            return context.embeddings(embedder.to(context.device))
    raise UserError(
        f"a {system} run has no embedder in {', '.join(asked) or 'any stage'}; index the run of another system"
    )


def fields_of(found: Embeddings) -> dict[str, Any]:
    """Return the folder, digests and size of an entry, its number of passages, and the dimension of their vectors."""
    identity = found.identity
    fields = {"folder": found.folder, "key": found.key, "corpus": identity.corpus_digest}
    fields |= {"embedder": identity.tower_digest, "precision": identity.precision, "passages": len(found)}
    return fields | {"dimension": found.shape[1], "mebibytes": _mebibytes(found)}


def show(root: Path) -> None:
    """Print a table of the store."""
    from realm_lab.engine.systems.context import embedding_store
    from realm_lab.records.run import KEY_LENGTH

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
