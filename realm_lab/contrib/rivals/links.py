"""Links between passages: a passage links to every passage whose title its body names.

The rule fits every corpus: articles of the toy world and of files have titles, but few files contain links. Links are
computed from the stored wordpieces, so that an updated corpus has current ones and no prepared corpus stores them.
A title that is an ordinary word is not left out, though it is named often.
"""

# Shapes: T wordpieces laid end to end, N passages

from __future__ import annotations

import numpy as np

from realm_lab.engine.corpus.records import text_hash
from realm_lab.engine.corpus.store import Passages, Ragged

BASE = np.uint64(0x9E3779B97F4A7C15)  # odd base of a polynomial hash in 64 bits, which wraps
AT_ONCE = 1 << 18  # passages


class Links:
    """The links of a corpus.

    `continues` marks each wordpiece of the vocabulary that continues a word. A title with the wordpiece `unknown`,
    which may be any word, is never named.
    """

    def __init__(self, passages: Passages, continues: np.ndarray, unknown: int):
        hashes = np.array([_hash(passages, row, unknown) for row in range(len(passages))], np.uint64)
        titles, self.title_of = np.unique(hashes, return_inverse=True)
        self._rows = _grouped(self.title_of, np.arange(len(passages)), len(titles))  # rows of each title
        self._lengths = np.array(passages.titles.lengths)[self._rows.values[self._rows.offsets[:-1]]]
        self._titles, self._continues = titles, continues
        starts = range(0, len(passages), AT_ONCE)
        pairs = np.concatenate([np.empty((0, 2), np.int64), *(self._mentions(passages, start) for start in starts)])
        pairs = pairs[self.title_of[pairs[:, 0]] != pairs[:, 1]]  # naming its own title is no link
        self._named = _grouped(pairs[:, 0], pairs[:, 1], len(passages))

    def _mentions(self, passages: Passages, start: int) -> np.ndarray:
        """Return (row, title that it names) of AT_ONCE passages from `start` on, sorted, each pair once."""
        offsets = np.asarray(passages.bodies.offsets[start : start + AT_ONCE + 1])
        tokens_T, offsets = np.asarray(passages.bodies.values[offsets[0] : offsets[-1]]), offsets - offsets[0]
        row_T = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        begins_T = np.append(~self._continues[tokens_T], True)  # [T + 1], true at the start of a word and at the end
        begins_T[offsets] = True
        windows_T, found = np.zeros(len(tokens_T), np.uint64), [np.empty((0, 2), np.int64)]
        for length in range(1, int(self._lengths.max(initial=0)) + 1):
            windows_T = windows_T[: max(0, len(tokens_T) - length + 1)] * BASE
            windows_T += tokens_T[length - 1 :].astype(np.uint64) + np.uint64(1)
            end_T = np.arange(len(windows_T)) + length
            whole_T = (row_T[: len(windows_T)] == row_T[end_T - 1]) & begins_T[: len(windows_T)] & begins_T[end_T]
            title_T = np.searchsorted(self._titles, windows_T).clip(max=len(self._titles) - 1)
            same_T = (self._titles[title_T] == windows_T) & (self._lengths[title_T] == length)
            at = np.flatnonzero(whole_T & same_T)
            found.append(np.stack([row_T[at] + start, title_T[at]], 1))
        return np.unique(np.concatenate(found), axis=0)

    @property
    def passages_without(self) -> int:
        """Return the number of passages without links."""
        return int((self._named.lengths == 0).sum())

    def of(self, row: int) -> np.ndarray:
        """Return rows of the passages that a passage links to, grouped by title, int64."""
        return np.concatenate([np.empty(0, np.int64), *(self._rows[title] for title in self._named[row])])

    def relations(self, rows_N: np.ndarray) -> np.ndarray:
        """Return relations of each pair of some passages, bool [3, N, N]: the first links to the second, the second to
        the first, and both have the same title, which is not empty."""
        title_N = self.title_of[rows_N]
        to_NN = np.stack([np.isin(title_N, self._named[row]) for row in rows_N])
        same_NN = (title_N[:, None] == title_N) & (self._lengths[title_N] > 0) & ~np.eye(len(rows_N), dtype=bool)
        return np.stack([to_NN, to_NN.T, same_NN])


def _hash(passages: Passages, row: int, unknown: int) -> np.uint64:
    """Return a hash of a title's wordpieces, or of its text if a wordpiece is unknown."""
    tokens, value = passages.titles[row], np.uint64(0)
    if unknown in tokens:
        return np.uint64(text_hash(passages.text.row(row)["title"]))
    with np.errstate(over="ignore"):
        for token in tokens:
            value = value * BASE + np.uint64(int(token) + 1)
    return value


def _grouped(keys: np.ndarray, values: np.ndarray, size: int) -> Ragged:
    """Return the values of each key below `size`, in their order."""
    order = np.argsort(keys, kind="stable")
    offsets = np.concatenate([[0], np.bincount(keys, minlength=size).cumsum()])
    return Ragged.of(offsets, values[order])
