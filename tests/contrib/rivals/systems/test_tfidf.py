"""DrQA's ranking against a dense matrix written out in plain Python and numpy."""

import json
import os
import re
import unicodedata
from pathlib import Path

import mmh3
import numpy as np
import pytest
from bm25s.stopwords import STOPWORDS_EN_PLUS

from realm_lab.contrib.rivals.tfidf import TfidfArticles, TfidfTexts, terms
from tests.engine.corpus.preparing import write_passages

TEXTS = [
    "The river runs past the old mill, and the river is deep.",
    "A mill of stone: the stone mill.",
    "Nobody knows the river's name in Åland.",
    "Glass and paper and glass and paper",
    "The old glass mill of Aland",
    "Deep water",
]
QUESTIONS = ["which river runs past the old mill?", "the stone mill", "Åland", "glass glass paper", "is it?", "quartz"]


def plain_terms(text: str) -> list[str]:
    """Terms of a text, found character by character."""
    words, word = [], ""
    for character in unicodedata.normalize("NFD", text) + " ":
        kind = unicodedata.category(character)[0]
        if kind in "LNM":
            word += character.lower()
            continue
        words += [word] * bool(word) + [character.lower()] * (kind not in "ZC")
        word = ""
    good = [one not in STOPWORDS_EN_PLUS and not all(unicodedata.category(c)[0] == "P" for c in one) for one in words]
    return [words[n] for n in range(len(words)) if good[n]] + [
        f"{words[n]} {words[n + 1]}" for n in range(len(words) - 1) if good[n] and good[n + 1]
    ]


def dense_scores(texts: list[str], questions: list[str]) -> np.ndarray:
    """Scores by a dense matrix, [questions, texts]."""
    terms_of = [plain_terms(text) for text in (*texts, *questions)]
    hashed = [[mmh3.hash(term, seed=0, signed=False) % 2**24 for term in own] for own in terms_of]
    columns = {bucket: number for number, bucket in enumerate(sorted({each for own in hashed for each in own}))}
    counts = np.zeros((len(hashed), len(columns)))
    for row, own in enumerate(hashed):
        for bucket in own:
            counts[row, columns[bucket]] += 1
    holders = (counts[: len(texts)] > 0).sum(0)
    weights = np.log(1 + counts) * np.maximum(np.log((len(texts) - holders + 0.5) / (holders + 0.5)), 0)
    scores: np.ndarray = weights[len(texts) :] @ weights[: len(texts)].T
    return scores


def check(texts: list[str], questions: list[str], depth: int) -> None:
    expected = dense_scores(texts, questions)
    for scores, (found, values) in zip(expected, TfidfTexts(texts).search(questions, depth), strict=True):
        order = [text for text in np.argsort(-scores, kind="stable") if scores[text] > 1e-12][:depth]
        assert values == pytest.approx(scores[found], rel=1e-9)
        assert values == pytest.approx(scores[order], rel=1e-9)  # the best, except for the order of equal ones


def test_toy_texts_are_ranked_as_by_a_dense_matrix() -> None:
    check(TEXTS, QUESTIONS, 3)
    check(TEXTS, QUESTIONS, 10)
    found = TfidfTexts(TEXTS).search(QUESTIONS, 3)
    assert found[0][0][0] == 0
    assert 180132627 % 2**24 in TfidfTexts(["paris", "x", "y"])._used_U  # the hash of "paris" in DrQA
    assert [len(texts) for texts, _ in found][-2:] == [0, 0]  # for only stop words, and for an unknown word


def test_a_term_of_more_than_half_of_the_texts_is_worth_nothing() -> None:
    assert len(TfidfTexts(["mill a", "mill b", "mill c", "stone"]).search(["mill"], 4)[0][0]) == 0


DATA = Path(os.environ.get("REALM_LAB_DATA", Path(__file__).parents[5] / "shared" / "data"))


def test_real_passages_are_ranked_as_by_a_dense_matrix() -> None:
    path = DATA / "squad" / "dev-v1.1.json"
    if not path.exists():
        pytest.skip(f"{path}: not there; set REALM_LAB_DATA to the folder of the data")
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"][:5]][:150]
    texts = [paragraph["context"] for paragraph in paragraphs]
    questions = [paragraph["qas"][0]["question"] for paragraph in paragraphs]
    assert any(re.search(r"[^\x00-\x7f]", text) for text in texts)
    check(texts, questions[:60], 5)
    for text in texts:
        assert sorted(terms(text)) == sorted(plain_terms(text))


def test_articles_are_ranked_as_a_whole_and_all_their_passages_are_found(tmp_path: Path) -> None:
    bodies = [("Ur", "a river"), ("Uz", "the mill"), ("Ur", "old stones"), ("Uz", "a river"), ("Uk", "nothing")]
    passages = write_passages(tmp_path, [*bodies, *((f"Title{n}", f"filler{n}") for n in range(4))])
    found = TfidfArticles(passages).search(["stones by the river", "Uz", "old mill river"], 2)
    assert [rows.tolist() for rows, _ in found] == [[0, 2, 1, 3], [1, 3], [0, 2, 1, 3]]
    texts = ["Ur a river old stones", "Uz the mill a river", "Uk nothing", *(f"Title{n} filler{n}" for n in range(4))]
    scores = dense_scores(texts, ["stones by the river"])[0]
    assert found[0][1].tolist() == pytest.approx([scores[0]] * 2 + [scores[1]] * 2)
