"""The commands `init`, `demo` and `gc`: make a project, show a finished study, delete what nothing needs."""

from __future__ import annotations

import argparse
from pathlib import Path

from realm_lab.cli.ask import answer
from realm_lab.cli.flags import Add, add_json
from realm_lab.records.files import print_json


def add_start(add: Add) -> None:
    """Add `init` and `demo` to the command line."""
    summary = "make a project in a new folder: parameters, DVC pipeline, two studies, sample text"
    init = add("start", "init", _run_init, summary)
    init.add_argument("folder", type=Path, help="the new folder, in a Git repository or not")
    init.add_argument("--preset", default="toy", metavar="NAME", help="toy, smoke, real or paper (default: toy)")
    demo = add("start", "demo", _run_demo, "copy a finished study into runs/ and let it answer a question")
    demo.add_argument("question", nargs="?", help="another question of its toy world")


def add_gc(add: Add) -> None:
    """Add `gc` to the command line."""
    summary = "list runs, stages, corpora and caches that no study or report needs; --yes deletes them"
    collect = add("tools", "gc", _run_gc, summary)
    collect.add_argument("--yes", action="store_true", help="delete what is listed")
    text = "also what only this study needs, with its record; may be repeated"
    collect.add_argument("--forget", action="append", default=[], metavar="STUDY", help=text)
    add_json(collect)


def _run_init(options: argparse.Namespace) -> None:
    from realm_lab.lab.project import init

    folder = options.root / options.folder
    init(folder, options.preset)
    print(f"{folder}: ready. Next: cd {folder}; realm-lab doctor; dvc repro; realm-lab sweep quick")


def _run_demo(options: argparse.Namespace) -> None:
    from realm_lab.api import load_run
    from realm_lab.lab.demo import QUESTION, install, next_steps

    run, question = install(options.root), options.question or QUESTION
    print(f'$ realm-lab ask --run {run} "{question}"', flush=True)
    answer(load_run(run, options.root).context, question)
    print(f"Next: {next_steps(options.root)}.")


def _run_gc(options: argparse.Namespace) -> None:
    from realm_lab.lab.housekeeping import remove, size_of, unneeded

    folders = unneeded(options.root, options.forget)
    sizes = {folder: size_of(folder) / 2**20 for folder in folders}
    for folder, size in sizes.items():
        if not options.json:
            print(f"{size:10,.1f} MiB  {folder}")
        if options.yes:
            remove(folder)
    if options.json:
        print_json([{"folder": folder, "mebibytes": size, "deleted": options.yes} for folder, size in sizes.items()])
        return
    last = "deleted" if options.yes else "nothing is deleted without --yes" if folders else "everything is needed"
    print(f"{len(folders)} folders, {sum(sizes.values()):,.1f} MiB; {last}")
