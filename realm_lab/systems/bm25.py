"""BM25 over the knowledge corpus, the baseline of every retrieval table; computed once and then shared by all runs.

<store>/<key[:12]>/identity.json      the corpus, and how its texts became terms; written first
                   shard-00000.arrow  terms of SHARD_ROWS passages, each with its passages and counts
                   shard-00000.lock   held by the process that writes this shard; not empty once it is finished
                   manifest.json      written last: with it the index is published

A score needs the statistics of the whole corpus, which are summed when questions are asked: it is bit-identical to
the result of bm25s over all passages at once. No more than a shard's texts are in memory, and the files are
memory-mapped.
"""

# Shapes: N passages of a shard, Q questions, K passages that are found

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import bm25s
import numpy as np
import pyarrow as pa
import Stemmer
import torch

from realm_lab.core.digests import damage
from realm_lab.core.files import atomic_write, digest, read_json
from realm_lab.core.shards import REMEDY, in_shards, publish, write_once
from realm_lab.corpus.store import Passages
from realm_lab.errors import UserError
from realm_lab.systems.registry import Retrieved
from realm_lab.tracking.code_record import code_reader
from realm_lab.tracking.run_dir import KEY_LENGTH

K1, B = 0.9, 0.4  # Anserini's, as in the open-domain question-answering literature
SHARD_ROWS = 1 << 16
FORMAT = 1


class Analysis(NamedTuple):
    """Splits a text into terms."""

    words: str  # expression of a word
    stop_words: str | tuple[str, ...]  # a list known to bm25s, or the words
    stems: str  # algorithm of the Snowball library

    def tokens(self, texts: Sequence[str], return_ids: bool) -> Any:
        """Return the terms of each text: as numbers with their vocabulary, or as words."""
        stop = list(self.stop_words) if isinstance(self.stop_words, tuple) else self.stop_words
        how = {"stopwords": stop, "stemmer": Stemmer.Stemmer(self.stems), "token_pattern": self.words}
        return bm25s.tokenize(list(texts), **how, return_ids=return_ids, show_progress=False)


PLAIN = Analysis(r"(?u)\b\w\w+\b", "en", "english")  # words of two letters or more, Porter 2


def count_terms(texts: Sequence[str], analysis: Analysis) -> pa.RecordBatch:
    """Return the sorted terms of texts, each with the numbers of its texts and its counts. The first entry, None,
    stands for any term: its counts are the texts' lengths."""
    ids, vocabulary = analysis.tokens(texts, return_ids=True)
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    terms = sorted(vocabulary)
    place_of = np.zeros(len(terms), np.int64)  # of a term's number in the sorted ones, from 1
    place_of[[vocabulary[term] for term in terms]] = np.arange(1, len(terms) + 1)
    place_T = place_of[np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum())]
    pairs, counts = np.unique(place_T * len(ids) + np.repeat(np.arange(len(ids)), lengths), return_counts=True)
    starts = np.append(0, len(ids) + np.searchsorted(pairs, np.arange(1, len(terms) + 2) * len(ids)))
    rows = np.concatenate([np.arange(len(ids)), pairs % len(ids)])
    lists = [
        pa.ListArray.from_arrays(starts.astype(np.int32), values.astype(np.int32))
        for values in (rows, np.concatenate([lengths, counts]))
    ]
    return pa.record_batch([pa.array([None, *terms], pa.string()), *lists], ["term", "rows", "counts"])


class Shard:
    """The result of `count_terms` for some passages."""

    def __init__(self, batch: pa.RecordBatch):
        self._terms, rows = batch.column("term"), batch.column("rows")
        self._starts, self._rows = rows.offsets.to_numpy(), rows.values.to_numpy()
        self._counts = batch.column("counts").values.to_numpy()
        self.lengths = self._counts[: self._starts[1]]

    def find(self, term: str) -> slice:
        """Return the index of a term's entry."""
        places = range(len(self._terms))
        place = bisect.bisect_left(places, term, lo=1, key=lambda place: self._terms[place].as_py())
        has_term = place < len(self._terms) and self._terms[place].as_py() == term
        return slice(*self._starts[place : place + 2].tolist()) if has_term else slice(0, 0)

    def weights(self, found: slice, mean_length: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the passages with a term, and the term's weight in each, float64."""
        rows, counts = self._rows[found], self._counts[found]
        return rows, counts / (K1 * ((1 - B) + B * self.lengths[rows] / mean_length) + counts)


class Bm25:
    """An index of one or more shards."""

    def __init__(self, shards: Sequence[pa.RecordBatch], analysis: Analysis = PLAIN):
        self._shards, self._analysis = [Shard(batch) for batch in shards], analysis
        self._size = sum(len(shard.lengths) for shard in self._shards)
        self._words = sum(int(shard.lengths.sum(dtype=np.int64)) for shard in self._shards)

    @classmethod
    def of_texts(cls, texts: Sequence[str], analysis: Analysis = PLAIN) -> Bm25:
        """Build an index in memory."""
        return cls([count_terms(texts, analysis)], analysis)

    def search(self, questions: Sequence[str], depth: int) -> Retrieved:
        """Return the best `depth` texts of each question, among equal ones the first; row -1, score -inf beyond the
        corpus, and for texts without words (pictures have none)."""
        rows_QK = np.full((len(questions), depth), -1, np.int64)
        scores_QK = np.full((len(questions), depth), -np.inf, np.float32)
        asked = self._analysis.tokens(questions, return_ids=False) if self._words else []
        known = set(chain.from_iterable(asked))
        found = [{term: shard.find(term) for term in known} for shard in self._shards]
        holders = {term: sum(own[term].stop - own[term].start for own in found) for term in known}
        rarity = {
            term: np.float32(math.log(1 + (self._size - count + 0.5) / (count + 0.5)))  # Lucene's, as bm25s has it
            for term, count in holders.items()
        }
        first = 0
        for shard, own in zip(self._shards, found, strict=True):
            weights = {}
            for term, place in own.items():
                rows, weight = shard.weights(place, self._words / self._size)
                weights[term] = rows, (rarity[term] * weight).astype(np.float32)
            for number, terms in enumerate(asked):
                score_N = np.zeros(len(shard.lengths), np.float32)
                for term in terms:
                    np.add.at(score_N, *weights[term])
                better = np.flatnonzero(score_N > scores_QK[number, -1])
                scores = np.concatenate([scores_QK[number], score_N[better]])
                best = best_rows(scores, depth)
                rows_QK[number] = np.concatenate([rows_QK[number], first + better])[best]
                scores_QK[number] = scores[best]
            first += len(shard.lengths)
        return Retrieved(rows_QK, scores_QK)


def best_rows(score_N: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of the highest scores, the highest first; among equal scores the first row first, int64 [count].

    bm25s' `retrieve` chooses among equal scores by numpy's partition: differently on another processor, and slowly if
    many scores are equal, as for passages without any of the words.
    """
    least = torch.from_numpy(score_N).topk(count).values[-1].item()
    above, equal = np.flatnonzero(score_N > least), np.flatnonzero(score_N == least)
    rows = np.concatenate([above, equal[: count - len(above)]])
    return rows[np.lexsort((rows, -score_N[rows]))]


class Bm25Store:
    """Indexes by key in a folder, which need not exist yet."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def index(self, passages: Passages, corpus_digest: str) -> Bm25:
        """Return BM25 over the titles and bodies of passages: from the store, or computed now and published, each shard
        by one of the processes that ask for it. UserError: the folder holds something else, or is damaged.

        `corpus_digest` must be different for every list of passages.
        """
        described = {"corpus_digest": corpus_digest, "rows": len(passages), **PLAIN._asdict()}
        code = digest(code_reader(self.folder.parent).reached([__name__]))
        identity = described | {"bm25s": bm25s.__version__, "format": FORMAT, "code": code}
        key = digest(identity)
        folder = self.folder / key[:KEY_LENGTH]
        write_once(folder / "identity.json", identity)
        if read_json(folder / "identity.json") != identity:
            raise UserError("BM25 of something else than asked for", REMEDY, path=folder)
        firsts = range(0, len(passages), SHARD_ROWS)
        paths = [folder / f"shard-{number:05d}.arrow" for number in range(len(firsts))]

        def write(number: int) -> None:
            batch = count_terms(texts_of(passages, firsts[number], SHARD_ROWS), PLAIN)
            with atomic_write(paths[number], "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)

        if not (folder / "manifest.json").exists():
            in_shards(folder, len(paths), write)
            publish(folder, key, [path.name for path in paths])
        return Bm25([_open(path) for path in paths])


def texts_of(passages: Passages, first: int = 0, count: int | None = None) -> list[str]:
    """Return the searched texts of all passages or of the first ones: their titles and bodies."""
    some = passages.text.rows(first, count)
    return [f"{title} {body}" for title, body in zip(some.column("title"), some.column("body"), strict=True)]


def _open(path: Path) -> pa.RecordBatch:
    if damage(path):
        raise UserError("missing or damaged", REMEDY, path=path)
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    except (OSError, pa.ArrowInvalid):
        raise UserError("missing or damaged", REMEDY, path=path) from None
