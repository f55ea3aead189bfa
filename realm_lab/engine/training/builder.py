"""A separate process, on this or another machine, that embeds the corpus while training continues (launch.builder).

It pays off if an index may be late (pretrain.refresh.delay_steps), and changes no number. The trainer writes weights to
`<run>/index/step-N/embedder` and a line with N to the process, which embeds and answers with N; the embeddings are then
in `<run>/index/step-N/embeddings.safetensors`. If the builder fails, the run ends, and resumes when it is run again. If
the trainer ends, the builder reads the end of its input and ends too.
"""

# Shapes: N passages, D embedding size

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from realm_lab.engine.core.process import limit_threads, on_first_rank, pick_device, ranks
from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.encoder import show
from realm_lab.engine.models.folders import EMBEDDER_JSON, read_embedder, read_tensors, write_embedder, write_tensors
from realm_lab.engine.params.parameters import Launch
from realm_lab.engine.retrieval.index import Inputs
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.errors import UserError
from realm_lab.records.files import wait_for_file
from realm_lab.records.launched import own_package

OF_JOB = re.compile(r"SLURM_(?!CONF$)")
COMMAND = (sys.executable, "-m", "realm_lab.engine.training.builder")


class ProcessBuilder:
    """The trainer's end of the builder process. The first rank owns the process, and all ranks read its results."""

    def __init__(self, folder: Path, launch: Launch, corpus: Path, inputs: Inputs):
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        if ranks().rank:
            return
        shutil.rmtree(folder, ignore_errors=True)  # files of a trainer that was killed; this one submits again
        places = {"corpus": str(corpus.resolve()), "folder": str(folder.resolve())}
        job: dict[str, Any] = {"inputs": inputs._asdict() | {"special": inputs.special._asdict()}, **places}
        job |= {"device": launch.device, "compile": launch.compile}
        job["threads"] = torch.get_num_threads()  # the trainer's number, so that the vectors are the same
        begin = [] if launch.builder == "process" else shlex.split(launch.builder)
        # With the variables of the trainer's job, srun would start a step of that job.
        own = {name: value for name, value in os.environ.items() if not (begin and OF_JOB.match(name))}
        command, pipe = (*begin, *COMMAND, json.dumps(job)), subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=own | own_package())
        except OSError as error:
            raise UserError(f"launch.builder: {command[0]}: {error.strerror}") from None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.terminate()  # srun ends the processes that it started
            self._process.communicate()

    def submit(self, step: int, embedder: Embedder) -> None:
        """Write the embedder's weights, and ask the process to embed the corpus with them."""
        if self._process is None:
            return
        write_embedder(embedder, _place(self._folder, step) / "embedder")
        assert self._process.stdin is not None
        try:
            print(step, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._failure() from None

    def wait(self, step: int) -> Tensor:
        """Return the embeddings of a submitted step, float32 [N, D]; those of older steps are deleted. UserError: the
        builder has failed."""
        on_first_rank(lambda: self._wait(step))
        found = read_tensors(wait_for_file(_place(self._folder, step) / "embeddings.safetensors"))["embeddings"]
        if self._process is not None:
            for older in self._folder.glob("step-*"):
                if older.name < _place(self._folder, step).name:
                    shutil.rmtree(older, ignore_errors=True)  # except files that are still being read
        return found

    def _wait(self, step: int) -> None:
        """Wait for the answer to a step; steps are answered in the order in which they were submitted."""
        assert self._process is not None
        assert self._process.stdout is not None
        answer = None
        while answer != step:
            line = self._process.stdout.readline()
            if not line:
                raise self._failure()
            answer = int(line)

    def _failure(self) -> UserError | SystemExit:
        """Return the reason why the process has ended. SIGTERM stops all processes of a job, so the run stops too."""
        assert self._process is not None
        code = self._process.wait()
        if code in (-signal.SIGTERM, 128 + signal.SIGTERM):
            return SystemExit(128 + signal.SIGTERM)
        return UserError(f"the builder of the index ended with code {code}, see above; run again")


def _place(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def serve(job: dict[str, Any]) -> None:
    """Run in the builder process: embed the corpus with the weights of each submitted step, until the input ends."""
    for name in (signal.SIGUSR1, signal.SIGUSR2):  # warnings; the trainer stops in time and ends this process
        signal.signal(name, signal.SIG_IGN)
    folder, given = Path(job["folder"]), job["inputs"]
    limit_threads(job["threads"])
    corpus = PreparedCorpus(Path(job["corpus"]))
    inputs, passages = Inputs(**given | {"special": SpecialIds(**given["special"])}), corpus.passages()
    for line in sys.stdin:
        place = _place(folder, int(line))
        embedder, _ = read_embedder(wait_for_file(place / "embedder" / EMBEDDER_JSON).parent)
        if corpus.pictures is not None:
            show(embedder, torch.from_numpy(corpus.pictures.patches))
        embedder.to(pick_device(job["device"]))
        if job["compile"]:
            embedder.document_encoder.compile(dynamic=True)
        embeddings_ND = Retriever(embedder, passages, inputs).embed_index()[:]
        write_tensors(place / "embeddings.safetensors", {"embeddings": embeddings_ND})
        print(int(line), flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
