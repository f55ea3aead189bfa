"""The commands `init`, `runs`, `logs` and `gc`: make a project, and inspect or delete the results of its runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from realm_lab.cli.ask import answer
from realm_lab.cli.flags import Add, add_json
from realm_lab.records.files import print_json


def add_init(add: Add) -> None:
    """Add `init` to the command line."""
    init = add("init", _run_init, "make a project in a new folder: parameters, DVC pipeline, a study, sample text")
    init.add_argument("folder", type=Path, help="the new folder, in a Git repository or not")
    init.add_argument("--preset", default="toy", metavar="NAME", help="toy, smoke, real or paper (default: toy)")
    add_json(init)
    demo = add("demo", _run_demo, "copy a finished study into runs/ and let it answer a question")
    demo.add_argument("question", nargs="?", help="another question of its toy world")
    add_json(demo)


def add_runs(add: Add, add_tool: Add) -> None:
    """Add `runs`, `logs` and `gc` to the command line."""
    runs = add("runs", _run_runs, "list all runs with their state and their studies")
    add_json(runs)
    logs = add("logs", _run_logs, "print what a run did: stages, steps, losses, refreshes, evaluations, flags")
    logs.add_argument("name", metavar="RUN", help="its name or the start of it, or STUDY/CELL-sSEED")
    either = logs.add_mutually_exclusive_group()
    either.add_argument("--follow", action="store_true", help="go on until the run has ended")
    add_json(either, "print JSON: each stage with all its metrics")
    collect = add_tool(
        "gc", _run_gc, "list runs, stages, embeddings and BM25 that no study or report needs; --yes deletes them"
    )
    collect.add_argument("--yes", action="store_true", help="delete what is listed")
    text = "also what only this study needs, with its record; may be repeated"
    add_json(collect)
    collect.add_argument("--forget", action="append", default=[], metavar="STUDY", help=text)


def _run_init(options: argparse.Namespace) -> None:
    from realm_lab.runner.project import init

    folder = options.root / options.folder
    init(folder, options.preset)
    if options.json:
        print_json({"folder": folder})
        return
    print(f"{folder}: ready. Next: cd {folder}; realm-lab doctor; dvc repro; realm-lab sweep quick")


def _run_demo(options: argparse.Namespace) -> None:
    from realm_lab.api import load_run
    from realm_lab.runner.demo import QUESTION, install, next_steps

    run, question = install(options.root), options.question or QUESTION
    if options.json:
        answer(load_run(run, options.root).context, question, as_json=True)
        return
    print(f'$ realm-lab ask --run {run} "{question}"', flush=True)
    answer(load_run(run, options.root).context, question)
    print(f"Next: {next_steps(options.root)}.")


def _run_runs(options: argparse.Namespace) -> None:
    from realm_lab.runner.housekeeping import list_runs
    from realm_lab.runner.status import print_table

    found = list_runs(options.root)
    if options.json:
        print_json(found)
        return
    rows = [(run["run"], run["state"].lower(), ", ".join(run["studies"]) or "none") for run in found]
    print_table("" if rows else "no runs here", ("run", "state", "study/cell"), rows)


def _run_logs(options: argparse.Namespace) -> None:
    from realm_lab.api import load_record
    from realm_lab.runner.logs import log_as_json, show_log

    run = load_record(options.name, options.root)
    if options.json:
        print_json(log_as_json(options.root, run))
    else:
        show_log(options.root, run, follow=options.follow)


def _run_gc(options: argparse.Namespace) -> None:
    from realm_lab.runner.housekeeping import remove, size_of, unneeded

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
