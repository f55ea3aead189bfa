"""Examples per second of a whole pre-training step: realm_lab against the REALM modules of transformers 4.40.2, and
against a plain step with the BERT of the transformers that is installed.

All get the same sentences, masks and candidates, train everything without dropout, and take one AdamW step. Run from
the repository: python -m benchmarks.pretraining_step --help
"""

# Shapes: B sentences, K candidates, M masked positions, L positions

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from benchmarks.machine import competing, description, measured, peak_gibibytes, peaks, report, summary
from benchmarks.peer import Peer
from benchmarks.plain_step import PlainStep
from benchmarks.profile_groups import grouped_profile, waits
from benchmarks.real_text import SEED, Text, add_arguments, models, parameters, read_text
from benchmarks.work import TRAINING, encoder_flops, word_flops
from realm_lab.engine.core.process import pick_device
from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.corpus.vocabulary import load_tokenizer, wordpieces_by_id
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import CandidateReader, Reading
from realm_lab.engine.models.encoder import Encoder, EncoderShape
from realm_lab.engine.models.inputs import join, pad_positions
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.training.pretrain import PretrainTask
from realm_lab.errors import UserError
from realm_lab.records.files import write_json

OURS = {"realm_lab bfloat16": "bfloat16", "realm_lab float32": "float32"}
# name -> precision, padding; the first is the fastest correct setting
THEIRS = {
    "transformers 4.40.2, autocast, longest": ("bfloat16", "longest"),
    "transformers 4.40.2, autocast, maximum": ("bfloat16", "maximum"),
    "transformers 4.40.2, float32, longest": ("float32", "longest"),
    "transformers 4.40.2, float32, maximum": ("float32", "maximum"),
}
PLAIN = "plain step with transformers, {}"
TARGET = 6.0


class Recorded(NamedTuple):
    """The batch that one step read."""

    queries: list[np.ndarray]
    at_BM: np.ndarray
    targets_BM: np.ndarray  # the id of [PAD] for positions without a mask
    rows_BK: np.ndarray


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    arguments = _arguments(argv)
    try:
        result = run(arguments)
    except UserError as error:
        print(f"benchmarks.pretraining_step: {error}", file=sys.stderr)
        return 2
    print(_report(result))
    if arguments.output:
        write_json(arguments.output, result)
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretraining_step", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--hf-python", help="Python of an environment with torch and transformers==4.40.2")
    parser.add_argument("--batch-size", type=int, default=8, help="sentences a step (default: 8)")
    parser.add_argument("--candidates", type=int, default=8, help="k, the null document included (default: 8)")
    parser.add_argument("--repetitions", type=int, default=3, help="timed steps of each path (default: 3)")
    parser.add_argument("--token-budget", type=int, default=1536, help="launch.token_budget (default: 1536)")
    parser.add_argument("--plain", action="store_true", help="measure the plain step with transformers too")
    parser.add_argument("--trace", type=Path, help="file for the profile of one step, for chrome://tracing (.json.gz)")
    parser.add_argument("--compile", action="store_true", help="compile the blocks with torch.compile")
    parser.add_argument(
        "--distinct", action="store_true", help="random candidates, so that sentences share no passage: the worst case"
    )
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all paths on the same batches, one after the other in every repetition."""
    torch.set_num_threads(arguments.threads)
    device = pick_device(arguments.device)
    chosen = settings_of(arguments)
    ours = {name: precision for name, precision in OURS.items() if arguments.only in (None, precision)}
    theirs = {name: path for name, path in THEIRS.items() if arguments.hf_python and arguments.only in (None, path[0])}
    with tempfile.TemporaryDirectory() as scratch:
        settings = {name: parameters(arguments, precision, chosen) for name, precision in ours.items()}
        text = read_text(next(iter(settings.values())), Path(scratch) / "corpus")
        tasks = {name: _task(params, text, arguments) for name, params in settings.items()}
        steps = range(1, arguments.repetitions + 1)
        batches = [_recorded(next(iter(tasks.values())), step) for step in steps]
        for task in list(tasks.values())[1:]:
            task.train_step(0)
        plain = {PLAIN.format(name): _plain(tasks[ours], name) for ours, name in ours.items() if arguments.plain}
        read = [_arrays(batch, text, settings[next(iter(settings))]) for batch in batches]
        for other in plain.values():
            other.step(read[0])
        answer: dict[str, Any] = {"versions": {}}
        memory: dict[str, float] = {}
        with _peer(arguments, next(iter(tasks.values())), text, batches, Path(scratch)) as peer:
            paths: dict[str, Callable[[int], float]] = {}
            for name, task in tasks.items():
                paths[name] = partial(_seconds_of, task.train_step, steps)
            for name, other in plain.items():
                paths[name] = partial(_seconds_of, other.step, read)
            if peer is not None:
                answer = peer[0].ask({"setup": peer[1]})
                for precision in {precision for precision, _ in theirs.values()}:
                    peer[0].ask({"step": {"number": 0, "precision": precision, "padding": "longest"}})  # warm
                paths |= {name: partial(_asked, peer[0], memory, name) for name in theirs}
            with competing(arguments.busy):
                # The slow settings padded to the maximum are not the ones to compare with, and are measured once.
                once = [name for name, (_, padding) in theirs.items() if padding == "maximum"]
                seconds = measured(paths, arguments.repetitions, once)
        shape = _reader(next(iter(tasks.values()))).encoder.shape
        work = [useful_flops(batch, shape, text, settings[next(iter(settings))]) for batch in batches]
        memory_used = peak_gibibytes(device)
        first = next(iter(tasks.values()))
        shares = grouped_profile(lambda: first.train_step(1), device, arguments.trace)
        waited = waits(lambda: first.train_step(1), device)
        peak = peaks(arguments.tiny, arguments.only, device)
    precisions = ours | {name: one.precision for name, one in plain.items()}
    precisions |= {name: precision for name, (precision, _) in theirs.items()}
    found = {}
    for name, taken in seconds.items():
        found[name] = summary(taken, arguments.batch_size, seconds[next(iter(ours))])
        rates = [1e-9 * flops / second for flops, second in zip(work, taken, strict=False)]
        found[name]["useful_gflops_per_second"] = statistics.median(rates)
        found[name]["fraction_of_peak"] = statistics.median(rates) / peak[precisions[name]]["best"]
    return {
        "machine": description(arguments.threads, device) | {"peer": answer["versions"]},
        "sizes": {
            "batch_size": arguments.batch_size,
            "candidates": arguments.candidates,
            "layers": shape.layers,
            "hidden_size": shape.hidden_size,
            "vocabulary_size": shape.vocabulary_size,
            "passages": len(text.passages),
            "distinct_documents": statistics.mean(len(np.unique(batch.rows_BK)) for batch in batches),
            "random_candidates": arguments.distinct,
            "compile": arguments.compile,
            "busy": arguments.busy,
        },
        "peak_gflops_per_second": peak,
        "paths": found,
        "ratios": {name: path["reference_is_faster_by"] for name, path in found.items()},
        "peer_peak_rss_bytes": memory,
        "peak_memory_gibibytes": memory_used,
        "waits_of_the_host": waited,
        "profile": shares,
    }


def _seconds_of(step: Callable[[Any], object], given: Sequence[Any], number: int) -> float:
    started = time.perf_counter()
    step(given[number])  # reads the loss, so that the device has finished
    return time.perf_counter() - started


def _asked(peer: Peer, memory: dict[str, float], name: str, number: int) -> float:
    """Seconds of the other library's step; its peak memory goes into `memory`."""
    precision, padding = THEIRS[name]
    answer = peer.ask({"step": {"number": number, "precision": precision, "padding": padding}})
    memory[name] = answer["peak_rss_bytes"]
    return float(answer["seconds"])


def settings_of(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Parameters of the step."""
    return {
        "pretrain": {
            "batch_size": arguments.batch_size,
            "candidates": arguments.candidates,
            "refresh": {"policy": "never"},
            "calibrate_null": False,
            "search_query": "stale",  # so that the candidates of a step stay the same while the weights move
        },
        "launch": {"token_budget": arguments.token_budget},
    }


def _task(params: Params, text: Text, arguments: argparse.Namespace) -> PretrainTask:
    reader, retriever = models(params, text)
    retriever.refresh(0)
    if arguments.distinct:
        generator = numpy_generator(SEED, "benchmark-candidates")
        found = retriever.find

        def find(*positional: Any, **named: Any) -> np.ndarray:
            rows_BK = found(*positional, **named)  # timed; only its null documents (-1) are used
            drawn_BK = generator.permutation(len(text.passages))[: rows_BK.size].reshape(rows_BK.shape)
            return np.where(rows_BK >= 0, drawn_BK, rows_BK)

        retriever.find = find  # type: ignore[method-assign]
    if arguments.compile:
        for encoder in (reader.encoder, retriever.embedder.query_encoder):
            assert isinstance(encoder, Encoder)
            for block in encoder.blocks:
                block.compile(dynamic=True)
    sentences = text.corpus.sentences()
    vocabulary = wordpieces_by_id(load_tokenizer(text.corpus.tokenizer_folder))
    return PretrainTask(params, SEED, retriever, reader, sentences, text.special, vocabulary, lambda retriever: {})


def _reader(task: PretrainTask) -> Reader:
    assert isinstance(task.reader, Reader)
    return task.reader


def _plain(task: PretrainTask, precision: str) -> PlainStep:
    """The plain step with the weights that realm_lab starts with."""
    return PlainStep(_reader(task), task.retriever.embedder, precision, task.retriever.device)


def _recorded(task: PretrainTask, step: int) -> Recorded:
    """Take a step, and return its batch."""
    seen: list[Recorded] = []
    read = CandidateReader.read

    def record(self: CandidateReader, sentences: Sequence[MaskedSentence], rows_BK: np.ndarray) -> Reading:
        at_BM, _ = pad_positions([sentence.positions for sentence in sentences])
        targets_BM, _ = pad_positions([sentence.targets for sentence in sentences])
        seen.append(Recorded([sentence.tokens for sentence in sentences], at_BM.numpy(), targets_BM.numpy(), rows_BK))
        return read(self, sentences, rows_BK)

    with mock.patch.object(CandidateReader, "read", record):
        task.train_step(step)
    return seen[0]


@contextmanager
def _peer(
    arguments: argparse.Namespace, task: PretrainTask, text: Text, batches: list[Recorded], folder: Path
) -> Iterator[tuple[Peer, dict[str, Any]] | None]:
    """The process with transformers 4.40.2 and its settings; None without --hf-python."""
    if not arguments.hf_python:
        yield None
        return
    arrays: dict[str, np.ndarray] = {}
    params = task._params
    for number, batch in enumerate(batches):
        arrays |= {f"{number}.{name}": value for name, value in _arrays(batch, text, params).items()}
    np.savez(folder / "batches.npz", **arrays)  # type: ignore[arg-type]
    shape = _reader(task).encoder.shape
    config = {
        "vocab_size": shape.vocabulary_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.positions,
        "retriever_proj_size": params.model.projection_size,
        "num_candidates": arguments.candidates,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    corpus = params.corpus
    joint = corpus.sentence_length + corpus.passage_length
    padding = {"query": corpus.sentence_length, "document": corpus.passage_length, "joint": joint}
    setup = {"batches": str(folder / "batches.npz"), "config": config, "padding": padding}
    with Peer(arguments.hf_python, "hugging_face_realm.py", arguments.threads) as peer:
        yield peer, setup | {"threads": arguments.threads}


def _arrays(batch: Recorded, text: Text, params: Params) -> dict[str, np.ndarray]:
    """The batch as the other library wants it, padded to its longest sequences."""
    sentences, candidates = batch.rows_BK.shape
    titles, bodies = _documents(batch, text)
    corpus = params.corpus
    joint = corpus.sentence_length + corpus.passage_length
    repeated = [query for query in batch.queries for _ in range(candidates)]
    parts = {
        "query": (join(batch.queries, None, text.special, corpus.sentence_length), (sentences,)),
        "document": (join(titles, bodies, text.special, corpus.passage_length), batch.rows_BK.shape),
        "joint": (join(repeated, bodies, text.special, joint), batch.rows_BK.shape),
    }
    arrays = {
        f"{name}.{field}": value.long().numpy().reshape(*leading, -1)
        for name, (joined, leading) in parts.items()
        for field, value in zip(("tokens", "types", "mask"), joined, strict=True)
    }
    labels_BL = np.full((sentences, arrays["joint.tokens"].shape[-1]), -100)
    for row in range(sentences):
        real_M = batch.targets_BM[row] != text.special.pad
        labels_BL[row, batch.at_BM[row][real_M] + 1] = batch.targets_BM[row][real_M]
    return arrays | {"labels": labels_BL}


def _documents(batch: Recorded, text: Text) -> tuple[list[np.ndarray], list[np.ndarray]]:
    empty = np.empty(0, np.int64)
    rows = batch.rows_BK.reshape(-1)
    passages = text.passages
    titles = [passages.titles[row] if row >= 0 else empty for row in rows]
    return titles, [passages.bodies[row] if row >= 0 else empty for row in rows]


def useful_flops(batch: Recorded, shape: EncoderShape, text: Text, params: Params) -> float:
    """Operations that a step needs: each distinct document once, no padding, the head only at masked positions."""
    corpus = params.corpus
    queries = [len(query) + 2 for query in batch.queries]
    titles, bodies = _documents(batch, text)
    _, first = np.unique(batch.rows_BK, return_index=True)
    documents = [min(corpus.passage_length, len(titles[i]) + len(bodies[i]) + 3) for i in first]
    longest = corpus.sentence_length + corpus.passage_length
    candidates = batch.rows_BK.shape[1]
    joint = [min(longest, len(batch.queries[i // candidates]) + len(body) + 3) for i, body in enumerate(bodies)]
    masks_B = (batch.targets_BM != text.special.pad).sum(1)
    masks = [int(masks_B[i // candidates]) for i in range(len(joint))]
    towers = encoder_flops(shape, queries + documents, [1] * (len(queries) + len(documents)))
    return TRAINING * (towers + encoder_flops(shape, joint, masks) + word_flops(shape, sum(masks)))


def _report(result: dict[str, Any]) -> str:
    lines = report(result, "examples")
    best = next((ratio for name, ratio in result["ratios"].items() if name in THEIRS), None)
    if best is not None:
        lines.append(f"{best:.2f} times their fastest correct setting (target: {TARGET:g})")
    lines += [f"the host waits at {place}: {count} times" for place, count in result["waits_of_the_host"].items()]
    return "\n\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
