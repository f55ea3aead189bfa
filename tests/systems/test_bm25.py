"""BM25: the order that the formula gives, stems and stop words, and what a small corpus leaves empty."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from realm_lab.corpus.records import Passage
from realm_lab.corpus.store import Passages, PreparedCorpus, RaggedWriter, TextTableWriter
from realm_lab.runs import corpus_folder, plan_run
from realm_lab.systems.bm25 import K1, B, Bm25

TEXTS = [
    ("apple", "river stone river"),
    ("banana", "river stone metal wood glass paper"),
    ("cherry", "metal metal metal"),
    ("date", "wood glass"),
    ("elder", "stone stone wood river glass metal paper cloth"),
]


def passages_of(folder: Path, texts: list[tuple[str, str]]) -> Passages:
    for name, dtype in (("titles", np.uint16), ("bodies", np.uint16), ("sentence_starts", np.int32)):
        writer = RaggedWriter(folder, name, dtype)
        writer.append([[0] for _ in texts])
        writer.close()
    np.zeros(len(texts), np.int32).tofile(folder / "articles.bin")
    table = TextTableWriter(folder / "text.arrow", Passages.SCHEMA)
    table.append([Passage(str(n), title, body, str(n), title)._asdict() for n, (title, body) in enumerate(texts)])
    table.close()
    return Passages(folder, np.uint16)


def by_hand(question: str, texts: list[tuple[str, str]]) -> list[float]:
    """Robertson's BM25 with Lucene's inverse document frequency, over title and body."""
    documents = [f"{title} {body}".split() for title, body in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for word in question.split():
            holders = sum(word in other for other in documents)
            rarity = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
            frequency = counts[word]
            score += rarity * frequency / (frequency + K1 * (1 - B + B * len(document) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize(
    "question", ["river", "stone river", "metal", "wood glass paper", "apple metal", "cloth river wood", "stone"]
)
def test_the_order_is_that_of_the_formula(tmp_path: Path, question: str) -> None:
    scores = by_hand(question, TEXTS)
    found = Bm25(passages_of(tmp_path, TEXTS)).search([question], len(TEXTS))[0].tolist()
    assert sorted(found) == list(range(len(TEXTS)))
    # Passages without a word of the question are in no particular order.
    matched = [row for row in found if scores[row] > 0]
    assert matched == found[: len(matched)]
    assert matched == sorted(matched, key=lambda row: -scores[row])
    assert len(matched) > 0


def test_length_is_normalised_weakly(tmp_path: Path) -> None:
    """With b = 0.4, twice the word in a longer passage beats once in a shorter one; with b = 1 it would not."""
    texts = [("x", "stone"), ("y", "stone stone wood metal glass"), *(("z", "cloth paper river") for _ in range(6))]
    assert by_hand("stone", texts)[1] > by_hand("stone", texts)[0]
    assert Bm25(passages_of(tmp_path, texts)).search(["stone"], 2)[0].tolist() == [1, 0]


def test_titles_count_stems_match_and_stop_words_do_not(tmp_path: Path) -> None:
    texts = [("Rivers", "of the north"), ("Lakes", "the the the the"), ("Running", "a horse runs")]
    bm25 = Bm25(passages_of(tmp_path, texts))
    found = bm25.search(["the river", "horses that ran or are running", "LAKE?"], 1)[:, 0].tolist()
    assert found == [0, 2, 1]


def test_places_beyond_a_small_corpus_are_empty(tmp_path: Path) -> None:
    found = Bm25(passages_of(tmp_path, TEXTS[:3])).search(["river", "metal"], 20)
    assert (found.shape, found.dtype) == ((2, 20), np.int64)
    assert (found[:, 3:] == -1).all()
    assert sorted(found[0, :3].tolist()) == [0, 1, 2]
    assert found[0, 0] == 0
    assert found[1, 0] == 2


def test_a_question_without_a_known_word_is_no_error(tmp_path: Path) -> None:
    found = Bm25(passages_of(tmp_path, TEXTS)).search(["zyzzyva", "", "the of", "river"], 2)
    assert found.shape == (4, 2)
    assert found[3, 0] == 0


def test_it_finds_the_toy_facts_that_are_asked_in_their_own_words(tiny: ModuleType, tmp_path: Path) -> None:
    params: Any = tiny.params()
    corpus = PreparedCorpus(corpus_folder(tiny.prepare(params, tmp_path), plan_run(params, "realm", 0)))
    questions = corpus.questions("test")
    found = Bm25(corpus.passages()).search(questions.texts, 5)
    hits = [questions.gold[number][0] in rows for number, rows in enumerate(found)]
    shares = [np.mean(hits[style::2]) for style in (0, 1)]
    assert shares[0] > 0.9  # "what is the capital of ..." against "the capital of ... is"
    assert shares[1] < shares[0] - 0.1  # in the words of the news, the name alone must do
