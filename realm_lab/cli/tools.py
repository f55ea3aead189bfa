"""The commands `index`, `plan`, `bench`, `doctor` and `mirror`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from realm_lab.cli.flags import (
    Add,
    add_everywhere,
    add_json,
    add_parameters,
    add_run,
    overrides_of,
    params_of,
    positive,
    share,
)
from realm_lab.errors import UserError
from realm_lab.records.files import print_json

if TYPE_CHECKING:
    from realm_lab.cli.doctor import Finding


def add_mirror(add: Add) -> None:
    """Add `mirror` to the command line."""
    mirror = add("mirror", _run_mirror, "show the runs in MLflow (run it as often as you like)")
    add_parameters(mirror)
    text = "tracking store (default: MLFLOW_TRACKING_URI, else launch.tracking_uri, else mlflow.db next to the runs)"
    mirror.add_argument("--uri", metavar="URI", help=text)
    mirror.add_argument("--follow", action="store_true", help="keep mirroring until all runs have finished")
    text = "address of the MLflow server that will show the store, for the links (default: the store, if it is one)"
    mirror.add_argument("--address", metavar="URL", help=text)
    add_json(mirror)
    either = mirror.add_mutually_exclusive_group()
    text = "another tracker than MLflow: NAME, package.module:Class or '{name: NAME, OPTION: VALUE}'"
    either.add_argument("--tracker", metavar="TRACKER", help=text)
    text = "also register the model of this study's best run, with the alias `best`"
    either.add_argument("--register", metavar="STUDY", help=text)
    text = "the development measure that ranks the runs (default: exact_match_dev)"
    mirror.add_argument("--by", default="exact_match_dev", metavar="METRIC", help=text)


def _run_mirror(options: argparse.Namespace) -> int:
    uri = options.uri or os.environ.get("MLFLOW_TRACKING_URI")
    asked = options.params or options.preset or options.overrides or (options.root / "params.yaml").exists()
    params = params_of(options) if asked and (options.tracker or not uri) else None  # plug-ins may register a tracker
    uri = uri or (params.launch.tracking_uri if params else None)
    from realm_lab.params.load import chosen
    from realm_lab.records.tracking_store import is_server
    from realm_lab.runner.default_study import studies_of
    from realm_lab.tracking.mirror import mirror

    def page(report: Path) -> str:
        from realm_lab.evidence.report.report import page_of

        return page_of(report)

    studies, tracker = studies_of(options.root), chosen("--tracker", options.tracker) if options.tracker else None
    summary = mirror(options.root / "runs", uri, options.follow, page=page, studies=studies, tracker=tracker)
    registered = None
    if options.register:
        from realm_lab.tracking.mlflow_tracker import register

        registered = register(studies, options.register, uri or "", options.by)
    if options.json:
        print_json({**vars(summary), "registered": registered and str(registered)})
        return 1 if summary.problems else 0
    print(summary)
    if registered:
        print(registered)
    address = options.address or (summary.uri if is_server(summary.uri) else "")
    if summary.links and not address:
        address = "http://127.0.0.1:5000"
        print(f"to open the links: make ui, or mlflow ui --backend-store-uri {summary.uri}")
    for study, path in summary.links.items():
        print(f"  {study}: {address.rstrip('/')}{path}")
    return 1 if summary.problems else 0


def add_index(add: Add) -> None:
    """Add `index` with its subcommands to the command line."""
    index = add("index", _run_index, "embed the knowledge corpus into the store; list it")
    verbs = index.add_subparsers(dest="index_verb", metavar="COMMAND", required=True)

    def add_verb(name: str, summary: str) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:], allow_abbrev=False)
        add_run(verb)
        add_json(verb)
        add_everywhere(verb)
        return verb

    build = add_verb("build", "embed the knowledge corpus with a finished stage's embedder; resumes")
    build.add_argument(
        "--stage", metavar="NAME", help="stage that trained the embedder (default: the last before fine-tuning)"
    )
    add_verb("list", "show what is embedded: corpus, embedder, size; a folder may be deleted, it is built again")


def _run_index(options: argparse.Namespace) -> None:
    params = params_of(options)
    from realm_lab.systems import index
    from realm_lab.systems.context import embedding_store

    if options.index_verb == "list":
        if options.json:
            print_json([index.fields_of(entry) for entry in embedding_store(options.root).published()])
        else:
            index.show(options.root)
    else:
        from realm_lab.systems.context import open_run

        found = index.build(open_run(params, options.root, options.seed, options.system), options.stage)
        if options.json:
            print_json(index.fields_of(found))
        else:
            print(index.in_words(found))


def add_mine(add: Add) -> None:
    """Add `mine` to the command line."""
    mine = add("mine", _run_mine, "write questions with hard negatives, as a training file of DPR")
    mine.add_argument("out", type=Path, metavar="FILE", help="JSON file to write; it is a format of corpus.files too")
    text = "passages of BM25, or of the finished run (default: bm25)"
    mine.add_argument("--retriever", choices=["bm25", "run"], default="bm25", help=text)
    text = "questions to write (default: train)"
    mine.add_argument("--split", choices=["train", "dev", "test"], default="train", help=text)
    text = "hard negatives of a question, at most (default: 30)"
    mine.add_argument("--negatives", type=positive, default=30, metavar="N", help=text)
    add_run(mine)
    add_json(mine, "print the counts as JSON")


def _run_mine(options: argparse.Namespace) -> None:
    params = params_of(options)
    from realm_lab.records.files import check_output
    from realm_lab.systems.context import open_run
    from realm_lab.systems.mine import mine

    named = params.corpus.files.model_dump().values()
    inputs = [Path(name) for names in named if isinstance(names, list) for name in names]
    check_output(options.out, [options.params or options.root / "params.yaml", *inputs])
    run = open_run(params, options.root, options.seed, options.system)
    written, left_out = mine(run, options.out, options.split, options.retriever, options.negatives)
    if options.json:
        print_json({"file": options.out, "questions": written, "without_positive": left_out})
    else:
        print(f"{options.out}: {written:,} questions; {left_out:,} without a passage that answers them were left out")


def add_tools(add: Add) -> None:
    """Add `plan`, `bench` and `doctor` to the command line."""
    plan = add("plan", _run_plan, "estimate the time and cost of a run, refresh time, staleness and memory at any size")
    add_parameters(plan)
    text = "size of the corpus (default: the prepared corpus's)"
    plan.add_argument("--passages", type=positive, metavar="N", help=text)
    text = (
        "a known GPU, for example H100 (default: this machine as measured by `realm-lab bench`, ROOT/runs/bench.json)"
    )
    plan.add_argument("--device", metavar="NAME", help=text)
    text = "number of devices used for training and search (default: 1)"
    plan.add_argument("--trainers", type=positive, default=1, metavar="N", help=text)
    text = "number of devices that embed the corpus for a refresh (default: 1)"
    plan.add_argument("--builders", type=positive, default=1, metavar="N", help=text)
    plan.add_argument("--price", type=float, metavar="AMOUNT", help="price per device-hour")
    text = "share of its peak FLOP/s that a known GPU is taken to reach (default: 0.35, an assumption)"
    plan.add_argument("--efficiency", type=share, default=0.35, metavar="SHARE", help=text)
    add_json(plan)
    bench = add("bench", _run_bench, "measure this machine with the configured model, for `realm-lab plan`")
    add_parameters(bench)
    add_json(bench)
    doctor = add("doctor", _run_doctor, "check this machine and the configured inputs, and suggest fixes")
    add_parameters(doctor)
    text = "try the GPU (training, resume, search) and print a report for an issue"
    only = doctor.add_mutually_exclusive_group()
    only.add_argument("study", nargs="?", help="also check the parameters and files of a study, experiments/NAME.yaml")
    only.add_argument("--gpu", action="store_true", help=text)
    text = "read all finished files of runs/ and models/, and name each that is damaged and those without a digest"
    only.add_argument("--verify", action="store_true", help=text)
    text = "measure whether pre-training can learn on the corpus, before any (the warm start must have finished)"
    only.add_argument("--corpus", action="store_true", help=text)
    add_json(doctor)


def _run_plan(options: argparse.Namespace) -> None:
    params = params_of(options)
    from realm_lab.planner import plan

    request = plan.Request(**{name: getattr(options, name) for name in plan.Request._fields})
    made = plan.make_plan(params, options.root, request)
    if options.json:
        print_json(made)
    else:
        plan.show_plan(made)


def _run_bench(options: argparse.Namespace) -> None:
    params = params_of(options)
    from realm_lab.planner import bench

    path = bench.default_path(options.root)
    found = bench.measure(params, options.root)
    bench.write_calibration(path, found)
    if options.json:
        print_json(json.loads(path.read_text(encoding="utf-8")))
    else:
        bench.show_calibration(found, path)


def _gpu_findings(options: argparse.Namespace) -> Iterator[Finding]:
    params = params_of(options)
    from realm_lab.cli.doctor import Finding, State
    from realm_lab.runner.gpu_check import checks, gpu_device

    states: dict[bool | None, State] = {True: "OK", None: "note", False: "wrong"}
    for check in checks(params, gpu_device(params)):
        yield Finding(states[check.right], check.subject, f"{check.found} ({check.seconds:.1f} s)")


def _corpus_findings(options: argparse.Namespace) -> list[Finding]:
    params = params_of(options)
    from realm_lab.cli.doctor import with_gate
    from realm_lab.systems.context import open_run
    from realm_lab.systems.gate import gate

    return with_gate(gate(open_run(params, options.root, None, "realm")))


def _machine_findings(options: argparse.Namespace) -> Iterator[Finding]:
    from realm_lab.cli.doctor import examine, examine_study

    study, params, fault = None, None, None
    if options.study:
        from realm_lab.runner.sweep import find_study

        study = find_study(options.study, options.root)
    try:
        params = params_of(options)
    except UserError as error:
        fault = error
    yield from examine(params, options.root, fault)
    if study:
        yield from examine_study(study, options.root, options.params, overrides_of(options))


def _run_doctor(options: argparse.Namespace) -> int:
    """Print each finding as soon as it is known; 1 if something is missing or wrong."""
    from realm_lab.cli.doctor import show, verify

    if options.verify:
        findings: Iterable[Finding] = verify(options.root)
    else:
        look = _gpu_findings if options.gpu else _corpus_findings if options.corpus else _machine_findings
        findings = look(options)
    found = []
    for finding in findings:
        found.append(finding)
        if not options.json:
            show(finding)
    if options.json:
        print_json([finding._asdict() for finding in found])
    return int(any(finding.state in ("missing", "wrong") for finding in found))
