"""The commands of the pipeline: `prepare`, `run` and `report`."""

from __future__ import annotations

import argparse
import sys

from realm_lab.cli.flags import (
    Add,
    add_dry_run,
    add_json,
    add_other_code,
    add_parameters,
    params_of,
)
from realm_lab.cli.studies import recorded
from realm_lab.errors import UserError
from realm_lab.records.files import print_json

STAGES = ("warm-start", "pretrain", "finetune", "evaluate")


def add_pipeline(add: Add) -> None:
    """Add the commands to the command line."""
    summary = "read or generate the corpus: passages, sentences with salient spans, questions"
    prepare = add("pipeline", "prepare", _run_prepare, summary)
    run = add(
        "pipeline",
        "run",
        run_stage,
        "train and evaluate REALM and its warm start (skips finished stages; rerun to resume)",
    )
    run.add_argument("--until", choices=STAGES, default=STAGES[-1], help="the last stage (default: evaluate)")
    for verb in (prepare, run):
        add_parameters(verb)
        add_dry_run(verb)
        add_other_code(verb)
    text = "only read these files or folders and print what is in them"
    prepare.add_argument("--count", nargs="+", metavar="FILE", help=text)
    add_json(prepare, "with --count: print JSON instead of a table")
    prepare.set_defaults(until="prepare")

    summary = "write the reports of all runs here, and the overview reports/index.html"
    report = add("pipeline", "report", _run_report, summary)
    report.add_argument("study", nargs="?", help="only reports/STUDY, and the overview (default: every study)")
    report.add_argument("--html", action="store_true", help="also reports/STUDY/report.html, one self-contained page")
    text = "also LaTeX tables (reports/STUDY/tables/*.tex), and figures as PDF and SVG"
    report.add_argument("--paper", action="store_true", help=text)
    report.add_argument("--force", action="store_true", help="also replace a report that counts more complete runs")


def run_stage(options: argparse.Namespace) -> None:
    """Run the default systems up to the stage that the options name, or show what would run."""
    params = params_of(options)  # before the heavy import: a typing error is answered at once
    from realm_lab.lab import pipeline
    from realm_lab.records.study import DEFAULT, SCRATCH

    pipeline.check_corpus(params)
    is_other = options.params or options.preset or options.overrides
    plan = pipeline.planned(params, SCRATCH if is_other else DEFAULT)
    work = pipeline.show if options.dry_run else pipeline.run
    work(options.until.replace("-", "_"), plan, options.root)


def _run_prepare(options: argparse.Namespace) -> int | None:
    if not options.count:
        if options.json:
            raise UserError("--json belongs to --count; give it")
        run_stage(options)
        return None
    from realm_lab.engine.corpus.readers import count_inputs
    from realm_lab.engine.params.load import read_values

    if (path := options.params or options.root / "params.yaml").exists():
        read_values(path)  # imports its plug-ins, which may read further formats
    counted, code = [], 0
    for found in count_inputs(options.count):
        if isinstance(found, UserError):
            print(f"realm-lab: error: {' '.join(str(found).split())}", file=sys.stderr)
            code = 2
            continue
        counted.append(found)
        code = code or int(found.is_empty)
        if not options.json:
            print(*found.lines(), sep="\n", flush=True)
    if options.json:
        print_json([found._asdict() for found in counted])
    return code


def _run_report(options: argparse.Namespace) -> None:
    from rich.console import Console

    from realm_lab.lab.project import studies_of

    if (options.root / "data" / "records").exists():
        from realm_lab.lab import pipeline

        pipeline.put_back(options.root)
    folders = [options.root / "reports" / name for name in ("", "reference")]
    if options.study and not any((folder / options.study).is_dir() for folder in folders):
        recorded(options.study, options.root)  # raises an error with the nearest name
    of = f"the report of {options.study}" if options.study else "all reports"
    with Console(stderr=True).status(f"writing {of}"):
        from realm_lab.evidence.report.report import report  # pandas and matplotlib take a second to import

        studies, more = studies_of(options.root), {"html": options.html, "paper": options.paper}
        path = report(options.root, options.study, force=options.force, studies=studies, **more)
    print(path)
