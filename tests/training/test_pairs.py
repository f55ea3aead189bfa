"""Pairs of segments for the reader's warm start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from realm_lab.corpus.store import RaggedWriter, Sentences
from realm_lab.training.pairs import PassagePairs

SPANS: list[list[int]] = [[], [0, 2], [], [1, 2, 3, 5], []]


class Passages(SimpleNamespace):
    """Five passages, whose bodies are their numbers."""

    bodies = [np.array([row]) for row in range(5)]  # noqa: RUF012

    def __len__(self) -> int:
        return 5


def sentences_of(tmp_path: Path) -> Sentences:
    """One of each passage."""
    tokens = [[100 * row + place for place in range(8)] for row in range(len(SPANS))]
    for name, dtype, rows in (("tokens", np.uint16, tokens), ("spans", np.int32, SPANS)):
        writer = RaggedWriter(tmp_path, name, dtype)
        writer.append(rows)
        writer.close()
    for name in ("origins", "gold"):
        np.arange(5, dtype=np.int32).tofile(tmp_path / f"{name}.bin")
    return Sentences(tmp_path, np.uint16)


def test_pairs_of_passages_are_made_of_the_sentences_with_a_salient_span(tmp_path: Path) -> None:
    passages: Any = Passages(articles=np.arange(5))
    pairs = PassagePairs(sentences_of(tmp_path), passages)
    assert len(pairs) == 2
    for item, row in enumerate((1, 3)):
        pair = pairs.pair(item, True, np.random.default_rng(0))
        assert pair.first.tolist() == [100 * row + place for place in range(8)]
        assert pair.spans.reshape(-1).tolist() == SPANS[row]
        assert pair.second.tolist() == [row]  # each article here has one passage, so the related one is the origin


@pytest.mark.parametrize(("articles", "expected"), [([0, 0, 0, 1, 1], [{0, 2}, {4}]), ([0, 1, 1, 1, 2], [{2}, {2}])])
def test_a_related_passage_is_beside_the_sentence_s_own(
    tmp_path: Path, articles: list[int], expected: list[set[int]]
) -> None:
    passages: Any = Passages(articles=np.array(articles))
    pairs = PassagePairs(sentences_of(tmp_path), passages)
    generator = np.random.default_rng(0)
    found = [{int(pairs.pair(item, True, generator).second[0]) for _ in range(40)} for item in (0, 1)]
    assert found == expected  # of the sentences of passages 1 and 3
