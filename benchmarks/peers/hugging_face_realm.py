"""Pre-training steps with the REALM of transformers 4.40.2, as a server: a line for each JSON request and answer.

Runs in a separate environment that has torch, numpy and transformers==4.40.2 (REALM is deprecated after it),
so it imports nothing of realm_lab. Requests:
    {"setup": {"batches": FILE.npz, "config": {...}, "threads": N, "padding": {...}}} -> {"versions": {...}}
    {"step": {"number": N, "precision": "float32" | "bfloat16", "padding": "longest" | "maximum"}}
        -> {"seconds": S, "loss": NATS, "peak_rss_bytes": BYTES}
"""

# Shapes: B examples, K candidates, L positions

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import numpy as np
import torch
import transformers
from transformers import RealmConfig, RealmEmbedder, RealmKnowledgeAugEncoder, RealmScorer


class Steps:
    """RealmScorer with one shared RealmEmbedder, RealmKnowledgeAugEncoder, and one AdamW over both."""

    def __init__(self, batches: str, config: dict[str, Any], threads: int, padding: dict[str, int]):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        settings = RealmConfig(**config)
        shared = RealmEmbedder(settings)
        self.scorer = RealmScorer(settings, query_embedder=shared)
        self.scorer.embedder = shared
        self.reader = RealmKnowledgeAugEncoder(settings)
        self.scorer.train()
        self.reader.train()
        parameters = [*{id(p): p for m in (self.scorer, self.reader) for p in m.parameters()}.values()]
        self.optimiser = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
        self.arrays = dict(np.load(batches))
        self.maximum = padding

    def step(self, number: int, precision: str, padding: str) -> dict[str, float]:
        """One optimiser step on batch `number`. `padding`: to the "longest" sequence of the batch or the "maximum"."""
        query = self._inputs(number, "query", padding)
        documents = self._inputs(number, "document", padding)
        joint = self._inputs(number, "joint", padding)
        labels_BL = torch.from_numpy(self.arrays[f"{number}.labels"])
        wider = joint["input_ids"].shape[-1] - labels_BL.shape[-1]
        labels_BL = torch.nn.functional.pad(labels_BL, (0, wider), value=-100)
        started = time.perf_counter()
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            scores_BK = self.scorer(
                **query, **{f"candidate_{name}": value for name, value in documents.items()}
            ).relevance_score
            loss = self.reader(
                **joint, relevance_score=scores_BK.float(), labels=labels_BL, mlm_mask=labels_BL >= 0
            ).loss
        loss.backward()
        self.optimiser.step()
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"seconds": seconds, "loss": loss.item(), "peak_rss_bytes": peak}

    def _inputs(self, number: int, part: str, padding: str) -> dict[str, torch.Tensor]:
        """Tokens, segments and mask of a part of a batch, by the names of transformers."""
        names = {"input_ids": "tokens", "token_type_ids": "types", "attention_mask": "mask"}
        tensors = {ours: torch.from_numpy(self.arrays[f"{number}.{part}.{theirs}"]) for ours, theirs in names.items()}
        if padding == "maximum":
            wider = self.maximum[part] - tensors["input_ids"].shape[-1]
            tensors = {name: torch.nn.functional.pad(value, (0, wider)) for name, value in tensors.items()}
        return tensors


def main() -> None:
    """Answer requests from standard input until it ends."""
    steps: Steps | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "setup" in request:
            steps = Steps(**request["setup"])
            answer: dict[str, Any] = {
                "versions": {"torch": torch.__version__, "transformers": transformers.__version__}
            }
        else:
            assert steps is not None
            answer = steps.step(**request["step"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
