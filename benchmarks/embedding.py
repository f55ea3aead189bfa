"""Passages per second of building the index, against a plain padded loop and sentence-transformers' `encode`.

All run the same weights over the same passages. Run from the repository: python -m benchmarks.embedding --help
"""

# Shapes: B passages, L positions, D hidden size

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertModel

from benchmarks.machine import competing, description, measured, peak_gibibytes, peaks, report, summary
from benchmarks.peer import Peer
from benchmarks.profile_groups import grouped_profile
from benchmarks.real_text import Text, add_arguments, models, parameters, read_text
from benchmarks.work import encoder_flops
from realm_lab.engine.core.device import seconds_of
from realm_lab.engine.core.process import pick_device
from realm_lab.engine.corpus.vocabulary import load_tokenizer, save_tokenizer
from realm_lab.engine.models.folders import bert_config, to_bert
from realm_lab.engine.models.inputs import join
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.errors import UserError
from realm_lab.records.files import write_json

OURS = {"realm_lab bfloat16": "bfloat16", "realm_lab float32": "float32"}
PLAIN = "plain padded loop, float32"
PADDED = "transformers, bfloat16, batch 128"  # each batch padded to its longest
THEIRS = {
    "sentence-transformers, bfloat16": ("bfloat16", 32),  # 32 is the default of encode
    "sentence-transformers, bfloat16, batch 128": ("bfloat16", 128),
    "sentence-transformers, float32": ("float32", 32),
}
PLAIN_BATCH, PADDED_BATCH = 32, 128
TARGETS = {PLAIN: 6.0, "sentence-transformers, bfloat16": 1.6}


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedding", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--st-python", help="Python of an environment with sentence-transformers")
    parser.add_argument("--repetitions", type=int, default=3, help="timed runs of each path (default: 3)")
    parser.add_argument("--token-budget", type=int, default=1536, help="launch.token_budget (default: 1536)")
    arguments = parser.parse_args(argv)
    try:
        result = run(arguments)
    except UserError as error:
        print(f"benchmarks.embedding: {error}", file=sys.stderr)
        return 2
    print(_report(result))
    if arguments.output:
        write_json(arguments.output, result)
    return 0


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all paths over the same passages, one after the other in every repetition."""
    torch.set_num_threads(arguments.threads)
    device = pick_device(arguments.device)
    # with search_query fresh, a build of the index keeps no copy of the query tower
    launch = {"launch": {"token_budget": arguments.token_budget}, "pretrain": {"search_query": "fresh"}}
    ours = {name: precision for name, precision in OURS.items() if arguments.only in (None, precision)}
    theirs = {name: path for name, path in THEIRS.items() if arguments.st_python and arguments.only in (None, path[0])}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        settings = {name: parameters(arguments, precision, launch) for name, precision in ours.items()}
        text = read_text(next(iter(settings.values())), Path(scratch) / "corpus")
        retrievers = {name: models(params, text)[1] for name, params in settings.items()}
        first = next(iter(retrievers.values()))
        longest = next(iter(settings.values())).corpus.passage_length
        bert = _bert(first)
        work = {name: partial(one.refresh, 0) for name, one in retrievers.items()}
        if arguments.only != "bfloat16":
            work[PLAIN] = partial(padded_loop, bert, text, longest)
        if arguments.only != "float32":
            halved = copy.deepcopy(bert).bfloat16()
            work[PADDED] = partial(padded_loop, halved, text, longest, PADDED_BATCH, to_longest=True)
        paths = {name: lambda _, one=one: seconds_of(one, device) for name, one in work.items()}
        versions: dict[str, str] = {}
        if theirs:
            texts = Path(scratch) / "texts.json"
            texts.write_text(json.dumps(_texts(text)))
            peer = stack.enter_context(Peer(arguments.st_python, "sentence_transformers_encode.py", arguments.threads))
            folder = Path(scratch) / "bert" if arguments.size or arguments.tiny else arguments.checkpoint
            if folder != arguments.checkpoint:
                bert.save_pretrained(folder)
                save_tokenizer(load_tokenizer(text.corpus.tokenizer_folder), folder)
            setup = {"checkpoint": str(folder), "texts": str(texts), "max_length": longest, "device": device.type}
            versions = peer.ask({"setup": setup | {"threads": arguments.threads}})["versions"]
            for name, (precision, size) in theirs.items():
                paths[name] = partial(_asked, peer, {"encode": {"precision": precision, "batch_size": size}})
        with competing(arguments.busy):
            # the first repetition warms up
            seconds = {name: taken[1:] for name, taken in measured(paths, 1 + arguments.repetitions).items()}
        lengths = [min(longest, len(text.passages.titles[i]) + len(body) + 3) for i, body in enumerate(_bodies(text))]
        flops = encoder_flops(first.embedder.document_encoder.shape, lengths, [1] * len(lengths))
        shares = grouped_profile(lambda: first.refresh(0), device)
        memory = peak_gibibytes(device)
        peak = peaks(arguments.tiny, arguments.only, device)
        agreement = _agreement(retrievers, bert, text, longest)
    precisions = (
        ours | {PLAIN: "float32", PADDED: "bfloat16"} | {name: precision for name, (precision, _) in theirs.items()}
    )
    found = {}
    for name, taken in seconds.items():
        found[name] = summary(taken, len(text.passages), seconds[next(iter(ours))])
        rate = 1e-9 * flops * found[name]["per_second"] / len(text.passages)
        found[name] |= {"useful_gflops_per_second": rate, "fraction_of_peak": rate / peak[precisions[name]]["best"]}
    return {
        "machine": description(arguments.threads, device) | {"peer": versions},
        "sizes": {
            "passages": len(text.passages),
            "passage_length": longest,
            "mean_length": float(np.mean(lengths)),
            "busy": arguments.busy,
        },
        "peak_gflops_per_second": peak,
        "paths": found,
        "ratios": {name: path["reference_is_faster_by"] for name, path in found.items()},
        "agreement": agreement,
        "peak_memory_gibibytes": memory,
        "profile": shares,
    }


def _bert(retriever: Retriever) -> BertModel:
    """transformers' BertModel with the weights of the document tower."""
    encoder = retriever.embedder.document_encoder
    model = BertModel(BertConfig.from_dict(bert_config(encoder.shape, "BertModel")), add_pooling_layer=False)
    model.load_state_dict(to_bert(encoder), strict=False)
    return model.eval().to(retriever.device)


@torch.no_grad()
def padded_loop(
    bert: BertModel, text: Text, longest: int, batch: int = PLAIN_BATCH, to_longest: bool = False
) -> Tensor:
    """Embed as a simple script would: passages in order, all padded to the limit, or to the longest of a batch."""
    parts = []
    for start in range(0, len(text.passages), batch):
        rows = range(start, min(start + batch, len(text.passages)))
        titles, bodies = [text.passages.titles[i] for i in rows], [text.passages.bodies[i] for i in rows]
        joined = join(titles, bodies, text.special, longest).to(bert.device)
        wider = 0 if to_longest else longest - joined.tokens_BL.shape[1]
        tokens_BL, types_BL, mask_BL = (functional.pad(part.long(), (0, wider)) for part in joined)
        states_BLD = bert(input_ids=tokens_BL, token_type_ids=types_BL, attention_mask=mask_BL).last_hidden_state
        parts.append(states_BLD[:, 0])
    return torch.cat(parts)


def _agreement(retrievers: dict[str, Retriever], bert: BertModel, text: Text, longest: int) -> dict[str, float]:
    """Largest difference of any vector from the plain loop's, relative to that vector's length."""
    projection = next(iter(retrievers.values())).embedder.document_projection
    with torch.no_grad():
        expected_ND = projection(padded_loop(bert, text, longest))
    found = {}
    for name, retriever in retrievers.items():
        assert retriever.index is not None
        difference_N = (retriever.index.embeddings_ND - expected_ND).norm(dim=1) / expected_ND.norm(dim=1)
        found[name] = float(difference_N.max())
    return found


def _bodies(text: Text) -> list[np.ndarray]:
    return [text.passages.bodies[i] for i in range(len(text.passages))]


def _texts(text: Text) -> list[str]:
    """Title and body as one string: about the wordpieces that the towers read."""
    titles, bodies = text.passages.text.column("title"), text.passages.text.column("body")
    return [f"{title} {body}" for title, body in zip(titles, bodies, strict=True)]


def _asked(peer: Peer, request: dict[str, Any], _: int) -> float:
    return float(peer.ask(request)["seconds"])


def _report(result: dict[str, Any]) -> str:
    lines = report(result, "passages")
    lines.append(f"largest relative difference from the plain loop: {result['agreement']}")
    for name, target in TARGETS.items():
        if name in result["ratios"]:
            lines.append(f"{result['ratios'][name]:.2f} times the speed of: {name} (target: {target:g})")
    return "\n\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
