"""Pairs of segments for the reader's warm start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from realm_lab.corpus.store import RaggedWriter, Sentences
from realm_lab.training.pairs import PassagePairs

SPANS: list[list[int]] = [[], [0, 2], [], [1, 2, 3, 5], []]


def test_pairs_of_passages_are_made_of_the_sentences_with_a_salient_span(tmp_path: Path) -> None:
    tokens = [[100 * row + place for place in range(8)] for row in range(len(SPANS))]
    for name, dtype, rows in (("tokens", np.uint16, tokens), ("spans", np.int32, SPANS)):
        writer = RaggedWriter(tmp_path, name, dtype)
        writer.append(rows)
        writer.close()
    origins = [0, 1, 2, 3, 4]
    for name in ("origins", "gold"):
        np.array(origins, np.int32).tofile(tmp_path / f"{name}.bin")

    class Passages(SimpleNamespace):
        def __len__(self) -> int:
            return 5

    passages: Any = Passages(bodies=[np.array([row]) for row in range(5)], articles=np.arange(5))
    pairs = PassagePairs(Sentences(tmp_path, np.uint16), passages)
    assert len(pairs) == 2
    for item, row in enumerate((1, 3)):
        pair = pairs.pair(item, True, np.random.default_rng(0))
        assert pair.first.tolist() == tokens[row]
        assert pair.spans.reshape(-1).tolist() == SPANS[row]
        assert pair.second.tolist() == [row]  # each article here has one passage, so the related one is the origin
