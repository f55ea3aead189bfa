"""A process that runs stages in forked children, which kill themselves (SIGKILL) at a chosen point of their work.

`python dying.py`: a line of JSON in, an order: {"job": [stage, label, params, seed, root], "die": null or one of
    {"inside": name or "", "event": n}  at the n-th event inside the named function ("": anywhere),
    {"torn": "checkpoint" | "json" | "metrics", "write": n}  in the middle of the n-th write of that kind};
a line of JSON out: {"signal": number, "code": number, "where": text, "events": {name: count}}.

Everything heavy is imported before the fork, so that a try costs no start. An event is a call or a return of our
functions and of those that touch files. Clocks tick once a look, so that equal work has equal events.
"""

import builtins
import itertools
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, Self

import torch
from safetensors.torch import save

from realm_lab.engine.models import folders
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.stages import ending as train
from realm_lab.engine.training import loop
from realm_lab.lab import worker
from realm_lab.records import files, metric_log
from realm_lab.records import run as run_dir
from realm_lab.records.code import CodeReader, package_modules

FUNCTIONS = ("save_checkpoint", "atomic_directory", "atomic_write", "MetricLog.log", "embed_passages")
OURS, SYSTEM = ("realm_lab", "safetensors"), ("posix", "safetensors", "safetensors._safetensors_rust")


class Reaper:
    """A profiler that counts events, and kills at one of them."""

    def __init__(self, report: int, inside: str, event: int):
        self._report, self._inside, self._last = report, inside, event
        self._depth = dict.fromkeys(FUNCTIONS, 0)
        self.events = dict.fromkeys(("", *FUNCTIONS), 0)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """See sys.setprofile."""
        if event in ("call", "return"):
            name = frame.f_code.co_qualname
            if not frame.f_globals.get("__name__", "").startswith(OURS):
                return
            if name in self._depth and event == "call":
                self._depth[name] += 1
        elif getattr(argument, "__module__", None) in SYSTEM:
            name = argument.__name__
        else:
            return
        counted = ["", *(function for function, depth in self._depth.items() if depth)]
        for function in counted:
            self.events[function] += 1
        if self._inside in counted and self.events[self._inside] == self._last:
            die(self._report, f"{event} of {name} in {frame.f_code.co_filename.split('/')[-1]}:{frame.f_lineno}")
        if event == "return" and name in self._depth:
            self._depth[name] -= 1


class Torn:
    """A file that is half written when the process dies."""

    def __init__(self, file: Any, report: int, where: str):
        self._file, self._report, self._where = file, report, where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: Any) -> None:
        """Write half of the content, then die."""
        self._file.write(content[: len(content) // 2])
        self._file.flush()
        die(self._report, self._where)


def replace(module: ModuleType, name: str, value: Any) -> None:
    """Replace an object of a module; this process will not live long."""
    setattr(module, name, value)


def die(report: int, where: str) -> None:
    """Report `where`, and end as if the machine had been switched off."""
    os.write(report, json.dumps({"where": where}).encode())
    os.kill(os.getpid(), signal.SIGKILL)


def tear(report: int, kind: str, number: int) -> None:
    """Arrange for the process to die in the middle of a write."""
    counter = itertools.count(1)
    where = f"half of {kind} write {number}"

    def opened(path: Any, mode: str = "r", **options: Any) -> Any:
        file = builtins.open(path, mode, **options)
        return Torn(file, report, where) if mode != "rb" and mode != "r" and next(counter) == number else file

    def save_file(tensors: Any, path: str, metadata: Any = None) -> None:
        content = save(tensors, metadata)
        half = len(content) // 2 if next(counter) == number else len(content)
        Path(path).write_bytes(content[:half])
        if half < len(content):
            die(report, where)

    if kind == "checkpoint":
        replace(folders, "save_file", save_file)
    else:
        replace(files if kind == "json" else metric_log, "open", opened)


def child(order: dict[str, Any], report: int) -> int:
    """Do the job; returns the exit code."""
    replace(loop, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    replace(run_dir, "HEARTBEAT_INTERVAL_SECONDS", 0.0)
    replace(train, "shutil", SimpleNamespace(rmtree=lambda *arguments, **options: None))  # keep the last checkpoint
    rule = order["die"] or {"inside": "", "event": 0}
    stage, label, params, seed, root = order["job"]
    reaper = Reaper(report, rule.get("inside", ""), rule.get("event", 0))
    if "torn" in rule:
        tear(report, rule["torn"], rule["write"])
    chosen = Params(**params)
    if order.get("count") or "event" in rule:
        sys.setprofile(reaper)
    worker.run_stage(stage, label, chosen, seed, Path(root))
    sys.setprofile(None)
    os.write(report, json.dumps({"where": "", "events": reaper.events}).encode())
    return 0


def serve() -> None:
    """Serve one order after another."""
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # the first optimiser imports half of torch
    CodeReader().reached(package_modules())  # most events of a child would be in reading the code
    for line in sys.stdin:
        reading, writing = os.pipe()
        sys.stdout.flush()
        number = os.fork()
        if not number:
            try:
                code = child(json.loads(line), writing)
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stderr.flush()
            os._exit(code)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        _, status = os.waitpid(number, 0)
        answer = {"events": {}, "where": ""} | (json.loads(said) if said else {})
        answer |= {"signal": os.WTERMSIG(status), "code": os.WEXITSTATUS(status)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
