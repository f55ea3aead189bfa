"""Everything that is claimed for a GPU, tried and measured in 25 minutes of one H100, in the order of value.

    python -m benchmarks.gpu OUT                        # on a machine with a GPU; docs/gpu.md: what to carry there
    python -m benchmarks.gpu OUT --device cpu --tiny    # the whole list on next to nothing: only a test

Each item is a process with its time box, so that a failure stops nothing. OUT/gpu.json and the table OUT/gpu.md are
written after each item; profiles lie next to them, for chrome://tracing. Called again with the same OUT it resumes with
the items that are not done. With fewer --minutes, items whose box does not fit any more are left for another call.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from benchmarks.index_search import WIKIPEDIA_2018
from benchmarks.machine import table
from realm_lab.records.files import read_json, write_json, write_text

REPOSITORY = Path(__file__).resolve().parents[1]
MINUTES = 25.0
GPU_TESTS = ("tests/device/test_gpu.py", "tests/engine/retrieval/test_exact.py")
GOALS = {  # of one H100 or H200; benchmarks/README.md
    "embedding, base": ("share of the matrix peak", 0.50, "at least"),
    "step, base": ("share of the matrix peak", 0.40, "at least"),
    "search": ("share of the memory bandwidth, 16 queries", 0.60, "at least"),
    "refresh": ("stall, share of the time", 0.01, "at most"),
}
OURS = "realm_lab bfloat16"
SAID = 4000  # characters kept of the output of an item that failed
Result = dict[str, Any]
Figures = Iterator[tuple[str, float | str]]  # name and value of a measurement


class Item(NamedTuple):
    """One entry of the list. `words`: the words after `python -m`; {} stands for the file that the command writes."""

    name: str
    box_seconds: int
    words: list[str]
    figures: Callable[[Result], Figures]


def main(argv: list[str] | None = None) -> int:
    """Go through the list; returns 1 if an item failed, was cut or was not reached."""
    options = options_of(argv)
    deadline = time.monotonic() + 60 * options.minutes
    path = options.out / "gpu.json"
    before: dict[str, Any] = read_json(path) if path.exists() else {"items": {}}
    found: dict[str, Result] = before["items"]
    if found and (before["device"], before["tiny"]) != (options.device, options.tiny):
        words = f"--device {before['device']}{' --tiny' * before['tiny']}"
        raise SystemExit(f"benchmarks.gpu: {path}: measured with {words}; choose another OUT")
    items = the_list(options)
    for item in items:
        is_done = found.get(item.name, {}).get("state") == "done"
        if not is_done and item.box_seconds <= deadline - time.monotonic():
            print(f"{item.name} ...", flush=True)
            found[item.name] = tried(item)
            write_json(path, {"device": options.device, "tiny": options.tiny, "goals": GOALS, "items": found})
            write_text(options.out / "gpu.md", report(items, found, options.tiny))
    print("\n" + report(items, found, options.tiny))
    return int(any(found.get(item.name, {}).get("state") != "done" for item in items))


def options_of(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the table, JSON and profiles")
    parser.add_argument("--device", default="cuda", help="as launch.device (default: cuda)")
    parser.add_argument("--tiny", action="store_true", help="toy text and models: only a test")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for all items together (default: {MINUTES:g})")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: all")
    return parser.parse_args(argv)


def the_list(options: argparse.Namespace) -> list[Item]:
    """All items, the most valuable first."""
    common = ["--device", options.device, "--threads", str(options.threads), "--output", "{}"]
    common += ["--tiny"] if options.tiny else []
    budget = [] if options.tiny else ["--token-budget", "65536"]
    repeated = ["--repetitions", "1" if options.tiny else "10"]

    def step(size: str) -> list[str]:
        trace = ["--trace", str(options.out.resolve() / f"step-{size}.json.gz")]
        return [
            "pretraining_step",
            "--size",
            size,
            "--only",
            "bfloat16",
            "--plain",
            *repeated,
            *trace,
            *budget,
            *common,
        ]

    peers = ["--st-python", sys.executable] if importlib.util.find_spec("sentence_transformers") else []
    embedding = ["embedding", "--size", "base", *peers, "--repetitions", "1" if options.tiny else "3", *budget]
    search = ["index_search", "--rows", str(WIKIPEDIA_2018), "--approximate-rows", "0", "--checked", "1", *common]
    tests = ["pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *GPU_TESTS, "--junitxml={}"]
    ours = [
        Item("doctor", 180, ["gpu_checks", "doctor", *common], _doctor),
        Item("gpu tests", 300, tests, _tests),
        Item("step, base", 180, step("base"), _rates),
        Item("embedding, base", 210, [*embedding, *common], _rates),
        Item("search", 210, search, _search),
        Item("refresh", 180, ["gpu_checks", "refresh", "--size", "base", *budget, *common], _refresh),
        Item("step, minilm", 90, step("minilm"), _rates),
        Item("step, toy", 60, step("toy"), _rates),
        Item("two ranks", 60, ["gpu_checks", "ranks", *common], _ranks),
    ]
    if options.tiny:  # all sizes are the toy's
        ours = [item for item in ours if item.name not in ("step, minilm", "step, toy")]
    return [item if item.words is tests else _of_this_folder(item) for item in ours]


def _of_this_folder(item: Item) -> Item:
    return item._replace(words=[f"benchmarks.{item.words[0]}", *item.words[1:]])


def tried(item: Item) -> Result:
    """Run an item; returns state, seconds and result, and the end of its output if something went wrong."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        output, log = Path(scratch) / "result", Path(scratch) / "log"
        words = [word.replace("{}", str(output)) for word in item.words]
        with open(log, "w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *words], cwd=REPOSITORY, stdout=file, stderr=file, start_new_session=True
            )
            try:
                state = "failed" if process.wait(item.box_seconds) else "done"
            except subprocess.TimeoutExpired:
                state = "cut"
            if state == "cut":
                os.killpg(process.pid, signal.SIGKILL)  # with its builders, ranks and peers
                process.wait()
        said = log.read_text(errors="replace")[-SAID:]
        found = {"state": state, "seconds": time.monotonic() - started, "command": " ".join(item.words)}
        if not output.exists() or state == "cut":
            return found | {"said": said}
        result = _junit(output) if words[0] == "pytest" else read_json(output)
    found |= {"result": result, "figures": dict(item.figures(result))}
    return found if state == "done" else found | {"said": said}


def report(items: list[Item], found: dict[str, Result], tiny: bool) -> str:
    """The table: a line for each figure, with its goal if it has one (with --tiny, none has)."""
    rows: list[list[object]] = []
    for item in items:
        one = found.get(item.name, {"state": "not reached", "seconds": 0.0})
        figures: dict[str, float | str] = one.get("figures") or {" ".join(one.get("said", "").split())[-100:]: ""}
        for place, (name, value) in enumerate(figures.items()):
            head = [item.name, one["state"], f"{one['seconds']:.0f}"] if place == 0 else ["", "", ""]
            rows.append([*head, name, value, "" if tiny else against_goal(item.name, name, value)])
    measured = [one["result"]["machine"] for one in found.values() if "machine" in one.get("result", {})]
    machine: dict[str, str] = measured[0] if measured else {}
    lines = [f"{name}: {value}" for name, value in machine.items() if value]
    return ", ".join(lines) + "\n\n" + table(["item", "state", "s", "figure", "value", "goal"], rows) + "\n"


def against_goal(item: str, figure: str, value: float | str) -> str:
    """A note on whether a figure reaches its goal; empty without a goal."""
    name, goal, side = GOALS.get(item, ("", 0.0, ""))
    if name != figure or not isinstance(value, float):
        return ""
    reached = value >= goal if side == "at least" else value <= goal
    return f"{side} {goal:g}: {'reached' if reached else 'NOT reached'}"


def _doctor(result: Result) -> Figures:
    for check in result["checks"]:
        yield check["subject"], {True: "right", False: "WRONG", None: "note"}[check["right"]] + f": {check['found']}"


def _junit(path: Path) -> Result:
    """Counts of tests, and the first 500 characters of the message of each failed test."""
    suite = next(ElementTree.parse(path).iter("testsuite"))
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = {
        case.attrib["name"]: (problem.attrib.get("message") or "")[:500]
        for case in suite.iter("testcase")
        for problem in (*case.iter("failure"), *case.iter("error"))
    }
    return counts | {"failed": failed}


def _tests(result: Result) -> Figures:
    yield from ((name, str(result[name])) for name in ("tests", "failures", "errors", "skipped"))


def _rates(result: Result) -> Figures:
    ours = result["paths"][OURS]
    yield "examples/s", ours["per_second"]
    yield "share of the matrix peak", ours["fraction_of_peak"]
    yield "matrix peak measured, TFLOP/s", result["peak_gflops_per_second"]["bfloat16"]["best"] / 1e3
    for name, ratio in result["ratios"].items():
        if name != OURS:
            yield f"times as fast as {name}", ratio
    yield from ((f"time in {name}", share) for name, share in list(result["profile"].items())[:4])
    waits = result.get("waits_of_the_host", {})
    yield from ((f"the host waits at {place}", str(count)) for place, count in waits.items())
    yield from _memory(result)


def _search(result: Result) -> Figures:
    for batch, one in result["batches"].items():
        yield f"queries/s, {batch} at once", one["exact_queries_per_second"]
        yield f"share of the memory bandwidth, {batch} queries", one["fraction_of_bandwidth"]
        yield from ((f"{key.replace('_', ' ')}, {batch}", one[key]) for key in one if key.startswith("faster_than"))
        yield (
            f"the CPU's bits, {batch}",
            f"{one['of_these_identical_bit_for_bit']} of {one['checked_against_every_row']}",
        )
    yield "memory bandwidth measured, GB/s", result["read_once"]["copied_gigabytes_per_second"]
    yield from _memory(result)


def _refresh(result: Result) -> Figures:
    yield "stall, share of the time", result["stall"]["builder"]
    yield "the same without refreshes", result["stall"]["never"]
    seconds = result["step_seconds"]
    yield "step time with a builder, divided by that without", seconds["builder"] / seconds["never"]
    yield "refreshes", str(int(result["refreshes"]))
    yield from _memory(result)


def _ranks(result: Result) -> Figures:
    yield (
        result["backend"],
        "refused: " + result["error"] if "error" in result else "right" if result["right"] else "WRONG",
    )
    if "error" not in result:
        yield "GB/s", result["gigabytes_per_second"]


def _memory(result: Result) -> Figures:
    if result.get("peak_memory_gibibytes"):
        yield "peak memory, GiB", result["peak_memory_gibibytes"]


if __name__ == "__main__":
    sys.exit(main())
