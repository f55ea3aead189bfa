"""`SentenceTransformer.encode` as a server: a line for each JSON request and answer. Imports nothing of realm_lab.

{"setup": {"checkpoint": FOLDER, "texts": FILE.json, "max_length": N, "device": NAME, "threads": N}}
    -> {"versions": {...}}
{"encode": {"precision": "float32" | "bfloat16", "batch_size": N}} -> {"seconds": S, "passages": N}
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer


class Encoder:
    """The model in each precision that is asked for, and the texts."""

    def __init__(self, checkpoint: str, texts: str, max_length: int, device: str, threads: int):
        torch.set_num_threads(threads)
        self.texts: list[str] = json.loads(Path(texts).read_text())
        self.checkpoint, self.max_length, self.device = checkpoint, max_length, device
        self.models: dict[str, SentenceTransformer] = {}

    def encode(self, precision: str, batch_size: int) -> dict[str, float]:
        """Seconds for all texts, tokenising included, as `encode` does. A model is warmed up before its first use."""
        if precision not in self.models:
            chosen = {"dtype": getattr(torch, precision)}
            model = SentenceTransformer(self.checkpoint, device=self.device, model_kwargs=chosen)
            model.max_seq_length = self.max_length
            model.encode(self.texts[:32])
            self.models[precision] = model
        started = time.perf_counter()
        found = self.models[precision].encode(self.texts, batch_size=batch_size, convert_to_tensor=True).cpu()
        return {"seconds": time.perf_counter() - started, "passages": len(found)}


def main() -> None:
    """Answer requests from standard input until it ends."""
    encoder: Encoder | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "setup" in request:
            encoder = Encoder(**request["setup"])
            versions = {"sentence_transformers": sentence_transformers.__version__}
            answer: dict[str, Any] = {"versions": versions | {"transformers": transformers.__version__}}
        else:
            assert encoder is not None
            answer = encoder.encode(**request["encode"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
