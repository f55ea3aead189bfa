"""BM25 over the knowledge corpus, the baseline of every retrieval table; computed once and then shared by all runs.

<store>/<key[:12]>/identity.json      the corpus, and the code that made its texts into terms; written first
                   shard-00000.arrow  terms of SHARD_ROWS passages, each with its passages and counts
                   shard-00000.lock   held by the process that writes this shard; not empty once it is finished
                   manifest.json      written last: with it the index is published

A text becomes terms as by Lucene's EnglishAnalyzer: words by Unicode's rules (UAX 29), without possessive endings and
its 33 stop words, stemmed by Porter's algorithm of 1980. The statistics of the whole corpus are summed, and the options
(k1, b, title_weight) applied, when questions are asked. Scores have the same bits as those of bm25s over all passages
at once. At most one shard's texts are in memory, and the files are memory-mapped.
"""

# Shapes: N passages of a shard, Q questions, K passages that are found

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import regex
import Stemmer
import torch

from realm_lab.engine.core.shards import REMEDY, in_shards, publish, write_once
from realm_lab.engine.corpus.store import NO_ROW, Passages
from realm_lab.engine.retrieval.rows import NO_SCORE
from realm_lab.engine.systems.bm25_options import Bm25Options
from realm_lab.engine.systems.registry import Retrieved
from realm_lab.errors import UserError
from realm_lab.records.code_record import code_reader
from realm_lab.records.digests import damage
from realm_lab.records.files import atomic_write, digest, read_json
from realm_lab.records.run import KEY_LENGTH

SHARD_ROWS = 1 << 16
MARKS = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"


def _runs(*kinds: str, inside: str = "") -> str:
    """Return a regular expression for runs of characters with a Word_Break of `kinds` (UAX 29). With `inside`, one
    character of that kind, of MidNumLet or of Single_Quote may join two runs."""
    run = f"(?:[{_any(*kinds)}]{MARKS})++"
    return f"{run}(?:[{_any(inside, 'MidNumLet', 'Single_Quote')}]{MARKS}{run})*+" if inside else run


def _any(*kinds: str) -> str:
    return "".join(rf"\p{{WB={kind}}}" for kind in kinds)


LETTERS, NUMBERS = _runs("ALetter", "Hebrew_Letter", inside="MidLetter"), _runs("Numeric", inside="MidNum")
PART, JOINERS = f"(?:{_runs('Katakana')}|(?:{LETTERS}|{NUMBERS})++)", f"(?:{_runs('ExtendNumLet')})?+"
WORD = regex.compile(  # a word of UAX 29; in scripts without blanks one character (Han), or a run (Thai)
    rf"{JOINERS}{PART}(?:{_runs('ExtendNumLet')}{PART})*{JOINERS}|\p{{LB=SA}}++|[\p{{Han}}\p{{Hiragana}}]{MARKS}"
)
POSSESSIVE = regex.compile("['\u2019\uff07][sS]$")
STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)


class Terms(dict[str, list[str]]):
    """Text without blanks -> its terms, computed when it is first looked up."""

    def __init__(self) -> None:
        self._stem = Stemmer.Stemmer("porter").stemWord

    def __missing__(self, text: str) -> list[str]:
        words = (POSSESSIVE.sub("", word).lower() for word in WORD.findall(text))
        kept = (word for word in words if word not in STOP_WORDS)
        self[text] = found = [self._stem(word) if len(word) > 2 else word for word in kept]  # like Porter's program
        return found

    def of(self, text: str) -> list[str]:
        """Return the terms of any text. It is split at blanks first, since no word has one."""
        return list(chain.from_iterable(map(self.__getitem__, text.split())))


def count_terms(bodies: Sequence[str], titles: Sequence[str]) -> pa.RecordBatch:
    """Return the sorted terms of passages, each with the rows of its passages and its counts in bodies and titles.
    The first entry, None, stands for any term: its counts are the lengths of the texts."""
    terms, size = Terms(), len(bodies)
    vocabulary: dict[str, int] = defaultdict(itertools.count().__next__)
    ids = [list(map(vocabulary.__getitem__, terms.of(text))) for text in chain(bodies, titles)]
    lengths = np.fromiter(map(len, ids), np.int64, 2 * size)
    words = sorted(vocabulary)
    place_of = np.empty(len(words), np.int64)  # number of a term -> its index in `words`, from 1
    place_of[[vocabulary[word] for word in words]] = np.arange(1, len(words) + 1)
    place_T = place_of[np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum())]
    pair_T = place_T * size + np.repeat(np.arange(2 * size) % size, lengths)
    is_title_T = np.repeat(np.arange(2 * size) >= size, lengths)
    pairs, inverse = np.unique(pair_T, return_inverse=True)
    starts = np.append(0, size + np.searchsorted(pairs, np.arange(1, len(words) + 2) * size))
    columns = [np.concatenate([np.arange(size), pairs % size])]
    for chosen, own in ((~is_title_T, lengths[:size]), (is_title_T, lengths[size:])):
        columns.append(np.concatenate([own, np.bincount(inverse[chosen], minlength=len(pairs))]))
    lists = [pa.ListArray.from_arrays(starts.astype(np.int32), values.astype(np.int32)) for values in columns]
    return pa.record_batch([pa.array([None, *words], pa.string()), *lists], ["term", "rows", "counts", "title_counts"])


class Shard:
    """The result of `count_terms` for some passages, with the weight of their titles."""

    def __init__(self, batch: pa.RecordBatch, title_weight: float):
        self._terms, rows = batch.column("term"), batch.column("rows")
        self._starts, self._rows = rows.offsets.to_numpy(), rows.values.to_numpy()
        self._counts, self._title_counts = (batch.column(part).values.to_numpy() for part in ("counts", "title_counts"))
        self._title_weight = title_weight
        self.lengths = self.counts(slice(0, self._starts[1]))

    def counts(self, found: slice) -> np.ndarray:
        """Return the weighted counts of a term in its passages, float64."""
        counts: np.ndarray = self._counts[found] + self._title_weight * self._title_counts[found]
        return counts

    def find(self, term: str) -> slice:
        """Return the slice of a term's entry in the rows and counts; empty if no passage has the term."""
        positions = range(len(self._terms))
        position = bisect.bisect_left(positions, term, lo=1, key=lambda position: self._terms[position].as_py())
        has_term = position < len(self._terms) and self._terms[position].as_py() == term
        return slice(*self._starts[position : position + 2].tolist()) if has_term else slice(0, 0)

    def weights(self, found: slice, mean_length: float, options: Bm25Options) -> tuple[np.ndarray, np.ndarray]:
        """Return the passages with a term, and the term's weight in each, float64."""
        rows, counts = self._rows[found], self.counts(found)
        rows, counts = rows[counts > 0], counts[counts > 0]  # a title does not count if its weight is 0
        relative = self.lengths[rows] / mean_length
        return rows, counts / (options.k1 * ((1 - options.b) + options.b * relative) + counts)


class Bm25:
    """An index of one or more shards."""

    def __init__(self, shards: Sequence[pa.RecordBatch], options: Bm25Options | None = None):
        self._batches, self._options = shards, options or Bm25Options()
        self._shards = [Shard(batch, self._options.title_weight) for batch in shards]
        self._size = sum(len(shard.lengths) for shard in self._shards)
        self._words = sum(float(shard.lengths.sum()) for shard in self._shards)

    @classmethod
    def of_texts(cls, bodies: Sequence[str], titles: Sequence[str] = ()) -> Bm25:
        """Build an index in memory."""
        return cls([count_terms(bodies, titles or [""] * len(bodies))])

    def with_options(self, options: Bm25Options) -> Bm25:
        """Return the same index with other options."""
        return Bm25(self._batches, options)

    def search(self, questions: Sequence[str], depth: int) -> Retrieved:
        """Return the best `depth` passages of each question, the lower row first among equal scores. Only passages that
        share a term with the question are found; NO_ROW with NO_SCORE if there are fewer."""
        rows_QK = np.full((len(questions), depth), NO_ROW, np.int64)
        scores_QK = np.zeros((len(questions), depth), np.float32)
        terms = Terms()
        asked = [terms.of(question) for question in questions]
        known = set(chain.from_iterable(asked))
        found = [{term: shard.find(term) for term in known} for shard in self._shards]
        pairs = list(zip(self._shards, found, strict=True))
        holders = {term: sum(np.count_nonzero(shard.counts(own[term])) for shard, own in pairs) for term in known}
        rarity = {
            term: np.float32(math.log(1 + (self._size - count + 0.5) / (count + 0.5)))  # Lucene's formula, as in bm25s
            for term, count in holders.items()
        }
        first = 0
        for shard, own in pairs:
            weights = {}
            for term, position in own.items():
                rows, weight = shard.weights(position, self._words / self._size, self._options)
                weights[term] = rows, (rarity[term] * weight).astype(np.float32)
            for number, terms_asked in enumerate(asked):
                score_N = np.zeros(len(shard.lengths), np.float32)
                for term in terms_asked:
                    np.add.at(score_N, *weights[term])
                better = np.flatnonzero(score_N > scores_QK[number, -1])
                scores = np.concatenate([scores_QK[number], score_N[better]])
                best = best_rows(scores, depth)
                rows_QK[number] = np.concatenate([rows_QK[number], first + better])[best]
                scores_QK[number] = scores[best]
            first += len(shard.lengths)
        scores_QK[rows_QK == NO_ROW] = NO_SCORE
        return Retrieved(rows_QK, scores_QK)


def best_rows(score_N: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of the highest scores, the highest first; among equal scores the first row first, int64 [count].

    bm25s' `retrieve` chooses among equal scores by numpy's partition, which differs between processors.
    """
    least = torch.from_numpy(score_N).topk(count).values[-1].item()
    above, equal = np.flatnonzero(score_N > least), np.flatnonzero(score_N == least)
    rows = np.concatenate([above, equal[: count - len(above)]])
    return rows[np.lexsort((rows, -score_N[rows]))]


class Bm25Store:
    """The BM25 indexes in a folder, by key. The folder need not exist yet."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def index(self, passages: Passages, corpus_digest: str) -> Bm25:
        """Return BM25 over the titles and bodies of passages: from the store, or computed now and published, each shard
        by one of the processes that ask for it. UserError: the folder holds something else, or is damaged.

        `corpus_digest` must be different for every list of passages.
        """
        code = digest(code_reader(self.folder.parent).reached([__name__]))
        identity = {"corpus_digest": corpus_digest, "rows": len(passages), "regex": regex.__version__, "code": code}
        key = digest(identity)
        folder = self.folder / key[:KEY_LENGTH]
        write_once(folder / "identity.json", identity)
        if read_json(folder / "identity.json") != identity:
            raise UserError("BM25 of something else than asked for", REMEDY, path=folder)
        firsts = range(0, len(passages), SHARD_ROWS)
        paths = [folder / f"shard-{number:05d}.arrow" for number in range(len(firsts))]

        def write(number: int) -> None:
            batch = count_terms(*texts_of(passages, firsts[number], SHARD_ROWS))
            with atomic_write(paths[number], "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)

        if not (folder / "manifest.json").exists():
            in_shards(folder, len(paths), write)
            publish(folder, key, [path.name for path in paths])
        return Bm25([_open(path) for path in paths])


def texts_of(passages: Passages, first: int = 0, count: int | None = None) -> tuple[list[str], list[str]]:
    """Return bodies and titles of `count` passages from `first` on; None: of all that are left."""
    some = passages.text.rows(first, count)
    return some.column("body"), some.column("title")


def _open(path: Path) -> pa.RecordBatch:
    if damage(path):
        raise UserError("missing or damaged", REMEDY, path=path)
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    except (OSError, pa.ArrowInvalid):
        raise UserError("missing or damaged", REMEDY, path=path) from None
