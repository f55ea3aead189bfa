"""The command line: one verb for each stage of the pipeline, and a few to look at what is there.

Everything heavy is imported inside a verb, so that help and error messages come at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from realm_lab import __version__
from realm_lab.cli.evaluate import add_evaluation, evaluate_other
from realm_lab.cli.studies import add_studies
from realm_lab.errors import UserError

if TYPE_CHECKING:
    from realm_lab.params.parameters import Params

PROGRAM = "realm-lab"
EXIT_UNEXPECTED = 1
EXIT_USER_ERROR = 2  # as argparse
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

STAGES = {
    "prepare": "read or make the corpus: passages, sentences with salient spans, questions",
    "warm-start": "train the reader (masked language model) and the embedder (inverse cloze task)",
    "pretrain": "pre-train retriever and reader through the marginal likelihood, refreshing the index",
    "finetune": "fine-tune on open-domain questions",
    "evaluate": "measure exact match, recall@k, retrieval utility, and what an edited corpus changes",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code. Argparse itself leaves with code 2 on a wrong command line."""
    options = build_parser().parse_args(arguments)
    try:
        code = options.run(options)
        sys.stdout.flush()  # a reader that went away is noticed here, not in the interpreter's last breath
    except UserError as error:
        return _fail(options, EXIT_USER_ERROR, f"error: {_one_line(error)}")
    except KeyboardInterrupt:
        return _fail(options, EXIT_INTERRUPTED, f"{options.verb} interrupted; run it again to go on")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        message = f"unexpected {type(error).__name__}: {_one_line(error)}; run again with --debug for the traceback"
        return _fail(options, EXIT_UNEXPECTED, message)
    return code or 0


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. The README's commands are checked against it."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="REALM pre-training as an experiment: every part can be ablated.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int | None], summary: str) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:], allow_abbrev=False)
        verb.set_defaults(run=run)
        # SUPPRESS: without it the verb's default would undo a --debug given before the verb.
        verb.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback")
        verb.add_argument("--root", type=Path, default=Path("."), metavar="DIR", help="project folder (default: .)")
        return verb

    for name, summary in STAGES.items():
        verb = add(name, _run_stage, summary)
        _add_parameters(verb)
        if name == "prepare":
            verb.set_defaults(run=_run_prepare)
            verb.add_argument(
                "--count",
                nargs="+",
                metavar="FILE",
                help="only read these files, folders or data sets (hf://owner/name) and print what is in them",
            )
            verb.add_argument("--json", action="store_true", help="with --count: print JSON")
        if name == "evaluate":
            verb.set_defaults(run=_run_evaluate)
            add_evaluation(verb)

    summary = "train a tagger of salient spans from CoNLL files (tagger.train) and measure it beside the rule tagger"
    _add_parameters(add("train-tagger", _run_train_tagger, summary))

    report = add("report", _run_report, "write the reports of the runs that are here, and reports/index.html of all")
    report.add_argument("study", nargs="?", help="only reports/STUDY, and the page of all (default: every study)")
    report.add_argument("--html", action="store_true", help="also reports/STUDY/report.html, one self-contained page")
    report.add_argument("--force", action="store_true", help="also replace a report that counts more complete runs")

    mirror = add("mirror", _run_mirror, "show the runs in MLflow; may be repeated at any time")
    _add_runs(mirror)
    mirror.add_argument("--params", type=Path, metavar="FILE", help="parameters (default: ROOT/params.yaml, if there)")
    mirror.add_argument(
        "--uri",
        metavar="URI",
        help="tracking store (default: MLFLOW_TRACKING_URI, else launch.tracking_uri, else mlflow.db beside the runs)",
    )
    mirror.add_argument("--follow", action="store_true", help="keep mirroring while runs are being made")

    ask = add("ask", _run_ask, "answer a question with the passages it was found in")
    ask.add_argument("question", help='for example "Who wrote Hamlet?"')
    ask.add_argument(
        "--retriever", choices=["run", "bm25"], default="run", help="who finds the passages (default: the run's own)"
    )
    fill = add("fill", _run_fill, "fill the [MASK] of a sentence with the passages that helped")
    fill.add_argument("sentence", help='for example "Hamlet was written by [MASK]."')
    for verb in (ask, fill):
        _add_parameters(verb)
        verb.add_argument("--seed", type=int, metavar="N", help="of the run to ask (default: the first of seeds)")
        verb.add_argument("--system", default="realm", help="of the run to ask: realm or warm_start (default: realm)")
        verb.add_argument("-k", type=_positive, default=5, metavar="N", help="passages to show (default: 5)")
        verb.add_argument("--json", action="store_true", help="print JSON instead of tables")

    _add_index(add("index", _run_index, "build, list, verify, roll back and search the index of the knowledge corpus"))

    add_studies(add)
    _add_planner(add)

    doctor = add("doctor", _run_doctor, "say what this machine can do, and how to get what is missing")
    _add_parameters(doctor)
    _add_runs(doctor)
    return parser


def _add_index(index: argparse.ArgumentParser) -> None:
    verbs = index.add_subparsers(dest="index_verb", metavar="VERB", required=True)

    def add(name: str, summary: str, stage: bool = False) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:], allow_abbrev=False)
        verb.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback")
        # SUPPRESS: `index --root DIR list` and `index list --root DIR` both work.
        verb.add_argument("--root", type=Path, default=argparse.SUPPRESS, metavar="DIR", help="project folder")
        _add_parameters(verb)
        verb.add_argument("--seed", type=int, metavar="N", help="of the run whose index is meant (default: the first)")
        verb.add_argument("--system", default="realm", help="of that run: realm or warm_start (default: realm)")
        if stage:
            verb.add_argument(
                "--stage",
                choices=["warm_start", "pretrain", "finetune"],
                help="whose embedder (default: the last stage before fine-tuning)",
            )
        return verb

    build = add("build", "embed the knowledge corpus with a finished stage's embedder; resumes where it stopped", True)
    build.add_argument(
        "--shard", type=_part, default=(0, 1), metavar="I/N", help="write part I of N, from 0: for job arrays"
    )
    build.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32", help="on disk")
    build.add_argument(
        "--backend",
        choices=["exact", "faiss_flat", "ivf_flat", "ivf_pq", "hnsw", "sq8"],
        default="exact",
        help="also build an approximate search index by FAISS, measured against exact search (default: exact, none)",
    )
    add("list", "show the generations: step, size, which is current, who uses it")
    verify = add("verify", "read every byte of a generation, or of all, and compare it with its manifest")
    verify.add_argument("name", nargs="?", metavar="NAME", help="as in index list (default: all)")
    add("rollback", "search an earlier generation from now on").add_argument("name", metavar="NAME")
    search = add("search", "show the passages nearest to a question or a masked sentence", True)
    search.add_argument("text", help='for example "Who wrote Hamlet?"')
    search.add_argument("--count", type=_positive, default=5, metavar="N", help="passages to show (default: 5)")
    search.add_argument("--approximate", action="store_true", help="search the generation's approximate index")
    search.add_argument("--generation", metavar="NAME", help="as in index list (default: the current one)")


def _add_planner(add: Callable[..., argparse.ArgumentParser]) -> None:
    plan = add("plan", _run_plan, "say how long a refresh takes, how stale the index is then, and what fits and costs")
    _add_parameters(plan)
    plan.add_argument("--passages", type=int, metavar="N", help="size of the corpus (default: the prepared corpus's)")
    plan.add_argument(
        "--device", metavar="NAME", help="of the table, e.g. H100 (default: this machine, as `realm-lab bench` saw it)"
    )
    plan.add_argument("--trainers", type=int, default=1, metavar="N", help="devices that train and search (default: 1)")
    plan.add_argument("--builders", type=int, default=1, metavar="N", help="devices that build indexes (default: 1)")
    plan.add_argument("--price", type=float, metavar="AMOUNT", help="of a device hour")
    plan.add_argument(
        "--efficiency", type=float, metavar="SHARE", help="of a table device's peak that is reached (default: 0.35)"
    )
    plan.add_argument("--dtype", default="float32", metavar="TYPE", help="of the index on disk (default: float32)")
    plan.add_argument(
        "--calibration", type=Path, metavar="FILE", help="what bench wrote (default: ROOT/runs/bench.json)"
    )
    plan.add_argument("--json", action="store_true", help="print JSON instead of tables")
    bench = add("bench", _run_bench, "measure this machine with the model of the parameters, for `realm-lab plan`")
    _add_parameters(bench)
    bench.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: ROOT/runs/bench.json)")


def _add_parameters(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--params", type=Path, metavar="FILE", help="parameters (default: ROOT/params.yaml)")
    verb.add_argument("--preset", metavar="NAME", help="use this preset instead of the one in the file")
    verb.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="change one parameter, e.g. pretrain.steps=100; may be repeated",
    )


def _add_runs(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--runs", type=Path, metavar="DIR", help="the records of the runs (default: ROOT/runs)")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def _part(text: str) -> tuple[int, int]:
    number, slash, size = text.partition("/")
    if not (slash and number.isdecimal() and size.isdecimal() and int(number) < int(size)):
        raise argparse.ArgumentTypeError(f"'{text}' is not a part such as 0/4, counted from 0")
    return int(number), int(size)


def _params(options: argparse.Namespace) -> Params:
    from realm_lab.params.load import load, parse_override

    overrides = dict(parse_override(text) for text in options.overrides)
    if options.preset is not None:
        overrides["preset"] = options.preset
    return load(options.params or options.root / "params.yaml", overrides)


def _run_stage(options: argparse.Namespace) -> None:
    params = _params(options)  # before the heavy import: a typing error is answered at once
    from realm_lab.runner import pipeline

    pipeline.run(options.verb.replace("-", "_"), params, options.root)


def _run_prepare(options: argparse.Namespace) -> int | None:
    if not options.count:
        _run_stage(options)
        return None
    from realm_lab.corpus.readers import count_input
    from realm_lab.corpus.text_files import DEFAULT_LIMITS, Limits

    limits = DEFAULT_LIMITS
    if options.params or options.preset or options.overrides:  # else the start need not wait for them
        files = _params(options).corpus.files
        limits = Limits(files.max_line_mb, files.max_expansion)
    counted, code = [], 0
    for name in options.count:
        try:
            counted.append(count_input(name, limits))
        except UserError as error:
            code = _fail(options, EXIT_USER_ERROR, f"error: {_one_line(error)}")
            continue
        if not options.json:
            print(*counted[-1].lines(), sep="\n", flush=True)
    if options.json:
        print(json.dumps([found._asdict() for found in counted], indent=2, ensure_ascii=False))
    return code


def _run_evaluate(options: argparse.Namespace) -> None:
    if not evaluate_other(options, _params):
        _run_stage(options)


def _run_train_tagger(options: argparse.Namespace) -> None:
    params = _params(options)
    from realm_lab.systems.train_tagger import train_tagger

    train_tagger(params, options.root)


def _run_report(options: argparse.Namespace) -> None:
    from realm_lab.reporting.report import report  # pandas and matplotlib take a second to import

    print(report(options.root, options.study, force=options.force, html=options.html))


def _run_mirror(options: argparse.Namespace) -> int:
    uri = options.uri or os.environ.get("MLFLOW_TRACKING_URI")
    parameters = options.params or options.root / "params.yaml"
    if not uri and (options.params or parameters.exists()):
        from realm_lab.params.load import load

        uri = load(parameters).launch.tracking_uri
    from realm_lab.tracking.mlflow_mirror import mirror

    summary = mirror(options.runs or options.root / "runs", uri, options.follow)
    print(summary)
    return 1 if summary.problems else 0


def _run_ask(options: argparse.Namespace) -> None:
    params = _params(options)
    from realm_lab.systems import ask

    seed = params.seeds[0] if options.seed is None else options.seed
    asked = {"k": options.k, "as_json": options.json, "retriever_name": options.retriever}
    ask.ask(options.question, params, options.root, seed, options.system, **asked)


def _run_fill(options: argparse.Namespace) -> None:
    params = _params(options)
    from realm_lab.systems import ask

    seed = params.seeds[0] if options.seed is None else options.seed
    ask.fill(options.sentence, params, options.root, seed, options.system, k=options.k, as_json=options.json)


def _run_index(options: argparse.Namespace) -> None:
    params = _params(options)
    from realm_lab.systems import index

    seed = params.seeds[0] if options.seed is None else options.seed
    context = index.open_context(params, options.root, seed, options.system)
    if options.index_verb == "build":
        index.build(context, options.stage, options.dtype, options.shard, options.backend)
    elif options.index_verb == "list":
        index.show(context)
    elif options.index_verb == "verify":
        index.verify(context, options.name)
    elif options.index_verb == "rollback":
        index.rollback(context, options.name)
    else:
        index.search(context, options.stage, options.text, options.count, options.generation, options.approximate)


def _run_plan(options: argparse.Namespace) -> None:
    params = _params(options)
    from realm_lab.planner import plan, show

    request = plan.Request(**{name: getattr(options, name) for name in plan.Request._fields})
    made = plan.make_plan(params, options.root, request)
    if options.json:
        print(json.dumps(plan.as_json(made), indent=2))
    else:
        show.show_plan(made)


def _run_bench(options: argparse.Namespace) -> None:
    params = _params(options)
    from realm_lab.planner import bench, calibration, show

    path = options.output or calibration.default_path(options.root)
    found = bench.measure(params, options.root, say=lambda what: print(f"measuring {what}", file=sys.stderr))
    calibration.write_calibration(path, found)
    show.show_calibration(found, path)


def _run_doctor(options: argparse.Namespace) -> None:
    from realm_lab.cli.doctor import examine, show

    try:
        params = _params(options)
    except UserError as error:
        show(examine(None, options.root, options.runs or options.root / "runs", _one_line(error)))
        return
    show(examine(params, options.root, options.runs or options.root / "runs"))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _fail(options: argparse.Namespace, code: int, message: str) -> int:
    if options.debug:
        traceback.print_exc()
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
