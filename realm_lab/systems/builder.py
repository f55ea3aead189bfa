"""The builder of the index as a process of its own, beside a trainer: `python -m realm_lab.systems.builder`.

The job is a line of JSON on standard input. It embeds what is asked for in `<index>/requests/`, the oldest first, into
the generations of `<index>`, and writes `<index>/builder/alive.json` when it gets on. It ends when it is told to, or
when its trainer is gone; killed in the middle, it goes on with the next missing shard.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from realm_lab.core.files import read_json, write_json
from realm_lab.core.process import exit_on_signals, stop_with_parent
from realm_lab.errors import UserError
from realm_lab.models.export import read_embedder
from realm_lab.params.parameters import Params
from realm_lab.retrieval.generation import SHARD_ROWS, GenerationStore, build_generation
from realm_lab.retrieval.shards import NO_SPACE
from realm_lab.systems.context import Context
from realm_lab.systems.identity import plan_run
from realm_lab.systems.stages import compile_encoders
from realm_lab.systems.supervisor import HEARTBEAT, NO_LOG, REQUESTS, request_name, unwritten

IDLE_SECONDS = 0.02  # between two looks for a request


class RequestedBuilds:
    """What a trainer asks for, and how it is built."""

    def __init__(self, context: Context, folder: Path):
        self._context, self._folder = context, folder
        self._store = GenerationStore(folder, context.corpus.manifest.digest)
        self._beats = 0

    def serve(self) -> None:
        """Build whatever is asked for, until the process is ended.

        Raises:
            UserError: another process builds here, or a generation cannot be built.
        """
        with self._store.lease() as lease:
            while True:
                lease.beat()
                step = self._next()
                if step is None:
                    time.sleep(IDLE_SECONDS)
                else:
                    self._build(step)

    def _next(self) -> int | None:
        """The oldest request whose generation is not there."""
        for path in sorted((self._folder / REQUESTS).glob("step-*")):
            try:
                request = read_json(path / "request.json")
            except UserError:
                continue  # no longer wanted
            if not (self._folder / request["generation"]).exists():
                return int(request["step"])
        return None

    def _build(self, step: int) -> None:
        folder = self._folder / REQUESTS / request_name(step)
        try:
            embedder, _ = read_embedder(folder)
        except UserError:
            if folder.exists():
                raise
            return  # no longer wanted
        context, corpus = self._context, self._context.params.corpus
        embedder.to(context.device)
        compile_encoders(context.params, embedder.document_encoder)
        build_generation(
            self._store,
            embedder,
            context.passages,
            context.special,
            step=step,
            passage_length=corpus.passage_length,
            token_budget=context.params.launch.token_budget,
            precision=context.params.model.precision,
            shard_rows=SHARD_ROWS,
            make_current=False,
            progress=lambda done, total: self._beat(step, done, total),
        )

    def _beat(self, step: int, done: int, total: int) -> None:
        """A sign of life."""
        self._beats += 1
        write_json(self._folder / HEARTBEAT, {"step": step, "done": done, "total": total, "beats": self._beats})


def serve(job: dict[str, Any]) -> None:
    """Do a job as the supervisor describes it."""
    params = Params(**job["params"])
    torch.set_num_threads(job["threads"])  # as the trainer's, so that the numbers are the same
    context = Context(params, plan_run(params, job["system"], job["seed"]), Path(job["root"]))
    RequestedBuilds(context, Path(job["folder"])).serve()


def main() -> int:
    """Read a job from standard input; a UserError, or what cannot be written, is one line and code 2."""
    job = json.loads(sys.stdin.readline())
    exit_on_signals()
    threading.Thread(target=stop_with_parent, args=(job["trainer"],), daemon=True).start()
    try:
        serve(job)
    except UserError as error:
        return _refuse(str(error))
    except OSError as error:
        if error.errno not in NO_SPACE:
            traceback.print_exc()
        return _refuse(unwritten(error, Path(job["folder"])))
    except (KeyboardInterrupt, SystemExit):
        return 0
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _refuse(line: str) -> int:
    try:
        print(line, file=sys.stderr)
    except OSError:  # the log is on the disk that is full, which the code says as well
        return NO_LOG
    return 2


if __name__ == "__main__":
    sys.exit(main())
