"""The commands for studies: `sweep`, `status`, `compare` and `reproduce`."""

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
from realm_lab.errors import UserError
from realm_lab.records.files import print_json

if TYPE_CHECKING:
    from realm_lab.lab.sweep import Sweep
    from realm_lab.records.run import Run


def add_studies(add: Add) -> None:
    """Add `sweep` and `status` to the command line."""
    summary = "run a study, every variant with every seed, or a search (skips finished runs; rerun to resume)"
    sweep = add("studies", "sweep", _run_sweep, summary)
    sweep.add_argument("study", nargs="?", help="experiments/NAME.yaml, or its NAME; not with --axis")
    text = "instead of a file: values of a parameter, the baseline's first; repeated: every combination"
    sweep.add_argument("--axis", action="append", default=[], dest="axes", metavar="KEY=VALUE,...", help=text)
    text = "with --axis: name of the study, whose file experiments/NAME.yaml is written"
    sweep.add_argument("--name", metavar="NAME", help=text)
    text = "run only the first N seeds of the study; with --axis: seeds 0 to N-1"
    sweep.add_argument("--seeds", type=positive, metavar="N", help=text)
    text = "with --axis: take seeds until each variant is decided or this device time, such as 2h, is used"
    sweep.add_argument("--budget", metavar="TIME", help=text)
    text = "run only these variants, `cells` in the file, with commas between them"
    sweep.add_argument("--cells", action="append", default=[], metavar="VARIANT,...", help=text)
    text = "run all of it small in runs/try (few steps, one seed), and estimate the time of the whole"
    sweep.add_argument("--try", action="store_true", dest="is_try", help=text)
    text = "run nothing: print the differences that numbers of seeds will detect, and their cost; STUDY has the spread "
    text += "(default: this one's runs, or its report)"
    sweep.add_argument("--power", nargs="?", const="", dest="pilot", metavar="STUDY", help=text)
    add_parameters(sweep)
    text = "train in this process (inline), in processes of this machine (local), as SLURM jobs (slurm), or by another "
    text += "launcher: NAME, package.module:Class or '{name: NAME, OPTION: VALUE}' (default: as in the file)"
    sweep.add_argument("--launcher", metavar="LAUNCHER", help=text)
    text = "settings of your cluster: profiles/NAME.yaml, ~/.config/realm_lab/NAME.yaml, or a file"
    sweep.add_argument("--profile", metavar="NAME", help=text)
    text = "one setting of SLURM, for example partition=gpu; may be repeated"
    sweep.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE", help=text)
    add_json(sweep)
    add_other_code(sweep)
    sweep.add_argument("--follow", action="store_true", help="wait until all runs have finished, mirroring to MLflow")
    text = "work here on runs that other machines leave free in the same folder, until all is done"
    sweep.add_argument("--join", action="store_true", help=text)
    sweep.add_argument("--retry-failed", action="store_true", help="also retry runs that failed with an error")
    instead = sweep.add_mutually_exclusive_group()
    add_dry_run(instead)
    instead.add_argument("--cancel", action="store_true", help="stop running and queued jobs")

    status = add("studies", "status", _run_status, "show the runs of a study, what a run did, or all studies")
    only = status.add_mutually_exclusive_group()
    text = "experiments/NAME.yaml, or its NAME; or a run: its name or the start of it, or STUDY/VARIANT-sSEED"
    only.add_argument("study", nargs="?", metavar="STUDY|RUN", help=f"{text} (default: list all studies)")
    only.add_argument("--runs", action="store_true", help="list all runs with their state and their studies")
    text = "check each line of the ledger, and compare the last ones with the studies here"
    only.add_argument("--ledger", action="store_true", help=text)
    status.add_argument("--follow", action="store_true", help="of a study or run: repeat until nothing runs or waits")
    add_json(status)


def add_compare(add: Add) -> None:
    """Add `compare` and `reproduce` to the command line."""
    summary = "compare runs, or variants of studies: parameters, numbers, curves, differences"
    compare = add("inspect", "compare", _run_compare, summary)
    text = "a run's folder, name or start of it, STUDY/VARIANT-sSEED, or STUDY/VARIANT for all its seeds"
    compare.add_argument("runs", nargs="+", metavar="RUN", help=text)
    compare.add_argument("--out", type=Path, metavar="DIR", help="folder of the page (default: ROOT/reports/compare)")
    add_json(compare)

    summary = "check reports against the runs here, or run one variant again: OK, within noise or off"
    again = add("inspect", "reproduce", _run_reproduce, summary)
    again.add_argument("target", nargs="?", metavar="STUDY[/VARIANT]", help="default: every report")
    text = "run again in runs/reproduce, even if the runs are here"
    again.add_argument("--rerun", action="store_true", help=text)
    add_json(again)


def _run_reproduce(options: argparse.Namespace) -> int:
    from realm_lab.lab.reproduce import reproduce

    code, found = reproduce(options.root, options.target, rerun=options.rerun, is_silent=options.json)
    if options.json:
        print_json(found)
    return code


def _run_sweep(options: argparse.Namespace) -> int:
    from realm_lab.lab.sweep import Sweep
    from realm_lab.lab.try_out import try_study

    if options.is_try and (options.json or options.dry_run):
        raise UserError("sweep --try runs small and prints no JSON; leave out --json and --dry-run")
    work = try_study if options.is_try else Sweep.run
    if options.pilot is not None:
        if options.is_try or options.dry_run or options.cancel:
            raise UserError("sweep --power runs nothing; leave out --try, --dry-run and --cancel")
        from realm_lab.lab.power import show_power

        work = show_power
    if not options.axes:
        if options.budget:
            raise UserError("sweep --budget is for --axis; in a file write seeds: {until: decided, within: 2 h}")
        if options.name or not options.study:
            raise UserError("sweep: name a study, or give --axis KEY=VALUE,... and --name NAME")
        return _sweep(work, options, options.study)
    if options.study or not options.name:
        raise UserError("sweep --axis: give --name NAME for the study, and no other study")
    if options.cancel:
        raise UserError(f"sweep --cancel: name only the study, `sweep {options.name} --cancel`")
    from realm_lab.lab.progress import say
    from realm_lab.lab.written_study import write_axes

    if options.budget and options.seeds:
        raise UserError("sweep --budget decides the number of seeds; leave out --seeds")
    given, how = overrides_of(options), (options.axes, options.seeds, options.params)
    path, is_new = write_axes(options.root, options.name, *how, given, options.budget)
    options.overrides, options.preset = [], None  # they are in the file now
    is_kept = not options.dry_run and options.pilot is None
    if is_new and is_kept:
        say(f"{path}: written; `realm-lab sweep {path.stem}` runs it again")
    try:
        return _sweep(work, options, str(path))
    finally:
        if is_new and not is_kept:
            path.unlink()


def _sweep(work: Callable[[Sweep], int], options: argparse.Namespace, study: str) -> int:
    """Do `work` on a study or search; with --cancel, stop its runs instead."""
    from realm_lab.engine.params.load import chosen, parse_override
    from realm_lab.lab.sweep import Sweep, cancel_study, find_study
    from realm_lab.records.yaml_file import read_yaml

    path = find_study(study, options.root, is_search=options.alias == "search")
    if options.cancel:  # without reading the file, which may be half edited
        return cancel_study(path.stem, options.root)
    is_part = options.cells or options.seeds or options.is_try or options.pilot is not None
    if is_part and "space" in read_yaml(path):
        raise UserError("is a search", "leave out --cells, --seeds, --try and --power", path=path)
    given = vars(options) | {
        "path": path,
        "params_path": options.params,
        "overrides": overrides_of(options) | policy_of(options),
        "as_json": options.json,
        "launcher": chosen("--launcher", options.launcher) if options.launcher else None,
        "cluster": dict(parse_override(text, "--slurm", "partition=gpu") for text in options.slurm),
        "pilot": options.pilot or None,
    }
    return work(Sweep(**{field.name: given[field.name] for field in fields(Sweep) if field.name in given}))


def _run_status(options: argparse.Namespace) -> int:
    from realm_lab.lab.status import print_table, show_status, show_studies

    if options.follow and (options.json or not options.study):
        raise UserError("status --follow: name a study or a run, without --json")
    if options.ledger:
        return _check_ledger(options.root, as_json=options.json)
    if options.runs:
        from realm_lab.lab.housekeeping import list_runs

        found = list_runs(options.root)
        if options.json:
            print_json(found)
            return 0
        rows = [(run["run"], run["state"].lower(), ", ".join(run["studies"]) or "none") for run in found]
        print_table("" if rows else "no runs here", ("run", "state", "study/variant"), rows)
    elif options.study is None:
        show_studies(options.root, as_json=options.json)
    elif isinstance(shown := _study_or_run(options.study, options.root), str):
        show_status(shown, options.root, as_json=options.json, follow=options.follow)
    else:
        from realm_lab.lab.logs import log_as_json, show_log

        if options.json:
            print_json(log_as_json(options.root, shown))
        else:
            show_log(options.root, shown, follow=options.follow)
    return 0


def _study_or_run(name: str, root: Path) -> str | Run:
    """Return the study's name or the run that `name` stands for; runs are named as in `compare`. UserError: neither."""
    from realm_lab.api import load_record
    from realm_lab.records.run import run_paths
    from realm_lab.records.study import DEFAULT, Studies

    try:
        return recorded(name, root)
    except UserError as no_study:
        try:
            return load_record(name, root)
        except UserError as no_run:
            begins = any(path.parent.name.startswith(name) for path in run_paths(root / "runs"))
            is_of_study = name.partition("/")[0] in (DEFAULT, *Studies(root / "runs").names())
            raise (no_run if begins or is_of_study else no_study) from None


def _check_ledger(root: Path, as_json: bool) -> int:
    from realm_lab.evidence.ledger import deviations, verify

    lines, problems = verify(root)
    studies = dict.fromkeys(line.fields["study"] for line in lines)
    found = {study: deviations([line for line in lines if line.fields["study"] == study]) for study in studies}
    if as_json:
        fields = {"lines": len(lines), "problems": [one._asdict() for one in problems]}
        print_json(fields | {"deviations": {study: [one._asdict() for one in of] for study, of in found.items()}})
        return int(bool(problems))
    for problem in problems:
        print(f"line {problem.line}, study {problem.study}: {problem.what}")
    if not problems:
        for study, of in found.items():
            print(f"{study}: {'; '.join(map(str, of)) or 'as planned'}")
        print(f"{len(lines)} lines hold")
    return int(bool(problems))


def recorded(study: str, root: Path) -> str:
    """Return the name of a study that has runs or a file here. UserError: it has neither; the nearest name is given."""
    from realm_lab.lab.sweep import find_study, study_of_cell
    from realm_lab.records.study import DEFAULT, Studies

    known, above = (DEFAULT, *Studies(root / "runs").names()), study_of_cell(study)
    if above in known:
        raise UserError(f"'{study}' is a variant or a run of study {above}; name only the study")
    name = Path(study).name.removesuffix(".yaml")
    if above or name not in known:
        return find_study(study, root).stem
    return name


def _run_compare(options: argparse.Namespace) -> None:
    from realm_lab.evidence.compare import compare_runs
    from realm_lab.lab.project import studies_of

    compare_runs(studies_of(options.root), options.runs, options.out, is_json=options.json)
