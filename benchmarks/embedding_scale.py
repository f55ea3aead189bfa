"""Seconds and peak memory of `realm-lab index build` on toy worlds of 10,000, 100,000 and 1,000,000 passages.

Each size runs in a fresh process, from the prepared corpus into the store on disk, with untrained weights.
All worlds have equally many passages per entity, so that lengths are alike. Run from the repository:
python -m benchmarks.embedding_scale --help
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from realm_lab.engine.core.process import limit_threads
from realm_lab.engine.corpus.prepare import prepare
from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.models.initial import new_embedder
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.embeddings import EmbeddingStore
from realm_lab.engine.retrieval.index import Inputs, embed_passages
from realm_lab.errors import UserError
from realm_lab.records.files import write_json

SIZES = (10_000, 100_000, 1_000_000)
PASSAGES_PER_ENTITY = 250  # 6 with a fact, the rest without: an entity costs 7 ms to make, a passage far less
MODEL = {"hidden_size": 64, "layers": 2, "heads": 4, "intermediate_size": 256, "projection_size": 64}  # preset toy
REPOSITORY = Path(__file__).resolve().parents[1]


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedding_scale", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="passages (default: 1e4, 1e5, 1e6)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: all")
    parser.add_argument("--folder", type=Path, help="where the worlds are made, and found again (default: scratch)")
    parser.add_argument("--prepare-only", action="store_true", help="make the worlds and stop")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        print(json.dumps(build_here(**json.loads(arguments.child))))
        return 0
    try:
        result = run(arguments)
    except UserError as error:
        print(f"benchmarks.embedding_scale: {error}", file=sys.stderr)
        return 2
    if not arguments.prepare_only:
        print(report(result))
        if arguments.output:
            write_json(arguments.output, result)
    return 0


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Prepare each world, then build each index."""
    from benchmarks.machine import description

    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        corpora = {size: world(size, folder) for size in arguments.sizes}
        if arguments.prepare_only:
            return {}
        found = {str(size): fresh_build(corpus, MODEL, arguments.threads) for size, corpus in corpora.items()}
    first = next(iter(found.values()))
    for build in found.values():
        build["time_per_passage_over_smallest"] = build["microseconds_per_passage"] / first["microseconds_per_passage"]
        build["peak_rss_over_smallest"] = build["peak_rss_mebibytes"] / first["peak_rss_mebibytes"]
    return {"machine": description(arguments.threads), "model": MODEL, "sizes": found}


def parameters(passages: int, model: dict[str, int], threads: int = 0) -> Params:
    """A toy world of this many passages and a model, in float32."""
    if passages % (4 * PASSAGES_PER_ENTITY) or passages < 40 * PASSAGES_PER_ENTITY:
        raise UserError(
            f"--sizes {passages}: give multiples of {4 * PASSAGES_PER_ENTITY}, {40 * PASSAGES_PER_ENTITY} or more"
        )
    toy = {
        "name": "toy",
        "entities": passages // PASSAGES_PER_ENTITY,
        "fillers_per_entity": PASSAGES_PER_ENTITY - 6,
        "articles": 1,
        "changed_fraction": 0.0,
    }
    corpus = {
        "source": toy,
        "tagger": "exact",
        "pretrain_corpus": "separate",
        "passage_length": 40,
        "sentence_length": 26,
    }
    return Params(
        corpus=corpus,
        model={**model, "dropout": 0.0},
        warm_start={"embedder": {"initial_encoder": "reader"}},
        pretrain={"candidates": 12, "batch_size": 24, "refresh": {"interval_steps": 10}},
        launch={"threads": threads},
    )


def world(passages: int, folder: Path) -> Path:
    """The prepared corpus of this many passages, made unless it exists."""
    target = folder / str(passages)
    if not (target / "manifest.json").exists():
        started = time.perf_counter()
        prepare(parameters(passages, MODEL), target, 0)
        print(f"{passages:,} passages prepared in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return target


def fresh_build(corpus: Path, model: dict[str, int], threads: int) -> dict[str, float]:
    """Call `build_here` in a separate process."""
    child = json.dumps({"corpus": str(corpus), "model": model, "threads": threads})
    command = [sys.executable, "-m", "benchmarks.embedding_scale", "--child", child]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines() or ["killed, perhaps for its memory"]
        raise UserError(f"the build of {corpus} failed: {reason[-1]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def build_here(corpus: str, model: dict[str, int], threads: int) -> dict[str, float]:
    """Embed the corpus into a store next to it, then remove the store. Returns seconds, and memory of this process.

    `anonymous` memory belongs to the process. `peak_rss` has the pages of mapped files too, which the system takes back
    when it needs them.
    """
    limit_threads(threads)
    from realm_lab.engine.corpus.vocabulary import load_tokenizer, special_ids

    prepared = PreparedCorpus(Path(corpus))
    passages = prepared.passages()
    embedder = new_embedder(parameters(len(passages), model), prepared.manifest.vocabulary_size, 0, None)
    special = special_ids(load_tokenizer(prepared.tokenizer_folder))
    anonymous = [_anonymous_mebibytes()]

    def watched(*given: Any, **named: Any) -> Any:
        anonymous.append(_anonymous_mebibytes())
        return embed_passages(*given, **named)

    patched = mock.patch("realm_lab.engine.retrieval.index.embed_passages", watched)
    with tempfile.TemporaryDirectory(dir=Path(corpus).parent) as folder, patched:
        started = time.perf_counter()
        found = EmbeddingStore(Path(folder)).embeddings(
            embedder, passages, Inputs(special, 40, 40, 8192, "float32"), prepared.manifest.digest
        )
        seconds = time.perf_counter() - started
        stored = (found.folder / "embeddings.bin").stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return {
        "passages": len(passages),
        "mean_body_wordpieces": float(passages.bodies.lengths.mean()),
        "seconds": seconds,
        "passages_per_second": len(passages) / seconds,
        "microseconds_per_passage": 1e6 * seconds / len(passages),
        "peak_rss_mebibytes": peak,
        "anonymous_at_start_mebibytes": anonymous[0],
        "peak_anonymous_mebibytes": max(anonymous),
        "stored_mebibytes": stored / 2**20,
    }


def _anonymous_mebibytes() -> float:
    """Present memory of this process without pages of files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 2**10
    return float("nan")


def report(result: dict[str, Any]) -> str:
    """The table."""
    from benchmarks.machine import table

    columns = {
        "passages/s": "passages_per_second",
        "seconds": "seconds",
        "time per passage, of the smallest": "time_per_passage_over_smallest",
        "peak RSS, MiB": "peak_rss_mebibytes",
        "of the smallest": "peak_rss_over_smallest",
        "anonymous peak, MiB": "peak_anonymous_mebibytes",
        "stored, MiB": "stored_mebibytes",
    }
    rows = [[f"{int(size):,}", *(build[key] for key in columns.values())] for size, build in result["sizes"].items()]
    return "\n\n".join([f"{result['machine']}", table(["passages", *columns], rows)])


if __name__ == "__main__":
    sys.exit(main())
