"""The commands for studies: `sweep`, `search`, `status`, `compare`, `calibrate` and `reproduce`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from realm_lab.cli.flags import (
    Add,
    add_dry_run,
    add_json,
    add_other_code,
    add_parameters,
    overrides_of,
    policy_of,
    positive,
)
from realm_lab.errors import UserError, needs
from realm_lab.records.files import print_json

if TYPE_CHECKING:
    from realm_lab.runner.sweep import Request


def add_studies(add: Add, add_inspect: Add) -> None:
    """Add the commands to the command line."""
    sweep = add("sweep", _run_sweep, "run a study: every cell with every seed (skips finished runs; rerun to resume)")
    sweep.add_argument("study", nargs="?", help="experiments/NAME.yaml, or its NAME; not with --axis")
    text = "instead of a file: values of a parameter, the baseline's first; repeated, every combination"
    sweep.add_argument("--axis", action="append", default=[], dest="axes", metavar="KEY=VALUE,...", help=text)
    text = "with --axis: the study's name; its file experiments/NAME.yaml is written, to keep and to run again"
    sweep.add_argument("--name", metavar="NAME", help=text)
    text = "run only the first N seeds of the study; with --axis: seeds 0 to N-1"
    sweep.add_argument("--seeds", type=positive, metavar="N", help=text)
    text = "with --axis: take seeds until each cell is decided, as long as this device time lasts, such as 2h"
    sweep.add_argument("--budget", metavar="TIME", help=text)
    text = "run only these cells of the study, with commas between them"
    sweep.add_argument("--cells", action="append", default=[], metavar="CELL,...", help=text)
    text = "run all of it small (few steps and questions, one seed), in runs/try, and say what a whole run takes"
    sweep.add_argument("--try", action="store_true", dest="is_try", help=text)
    text = "run nothing: print the differences that numbers of seeds will detect, and their cost"
    sweep.add_argument("--power", action="store_true", help=text)
    text = "with --power: the study to take the spread of differences from (default: this one's runs, or its report)"
    sweep.add_argument("--pilot", metavar="STUDY", help=text)
    sweep.add_argument("--force", action="store_true", help="also replace a report that counts more complete runs")
    search = add("search", _run_search, "hyper-parameter search with Optuna (prunes bad trials; rerun to resume)")
    search.add_argument("search", help="experiments/search-NAME.yaml, or search-NAME")
    search.add_argument("--trials", type=positive, metavar="N", help="total number of trials (default: as in the file)")
    for verb in (sweep, search):
        add_parameters(verb)
        text = "train in this process, in processes of this machine or as SLURM jobs (default: as in the file)"
        verb.add_argument("--launcher", choices=["inline", "local", "slurm"], help=text)
        text = "settings of your cluster: profiles/NAME.yaml, ~/.config/realm_lab/NAME.yaml, or a file"
        verb.add_argument("--profile", metavar="NAME", help=text)
        text = "one setting of SLURM, for example partition=gpu; may be repeated"
        verb.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE", help=text)
        add_json(verb)
        add_other_code(verb)
        verb.add_argument(
            "--follow", action="store_true", help="wait until all runs have finished, mirroring to MLflow"
        )
        verb.add_argument("--retry-failed", action="store_true", help="also retry runs that failed with an error")
        instead = verb.add_mutually_exclusive_group()
        add_dry_run(instead)
        instead.add_argument("--cancel", action="store_true", help="stop running and queued jobs")

    status = add("status", _run_status, "show the state of a study's runs, or of all studies")
    status.add_argument("study", nargs="?", help="experiments/NAME.yaml, or its NAME (default: list all)")
    status.add_argument("--follow", action="store_true", help="keep the table up to date until nothing runs or waits")
    add_json(status)

    summary = "compare runs, or cells of studies: parameters, numbers, curves, differences"
    compare = add_inspect("compare", _run_compare, summary)
    text = "a run's folder, name or start of it, STUDY/CELL-sSEED, or STUDY/CELL for all its seeds"
    compare.add_argument("runs", nargs="+", metavar="RUN", help=text)
    compare.add_argument("--out", type=Path, metavar="DIR", help="folder of the page (default: ROOT/reports/compare)")
    add_json(compare)

    text = "simulate how often a study's tests give false alarms, for differences as skewed as its own"
    calibrate = add_inspect("calibrate", _run_calibrate, text)
    calibrate.add_argument("study", help="its name")
    add_json(calibrate)

    text = "check reports against the runs here, or run one cell again: OK, within noise or off"
    again = add_inspect("reproduce", _run_reproduce, text)
    again.add_argument("target", nargs="?", metavar="STUDY[/CELL]", help="default: every report")
    again.add_argument(
        "--rerun", action="store_true", help="run again in a separate project, even if the runs are here"
    )
    text = "smoke test only: the smoke preset, one seed, no comparison of numbers"
    again.add_argument("--quick", action="store_true", help=text)
    add_json(again)
    again.add_argument("--scratch", type=Path, metavar="DIR", help="folder to run in (default: ROOT/runs/reproduce)")


def _run_calibrate(options: argparse.Namespace) -> None:
    from realm_lab.evidence.calibrated import show_calibration
    from realm_lab.runner.default_study import studies_of

    show_calibration(studies_of(options.root), options.root, options.study, as_json=options.json)


def _run_reproduce(options: argparse.Namespace) -> int:
    from realm_lab.runner.reproduce import reproduce

    code, found = reproduce(
        options.root,
        options.target,
        rerun=options.rerun,
        is_quick=options.quick,
        scratch=options.scratch,
        is_silent=options.json,
    )
    if options.json:
        print_json(found)
    return code


def _run_sweep(options: argparse.Namespace) -> int:
    from realm_lab.runner.sweep import sweep
    from realm_lab.runner.try_out import try_study

    work = try_study if options.is_try else sweep
    if options.power:
        if options.is_try or options.dry_run or options.cancel:
            raise UserError("sweep --power runs nothing; leave out --try, --dry-run and --cancel")
        from realm_lab.runner.power import show_power

        work = show_power
    elif options.pilot:
        raise UserError("sweep --pilot is for --power; add it")
    if not options.axes:
        if options.budget:
            raise UserError("sweep --budget is for --axis; in a file write seeds: {until: decided, within: 2 h}")
        if options.name or not options.study:
            raise UserError("sweep: name a study, or give --axis KEY=VALUE,... and --name NAME")
        return _run(work, options, options.study)
    if options.study or not options.name:
        raise UserError("sweep --axis: give --name NAME for the study, and no other study")
    from realm_lab.runner.written_study import in_use, write_axes

    if options.budget and options.seeds:
        raise UserError("sweep --budget decides the number of seeds; leave out --seeds")
    given, how = overrides_of(options), (options.axes, options.seeds, options.params)
    path, is_new = write_axes(options.root, options.name, *how, given, options.budget)
    options.overrides, options.preset = [], None  # they are in the file now
    with in_use(path, is_new, is_kept=not (options.dry_run or options.power)):
        return _run(work, options, str(path))


def _run_search(options: argparse.Namespace) -> int:
    from realm_lab.runner.sweep import sweep

    with needs("`realm-lab search`", "optuna", "platform"):
        import realm_lab.runner.rules.trials  # noqa: F401  # brings it
    return _run(sweep, options, options.search)


def _run(work: Callable[[Request], int], options: argparse.Namespace, study: str) -> int:
    """Do the work of a study or search, or cancel it."""
    from realm_lab.params.load import parse_override
    from realm_lab.runner.sweep import Request, cancel_study, find_study

    path = find_study(study, options.root, options.verb)
    if options.cancel:  # also of a study whose file is being changed
        return cancel_study(path.stem, options.root)
    given = vars(options) | {
        "path": path,
        "params_path": options.params,
        "overrides": overrides_of(options) | policy_of(options),
        "as_json": options.json,
        "cluster": dict(parse_override(text, "--slurm", "partition=gpu") for text in options.slurm),
    }
    return work(Request(**{field.name: given[field.name] for field in fields(Request) if field.name in given}))


def _run_status(options: argparse.Namespace) -> None:
    from realm_lab.runner.status import show_status, show_studies

    if options.study is None:
        show_studies(options.root, as_json=options.json)
        return
    show_status(recorded(options.study, options.root), options.root, as_json=options.json, follow=options.follow)


def recorded(study: str, root: Path) -> str:
    """Return the name of a study that has runs here, or a file. UserError: it has neither; with the nearest name."""
    from realm_lab.records.study import DEFAULT, Studies
    from realm_lab.runner.sweep import find_study, study_of_cell

    known, above = (DEFAULT, *Studies(root / "runs").names()), study_of_cell(study)
    if above in known:
        raise UserError(f"'{study}' is a cell or a run of study {above}; name only the study")
    name = Path(study).name.removesuffix(".yaml")
    if above or name not in known:
        find_study(study, root)
    return name


def _run_compare(options: argparse.Namespace) -> None:
    from realm_lab.evidence.compare import compare_runs
    from realm_lab.runner.default_study import studies_of

    compare_runs(studies_of(options.root), options.runs, options.out, is_json=options.json)
