"""What `realm-lab plan` predicts for a refresh, against the refresh: three corpus sizes, and three model sizes.

Each model is measured by `realm-lab bench` on the smallest corpus; each build runs in a fresh process afterwards, or is
taken from --builds for the smallest model. Run from the repository: python -m benchmarks.planner --help
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.embedding_scale import MODEL, SIZES, fresh_build, parameters, world
from benchmarks.machine import description, table
from realm_lab.core.files import digest, read_json, write_json
from realm_lab.corpus.prepare import corpus_inputs
from realm_lab.corpus.store import PreparedCorpus
from realm_lab.errors import UserError
from realm_lab.planner.bench import Effort, measure
from realm_lab.planner.calibration import default_path, write_calibration
from realm_lab.planner.plan import Request, make_plan
from realm_lab.systems.identity import Plan, corpus_folder

WIDER = {
    "4 layers of 128": {"hidden_size": 128, "layers": 4, "heads": 4, "intermediate_size": 512, "projection_size": 128},
    "6 layers of 256": {"hidden_size": 256, "layers": 6, "heads": 4, "intermediate_size": 1024, "projection_size": 128},
}


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="passages (default: 1e4, 1e5, 1e6)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: all")
    parser.add_argument("--folder", type=Path, help="where the worlds are made, and found again (default: scratch)")
    parser.add_argument("--builds", type=Path, help="measured seconds: the JSON file of benchmarks.embedding_scale")
    parser.add_argument("--quick", action="store_true", help="measure a tenth as long, no wider model: for the tests")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args(argv)
    try:
        result = run(arguments)
    except UserError as error:
        print(f"benchmarks.planner: {error}", file=sys.stderr)
        return 2
    print(report(result))
    if arguments.output:
        write_json(arguments.output, result)
    return 0


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure, predict and build, one after the other."""
    effort = Effort(0.1, 1 << 10, 1 << 17) if arguments.quick else Effort()
    smallest = min(arguments.sizes)
    cases = [("2 layers of 64", MODEL, sorted(arguments.sizes))]
    cases += [] if arguments.quick else [(name, model, [smallest]) for name, model in WIDER.items()]
    known = read_json(arguments.builds)["sizes"] if arguments.builds else {}
    found, calibrations = [], {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = arguments.folder or scratch / "worlds"
        corpora = {size: world(size, folder) for size in arguments.sizes}
        for name, model, sizes in cases:
            root = scratch / name
            calibration = measure(_prepared(smallest, model, corpora, root, arguments.threads), root, effort)
            write_calibration(default_path(root), calibration)
            calibrations[name] = asdict(calibration)
            for size in sizes:
                params = _prepared(size, model, corpora, root, arguments.threads)
                plan = make_plan(params, root, Request())
                assert plan.passages == size, "planned for another corpus"
                built = known.get(str(size)) if model is MODEL else None
                built = built or fresh_build(corpora[size], model, arguments.threads)
                found.append(
                    {
                        "model": name,
                        "passages": size,
                        "predicted_seconds": plan.seconds.build,
                        "measured_seconds": built["seconds"],
                        "predicted_over_measured": plan.seconds.build / built["seconds"],
                        "step_seconds": plan.seconds.step,
                        "asynchronous_age_mean_steps": plan.asynchronous.age_mean,
                        "synchronous_share_of_time": plan.synchronous.share_of_time,
                    }
                )
    return {"machine": description(arguments.threads), "cases": found, "calibrations": calibrations}


def _prepared(size: int, model: dict[str, int], corpora: dict[int, Path], root: Path, threads: int) -> Any:
    """Parameters of a case, whose prepared corpus stands where a plan looks for it."""
    params = parameters(size, model, threads)
    corpus = PreparedCorpus(corpora[size])
    place = corpus_folder(root, Plan("realm", params.seeds[0], digest(corpus_inputs(params, params.seeds[0])), {}))
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            place.symlink_to(corpus.folder.resolve(), target_is_directory=True)
        except OSError:
            shutil.copytree(corpus.folder, place)
    return params


def report(result: dict[str, Any]) -> str:
    """The table."""
    columns = {
        "predicted, s": "predicted_seconds",
        "measured, s": "measured_seconds",
        "ratio": "predicted_over_measured",
        "a step, s": "step_seconds",
        "mean age, steps": "asynchronous_age_mean_steps",
    }
    rows = [
        [case["model"], f"{case['passages']:,}", *(case[key] for key in columns.values())] for case in result["cases"]
    ]
    return "\n\n".join([f"{result['machine']}", table(["model", "passages", *columns], rows)])


if __name__ == "__main__":
    sys.exit(main())
