"""Preparing text files: is memory flat in the number of passages, and how fast is it, compared with the bare tokenizer?

    python -m benchmarks.prepare --output benchmarks/results/prepare.json     # 100,000 and 1,000,000 passages, 2 cores

Documents of four passages are generated as a stream and read from a file of JSON lines. Two ways of preparing them:
  untagged  the knowledge corpus of X != Z: read, split into sentences, pack, tokenise, hash, write, no tagger
  full      X = Z with the rule tagger: all of that, and salient spans and sentences
The bare tokenizer is `tokenizers`' `encode_batch` of the passages' bodies, in memory before the clock starts, with as
many threads as there are workers, nothing kept. It is measured before and after each way, in the same minutes.
Preparing is timed whole: starting processes, reading, writing, renaming. Memory is counted if it is private and in use
(`Anonymous` of smaps_rollup): pages of mapped files, which the kernel can take back, do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.corpus.prepare import prepare
from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.corpus.vocabulary import load_tokenizer, save_tokenizer, train_wordpiece
from realm_lab.engine.params.parameters import Params
from realm_lab.records.files import write_json

WORDS, SENTENCES = 60_000, 40_000  # of the pool that text is drawn from
PASSAGES_A_DOCUMENT = 4
SENTENCES_A_DOCUMENT = 42  # fill four passages of 288 wordpieces
BARE_PASSAGES = 40_000
RATES = ("per_second", "per_processor_second")
POLL_SECONDS = 0.25
MEGABYTE = 1 << 20


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, nargs="+", default=[100_000, 1_000_000], help="sizes, untagged")
    parser.add_argument("--full-passages", type=int, default=20_000, help="size of the full way; 0: leave it out")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="a small vocabulary, to try the program out")
    parser.add_argument("--folder", help="where to put text and corpora (default: the system's temporary folder)")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(_job(json.loads(arguments.job))))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result = measure(Path(folder), arguments.passages, arguments.full_passages, arguments.workers, arguments.tiny)
    print("\n".join(report(result)))
    if arguments.output:
        write_json(arguments.output, result)


def measure(folder: Path, sizes: list[int], full: int, workers: int, tiny: bool = False) -> dict[str, Any]:
    """All sizes, each with the bare tokenizer before and after it."""
    sentences = pool(1000 if tiny else SENTENCES)
    save_tokenizer(train_wordpiece(sentences, 1000 if tiny else 30_522), folder / "tokenizer")
    ways = [("untagged", size) for size in sizes] + ([("full", full)] if full else [])
    text, common = folder / "text.jsonl", {"folder": str(folder), "workers": workers}
    write_text_file(text, sentences, min(BARE_PASSAGES, *sizes) // PASSAGES_A_DOCUMENT)
    run(common | {"task": "prepare", "way": "bodies"})  # the input of the bare tokenizer; also warms up
    rows = []
    for way, size in ways:
        write_text_file(text, sentences, size // PASSAGES_A_DOCUMENT)
        bare = [run(common | {"task": "bare"})]
        found = run(common | {"task": "prepare", "way": way})
        bare.append(run(common | {"task": "bare"}))
        ratios = {name: found[name] / statistics.mean(one[name] for one in bare) for name in RATES}
        rows.append({"way": way, **found, "bare": bare, "ratio": ratios})
    return {"workers": workers, "cores": os.cpu_count(), "rows": rows}


def pool(count: int) -> list[str]:
    """Sentences of words whose frequencies have a long tail; an eighth of them has letters beyond ASCII, as in
    Wikipedia."""
    rng = numpy_generator(0, "benchmark-prepare")
    letters = np.array(list("etaoinshrdlucmfwygpbvk"))
    words = ["".join(letters[rng.integers(len(letters), size=size)]) for size in rng.integers(2, 11, WORDS)]
    sentences = []
    for number in range(count):
        chosen = np.minimum(rng.zipf(1.15, rng.integers(8, 26)) - 1, WORDS - 1)
        parts = [words[place] for place in chosen]
        parts[0] = parts[0].capitalize()
        parts[len(parts) // 2] = f"{parts[len(parts) // 2].capitalize()} {1900 + number % 120}"
        if number % 8 == 0:
            parts[1] += "é"
        sentences.append(" ".join(parts) + ".")
    return sentences


def write_text_file(path: Path, sentences: list[str], documents: int) -> None:
    """Documents as a stream of JSON lines."""
    rng = numpy_generator(1, "benchmark-prepare")
    with open(path, "w", encoding="utf-8") as file:
        for number in range(documents):
            text = " ".join(sentences[place] for place in rng.integers(len(sentences), size=SENTENCES_A_DOCUMENT))
            record = {"id": str(number), "title": f"Article {number}", "text": text}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in a separate process; returns its result, with peaks of the memory of the process and its workers."""
    environment = os.environ | {"RAYON_NUM_THREADS": str(job["workers"]), "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, "-m", "benchmarks.prepare", "--job", json.dumps(job)]
    peaks = {"parent": 0, "worker": 0, "together": 0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        while process.poll() is None:
            own, children = anonymous_bytes(process.pid), [anonymous_bytes(pid) for pid in children_of(process.pid)]
            now = {"parent": own, "worker": max(children, default=0), "together": own + sum(children)}
            peaks = {name: max(peaks[name], value) for name, value in now.items()}
            time.sleep(POLL_SECONDS)
        assert process.stdout is not None
        written = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{job}: failed")
    found: dict[str, Any] = json.loads(written.splitlines()[-1])
    return found | {f"{name}_megabytes": round(value / MEGABYTE, 1) for name, value in peaks.items()}


def anonymous_bytes(pid: int) -> int:
    """Private memory in use; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (OSError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, and those below them."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _job(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path(job["folder"])
    if job["task"] == "bare":
        return _bare(folder)
    params = parameters(folder, job["way"])
    start, before = time.perf_counter(), _processor_seconds()
    manifest = prepare(params, folder / job["way"], 0, workers=job["workers"])
    return _rates(manifest.counts["passages"], time.perf_counter() - start, _processor_seconds() - before)


def _rates(passages: int, seconds: float, processor: float) -> dict[str, Any]:
    return {
        "passages": passages,
        "seconds": seconds,
        "per_second": passages / seconds,
        "per_processor_second": passages / processor,
    }


def _processor_seconds() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    spent = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def parameters(folder: Path, way: str) -> Params:
    """Parameters of a way. Except for `full`, X is one document, and the large file is only Z."""
    text, small = str(folder / "text.jsonl"), folder / "small.jsonl"
    with open(text, encoding="utf-8") as file:
        small.write_text(file.readline(), encoding="utf-8")
    corpus: dict[str, Any] = {"source": "files", "tagger": "rule", "files": {"knowledge": [text]}}
    if way != "full":
        corpus |= {"pretrain_corpus": "separate", "files": {"knowledge": [text], "pretrain": [str(small)]}}
    tokenizer, warm_start = {"checkpoint": str(folder / "tokenizer")}, {"embedder": {"initial_encoder": "scratch"}}
    return Params.model_validate({"corpus": corpus, "tokenizer": tokenizer, "warm_start": warm_start})


def _bare(folder: Path) -> dict[str, Any]:
    tokenizer = load_tokenizer(folder / "tokenizer")
    passages = PreparedCorpus(folder / "bodies").passages()
    bodies = [passages.text.row(row)["body"] for row in range(len(passages))]
    start, before = time.perf_counter(), _processor_seconds()
    for batch in _batches(bodies, 4096):
        tokenizer.encode_batch(batch, add_special_tokens=False)
    return _rates(len(bodies), time.perf_counter() - start, _processor_seconds() - before)


def _batches(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def report(result: dict[str, Any]) -> list[str]:
    """Lines of a Markdown table."""
    head = [
        "way",
        "passages",
        "passages/s",
        "of bare encode_batch",
        "in processor time",
        "parent MB",
        "a worker MB",
        "together MB",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in result["rows"]:
        memory = [f"{row[f'{name}_megabytes']:,.0f}" for name in ("parent", "worker", "together")]
        cells = [row["way"], f"{row['passages']:,}", f"{row['per_second']:,.0f}"]
        cells += [*(f"{row['ratio'][name]:.2f}" for name in RATES), *memory]
        lines.append("| " + " | ".join(cells) + " |")
    return [f"{result['workers']} workers, {result['cores']} cores", "", *lines]


if __name__ == "__main__":
    main()
