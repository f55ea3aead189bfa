"""The commands `mirror` and `doctor`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from realm_lab.cli.flags import Add, add_json, add_parameters, add_params, overrides_of, params_of
from realm_lab.errors import UserError
from realm_lab.records.files import print_json

if TYPE_CHECKING:
    from realm_lab.cli.doctor import Diagnosis


def add_mirror(add: Add) -> None:
    """Add `mirror` to the command line."""
    mirror = add("inspect", "mirror", _run_mirror, "show the runs in MLflow (run it as often as you like)")
    add_params(mirror)
    text = "tracking store (default: MLFLOW_TRACKING_URI, else launch.tracking_uri, else mlflow.db next to the runs)"
    mirror.add_argument("--uri", metavar="URI", help=text)
    mirror.add_argument(
        "--follow", action="store_true", help="keep mirroring until each run is complete, failed or cancelled"
    )
    text = "address of the MLflow server that will show the store, for the links (default: the store, if it is one)"
    mirror.add_argument("--address", metavar="URL", help=text)
    add_json(mirror)
    either = mirror.add_mutually_exclusive_group()
    text = "another tracker than MLflow: NAME, package.module:Class or '{name: NAME, OPTION: VALUE}'"
    either.add_argument("--tracker", metavar="TRACKER", help=text)
    text = "also register the model of this study's best run, with the alias `best`"
    either.add_argument("--register", metavar="STUDY", help=text)
    text = "with --register: the development measure that ranks the runs (default: exact_match_dev)"
    mirror.add_argument("--by", metavar="METRIC", help=text)


def _run_mirror(options: argparse.Namespace) -> int:
    if options.by and not options.register:
        raise UserError("--by ranks the runs for --register STUDY", "add it, or leave out --by")
    uri = options.uri or os.environ.get("MLFLOW_TRACKING_URI")
    has_params = options.params or (options.root / "params.yaml").exists()
    # params.yaml may list the plug-in that registers the tracker
    params = params_of(options) if has_params and (options.tracker or not uri) else None
    uri = uri or (params.launch.tracking_uri if params else None)
    from realm_lab.engine.params.load import chosen
    from realm_lab.lab.project import studies_of
    from realm_lab.lab.tracking.mirror import MLFLOW, mirror
    from realm_lab.records.tracking_store import is_server

    def page(report: Path) -> str:
        from realm_lab.evidence.report.report import page_of

        return page_of(report)

    studies, tracker = studies_of(options.root), chosen("--tracker", options.tracker) if options.tracker else None
    summary = mirror(options.root / "runs", uri, options.follow, page=page, studies=studies, tracker=tracker)
    registered = None
    if options.register:
        from realm_lab.lab.tracking.mlflow_tracker import register

        registered = register(studies, options.register, uri or "", options.by or "exact_match_dev")
    if options.json:
        print_json({**vars(summary), "registered": registered and str(registered)})
        return 1 if summary.problems else 0
    print(summary)
    if registered:
        print(registered)
    address = options.address or (summary.uri if is_server(summary.uri) else "")
    if summary.links and not address and (tracker is None or tracker.name == MLFLOW):
        address = "http://127.0.0.1:5000"
        print(f"to open the links: make ui, or mlflow ui --backend-store-uri {summary.uri}")
    for study, path in summary.links.items():
        print(f"  {study}: {address.rstrip('/')}{path}")
    return 1 if summary.problems else 0


def add_doctor(add: Add) -> None:
    """Add `doctor` to the command line."""
    summary = "check this machine and the configured inputs, and suggest fixes"
    doctor = add("tools", "doctor", _run_doctor, summary)
    add_parameters(doctor)
    only = doctor.add_mutually_exclusive_group()
    only.add_argument("study", nargs="?", help="also check the parameters and files of a study, experiments/NAME.yaml")
    text = "try the GPU (training, resume, search) and print a report for an issue"
    only.add_argument("--gpu", action="store_true", help=text)
    text = "read all finished files of runs/ and models/, and name each that is damaged and those without a digest"
    only.add_argument("--verify", action="store_true", help=text)
    text = "before pre-training: measure whether it can learn on the corpus (the warm start must have finished)"
    only.add_argument("--corpus", action="store_true", help=text)
    add_json(doctor)


def _diagnoses(options: argparse.Namespace) -> Iterator[Diagnosis]:
    """Check what the options ask for, a diagnosis at a time."""
    from realm_lab.cli.doctor import Diagnosis, State, examine, examine_study, verify, with_gate

    if options.verify:
        yield from verify(options.root)
    elif options.gpu:
        params = params_of(options)
        from realm_lab.lab.gpu_check import checks, gpu_device

        states: dict[bool | None, State] = {True: "OK", None: "note", False: "wrong"}
        for subject, right, found in checks(params, gpu_device(params)):
            yield Diagnosis(states[right], subject, found)
    elif options.corpus:
        params = params_of(options)
        from realm_lab.engine.systems.context import open_run
        from realm_lab.engine.systems.gate import gate

        yield from with_gate(gate(open_run(params, options.root, None, "realm")))
    else:
        study, known, fault = None, None, None
        if options.study:
            from realm_lab.lab.sweep import find_study

            study = find_study(options.study, options.root)
        try:
            known = params_of(options)
        except UserError as error:
            fault = error
        yield from examine(known, options.root, fault)
        if study:
            yield from examine_study(study, options.root, options.params, overrides_of(options))


def _run_doctor(options: argparse.Namespace) -> int:
    """Print each diagnosis as soon as it is known; 1 if something is missing or wrong."""
    from realm_lab.cli.doctor import show

    found = []
    for diagnosis in _diagnoses(options):
        found.append(diagnosis)
        if not options.json:
            show(diagnosis)
    if options.json:
        print_json([diagnosis._asdict() for diagnosis in found])
    return int(any(diagnosis.state in ("missing", "wrong") for diagnosis in found))
