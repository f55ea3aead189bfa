"""Cut runs of neighbouring articles in several processes. Rows and order do not depend on the number of processes.

Each cut is kept on disk until the corpus is written, so that a stopped preparation resumes from there. A file has the
cut of one run as Arrow streams. The metadata of the first stream has the counts of dropped records by reason.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pyarrow as pa

from realm_lab.engine.corpus.cutting import PARTS, Article, Cut, Cutter, Kind
from realm_lab.engine.corpus.pictures import PATCH_VALUES
from realm_lab.errors import UserError
from realm_lab.records.files import atomic_write

RUN_CHARACTERS = 400_000  # of text that a process is given at once
PICTURE_CHARACTERS = 8000  # that one picture counts as, since the pixels of a run are held in memory
AHEAD = 2  # runs that wait beyond those that are being cut
DROPPED, PATCHES = b"dropped", "patches"  # names in the file of a cut


def cut_all(
    make_cutter: Callable[[], Cutter], articles: Iterable[Article], kind: Kind, workers: int, kept: Path
) -> Iterator[Cut]:
    """Yield the cut articles in their order, with a cutter for each worker (`make_cutter` is pickled). At most
    `workers` + AHEAD runs are in memory. Each cut is written into the folder `kept`, and read from there if it
    exists."""
    runs = runs_of(articles)
    begun = list(itertools.islice(runs, 2))
    runs = itertools.chain(begun, runs)
    if workers == 1 or len(begun) < 2:  # one run is cut sooner than a process has started
        cutter = make_cutter()
        yield from (cut_once(cutter, run, kind, kept / str(number)) for number, run in enumerate(runs))
        return
    del begun
    # The processes start empty ("spawn"): none inherits threads.
    context = multiprocessing.get_context("spawn")
    waiting: deque[Future[Cut] | Path] = deque()
    with ProcessPoolExecutor(workers, context, initializer=_start, initargs=(make_cutter,)) as executor:
        try:
            for number, run in enumerate(runs):
                path = kept / str(number)
                waiting.append(path if path.exists() else executor.submit(_cut, run, kind, path))
                if len(waiting) >= workers + AHEAD:
                    yield _made(waiting.popleft())
            while waiting:
                yield _made(waiting.popleft())
        except BrokenProcessPool:
            raise ProcessLost(
                f"one of the {workers} processes that prepare the corpus was killed, most likely because memory "
                "ran out; lower launch.threads and run again"
            ) from None
        finally:
            executor.shutdown(cancel_futures=True)


def cut_once(cutter: Cutter, run: list[Article], kind: Kind, path: Path) -> Cut:
    """Return the cut of some articles. It is read from `path` if that exists, else made and written there."""
    if path.exists():
        return read_cut(path)
    made = cutter.cut(run, kind)
    write_cut(path, made)
    return made


def _made(run: Future[Cut] | Path) -> Cut:
    return read_cut(run) if isinstance(run, Path) else run.result()


def runs_of(articles: Iterable[Article]) -> Iterator[list[Article]]:
    """Yield runs of neighbouring articles, each of about RUN_CHARACTERS."""
    run: list[Article] = []
    size = 0
    for article in articles:
        run.append(article)
        size += sum(len(document.text) if document.picture is None else PICTURE_CHARACTERS for document in article)
        if size >= RUN_CHARACTERS:
            yield run
            run, size = [], 0
    if run:
        yield run


class ProcessLost(UserError):
    """A cutting process was killed; earlier cuts are kept."""


class _Process:
    """State of a worker process."""

    cutter: Cutter


def _start(make_cutter: Callable[[], Cutter]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _Process.cutter = make_cutter()


def _end_with_parent() -> None:
    """End this worker when its parent is killed; otherwise it would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "the pool started us"
    parent.join()
    os._exit(1)


def _cut(run: list[Article], kind: Kind, path: Path) -> Cut:
    return cut_once(_Process.cutter, run, kind, path)


def write_cut(path: Path, cut: Cut) -> None:
    """Write a cut, atomically."""
    passages = cut.passages.replace_schema_metadata({DROPPED: json.dumps(cut.dropped)})
    batches = [passages, *(cut.sentences[part] for part in PARTS)]
    if cut.patches is not None:
        rows = pa.array([row.tobytes() for row in cut.patches], pa.binary(PATCH_VALUES))
        batches.append(pa.RecordBatch.from_arrays([rows], [PATCHES]))
    with atomic_write(path, "wb") as file:
        for batch in batches:
            with pa.ipc.new_stream(file, batch.schema) as stream:
                stream.write_batch(batch)


def read_cut(path: Path) -> Cut:
    """Read a file of `write_cut`."""
    batches = []
    with pa.OSFile(str(path)) as file:
        while file.tell() < file.size():
            [batch] = pa.ipc.open_stream(file)
            batches.append(batch)
    passages, *others = batches
    dropped = Counter[str](json.loads(passages.schema.metadata[DROPPED]))
    sentences = dict(zip(PARTS, others, strict=False))
    patches = None
    if len(others) > len(PARTS):
        rows = b"".join(others[-1][PATCHES].to_pylist())
        patches = np.frombuffer(rows, np.uint8).reshape(-1, PATCH_VALUES)
    return Cut(passages.replace_schema_metadata(None), sentences, dropped, patches)
