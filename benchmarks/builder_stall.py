"""How long training stands still for its index, when a builder process has a core of its own.

REALM pre-training of a preset (the toy world's), refreshed in its own interval. Arms differ in who embeds, and in how
many steps later the index is searched. Run from the repository: python -m benchmarks.builder_stall --help
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import description, table
from realm_lab.core.files import write_json
from realm_lab.errors import UserError
from realm_lab.params.load import load
from realm_lab.runner.worker import run_stage
from realm_lab.systems.identity import open_stage, plan_run

TARGET_SHARE = 0.02
# Beside the refreshes nothing is to happen: weights that have learned next to nothing take as much time as others.
QUIET: dict[str, Any] = {
    "warm_start.reader.steps": 1,
    "warm_start.embedder.steps": 1,
    "pretrain.watch.interval_steps": 100_000,
    "evaluate.interval_steps": 100_000,
    "evaluate.cloze_sentences": 2,
    "evaluate.questions": 2,
    "launch.threads": 1,
    "launch.log_interval_steps": 1,
    "launch.checkpoint_interval_seconds": 100_000,
}
COLUMNS = {
    "seconds_per_step": "seconds a step",
    "refreshes": "refreshes",
    "stall_seconds_per_refresh": "stall, seconds a refresh",
    "stall_share": "stall, share of time",
    "refresh_share": "stall and handing over, share of time",
}


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.builder_stall", description=__doc__)
    parser.add_argument("--preset", default="toy", help="whose sizes and interval (default: toy)")
    parser.add_argument("--steps", type=int, default=150, help="of the arm held a whole interval (default: 150)")
    parser.add_argument("--other-steps", type=int, default=60, help="of every other arm (default: 60)")
    parser.add_argument("--delays", type=int, nargs="*", default=[2, 5], help="further delays, in steps (default: 2 5)")
    parser.add_argument("--tiny", action="store_true", help="the smallest world: proves only that the script works")
    parser.add_argument("--output", type=Path, help="JSON file of the result")
    arguments = parser.parse_args(argv)
    try:
        result = run(arguments)
    except UserError as error:
        print(f"benchmarks.builder_stall: {error}", file=sys.stderr)
        return 2
    print(_report(result))
    if arguments.output:
        write_json(arguments.output, result)
    return 0


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All arms, one after the other, from the same warm start."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        (root / "params.yaml").write_text(f"preset: {'smoke' if arguments.tiny else arguments.preset}\n")
        base = load(root / "params.yaml", QUIET)
        interval = base.pretrain.refresh.interval_steps
        for stage in ("prepare", "warm_start"):
            run_stage(stage, "realm", base, 0, root)
        arms = {
            "trainer itself": ("inline", 0, arguments.other_steps),
            "builder, waited for": ("process", 0, arguments.other_steps),
            **{f"builder, {d} steps later": ("process", d, arguments.other_steps) for d in arguments.delays},
            f"builder, {interval} steps later": ("process", interval, arguments.steps),
        }
        measured = {name: _measure(root, *arm) for name, arm in arms.items()}
    return {
        "machine": description(1) | {"cores": os.cpu_count()},
        "preset": base.preset,
        "interval_steps": interval,
        "target_share": TARGET_SHARE,
        "arms": measured,
    }


def _measure(root: Path, builder: str, delay_steps: int, steps: int) -> dict[str, float]:
    """Train, and read what the run logged; the start of the builder is in it."""
    changes = {"launch.builder": builder, "pretrain.refresh.delay_steps": delay_steps, "pretrain.steps": steps}
    params = load(root / "params.yaml", QUIET | changes)
    run_stage("pretrain", "realm", params, 0, root)
    stage = open_stage(root / "runs", plan_run(params, "realm", 0), "pretrain", params)
    logged = [row for row in stage.metrics.rows() if "step_seconds" in row]
    shutil.rmtree(stage.path)  # who embeds is no part of a run's identity
    seconds = sum(row["step_seconds"] for row in logged)
    last = logged[-1]
    return {
        "steps": steps,
        "seconds": seconds,
        "seconds_per_step": seconds / steps,
        "refreshes": last["refreshes"],
        "stall_seconds": last["trainer_stall_seconds"],
        "stall_seconds_per_refresh": last["trainer_stall_seconds"] / max(1.0, last["refreshes"]),
        "stall_share": last["trainer_stall_seconds"] / seconds,
        "refresh_share": last["refresh_share_of_time"],
    }


def _report(result: dict[str, Any]) -> str:
    rows = [[name, *(arm[key] for key in COLUMNS)] for name, arm in result["arms"].items()]
    return "\n".join(
        [
            f"{result['machine']}",
            f"preset {result['preset']}, a refresh every {result['interval_steps']} steps",
            table(["who embeds, and when the index is searched", *COLUMNS.values()], rows),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
