"""BM25: the order by the formula, stems and stop words, and missing results of a small corpus."""

import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest

from benchmarks.bm25 import LUCENE
from realm_lab.core.files import read_json, write_json
from realm_lab.corpus.store import PreparedCorpus
from realm_lab.systems import bm25 as module
from realm_lab.systems.bm25 import K1, PLAIN, Analysis, B, Bm25, Bm25Store
from realm_lab.systems.identity import corpus_folder, plan_run
from realm_lab.systems.registry import Retrieved
from tests import tiny
from tests.corpus.preparing import write_passages
from tests.factories.errors import refused

TEXTS = [
    ("apple", "river stone river"),
    ("banana", "river stone metal wood glass paper"),
    ("cherry", "metal metal metal"),
    ("date", "wood glass"),
    ("elder", "stone stone wood river glass metal paper cloth"),
]


def joined(texts: list[tuple[str, str]]) -> list[str]:
    return [f"{title} {body}" for title, body in texts]


def by_hand(question: str, texts: list[tuple[str, str]]) -> list[float]:
    """Robertson's BM25 with Lucene's inverse document frequency, over title and body."""
    documents = [text.split() for text in joined(texts)]
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
def test_scores_are_those_of_the_formula_and_places_beyond_a_small_corpus_are_empty(question: str) -> None:
    rows, scores = Bm25.of_texts(joined(TEXTS), LUCENE).search([question], 7)
    expected = by_hand(question, TEXTS)
    assert rows[0].tolist() == [*sorted(range(5), key=lambda row: (-round(expected[row], 6), row)), -1, -1]
    assert scores[0, :5].tolist() == pytest.approx([expected[row] for row in rows[0, :5]], rel=1e-5)
    assert np.isneginf(scores[0, 5:]).all()
    assert max(expected) > 0


def test_of_equal_passages_the_first_are_found_on_every_processor() -> None:
    texts = [TEXTS[0], TEXTS[3], *[("fig", "stone paper")] * 300]
    rows = Bm25.of_texts(joined(texts)).search(["paper", "wood"], 100).rows_QK
    assert rows[0].tolist() == list(range(2, 102))
    assert rows[1].tolist() == [1, 0, *range(2, 100)]


def test_titles_count_stems_match_and_stop_words_do_not() -> None:
    texts = [("Rivers", "of the north"), ("Lakes", "the the the the"), ("Running", "a horse runs")]
    bm25 = Bm25.of_texts(joined(texts))
    found = bm25.search(["the river", "horses that ran or are running", "LAKE?"], 1).rows_QK[:, 0].tolist()
    assert found == [0, 2, 1]


def test_it_finds_the_toy_facts_that_are_asked_in_their_own_words(tmp_path: Path) -> None:
    params: Any = tiny.params()
    corpus = PreparedCorpus(corpus_folder(tiny.prepare(params, tmp_path), plan_run(params, "realm", 0)))
    questions = corpus.questions("test")
    found = Bm25Store(tmp_path / "bm25").index(corpus.passages(), "toy").search(questions.texts, 5).rows_QK
    hits = [questions.gold[number][0] in rows for number, rows in enumerate(found)]
    shares = [np.mean(hits[style::2]) for style in (0, 1)]
    assert shares[0] > 0.9  # "what is the capital of ..." against "the capital of ... is"
    assert shares[1] < shares[0] - 0.1  # in the words of the news, only the name can match


def test_the_analysis_of_lucene_keeps_letters_and_has_the_older_stems() -> None:
    assert len(LUCENE.stop_words) == 33
    texts = ["vitamin c", "vitamin d", "generous gift", "filler words here"]
    asked = ["which is the c", "generate"]  # Porter's first algorithm leaves 'gener' of both
    rows, scores = Bm25.of_texts(texts, LUCENE).search(asked, 1)
    assert rows[:, 0].tolist() == [0, 2]
    assert (scores > 0).all()
    assert (Bm25.of_texts(texts).search(asked, 1)[1] == 0).all()  # words of two letters; 'generat' and 'generous'


def many_texts(count: int) -> list[tuple[str, str]]:
    """Texts of very different lengths, some without any word, with frequent and rare words."""
    random = np.random.default_rng(0)
    words = np.array([f"word{chr(97 + n % 26)}{n // 26}{chr(39)}s" for n in range(300)])
    lengths = random.integers(0, 60, count)
    return [("", " ".join(words[(300 * random.random(length) ** 3).astype(int)])) for length in lengths]


def test_shards_find_to_the_bit_what_bm25s_finds_over_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = many_texts(1000)
    questions = [body[:80] for _, body in texts[:40]] + ["worda0's worda0 wordb0", "nothing known"]

    def check(found: Retrieved, analysis: Analysis) -> None:
        whole = bm25s.BM25(k1=K1, b=B)
        whole.index(analysis.tokens(joined(texts), return_ids=True), show_progress=False)
        asked = analysis.tokens(questions, return_ids=False)
        expected = np.stack([whole.get_scores(terms) if terms else np.zeros(1000, np.float32) for terms in asked])
        order = np.argsort(-expected, kind="stable")[:, :300]
        best = np.take_along_axis(expected, order, 1)
        if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
            assert (found.rows_QK == order).all()
            assert found.scores_QK.tobytes() == best.tobytes()
            return
        # In numpy 1, a float32 array times a float64 number is float32, so bm25s rounds its weights earlier than Bm25.
        np.testing.assert_allclose(found.scores_QK, best, rtol=1e-6)
        np.testing.assert_allclose(np.take_along_axis(expected, found.rows_QK, 1), best, rtol=1e-6)

    check(Bm25.of_texts(joined(texts), LUCENE).search(questions, 300), LUCENE)  # in which 's' is a term without letters
    passages = write_passages(tmp_path / "passages", texts)
    for rows in (1 << 16, 77, 500):
        monkeypatch.setattr(module, "SHARD_ROWS", rows)
        check(Bm25Store(tmp_path / f"store-{rows}").index(passages, "corpus").search(questions, 300), PLAIN)
        assert len(list(tmp_path.glob(f"store-{rows}/*/shard-*.arrow"))) == -(-1000 // rows)


def test_an_index_is_computed_once_goes_on_where_it_was_stopped_and_is_known_by_its_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 2)
    passages, store = write_passages(tmp_path / "passages", TEXTS), Bm25Store(tmp_path / "store")
    counted: list[str | None] = []
    count_terms = module.count_terms

    def counting(texts: Any, analysis: Any) -> Any:
        if len(counted) == 1:
            counted.append(None)
            raise KeyboardInterrupt
        counted.append(texts[0].split()[0])
        return count_terms(texts, analysis)

    monkeypatch.setattr(module, "count_terms", counting)
    with pytest.raises(KeyboardInterrupt):
        store.index(passages, "one")
    assert not list(tmp_path.glob("store/*/manifest.json"))
    for _ in range(2):
        assert store.index(passages, "one").search(["metal"], 1).rows_QK == [[2]]
    assert counted == ["apple", None, "cherry", "elder"]
    store.index(passages, "two")
    assert len(list(tmp_path.glob("store/*/manifest.json"))) == 2


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    passages, store = write_passages(tmp_path / "passages", TEXTS), Bm25Store(tmp_path / "store")
    store.index(passages, "one")
    [path] = tmp_path.glob("store/*/shard-00000.arrow")
    content = path.read_bytes()
    for damaged in (content[:-20], content[:-600] + bytes(600)):
        path.write_bytes(damaged)
        with refused("delete the folder", path=path):
            store.index(passages, "one")
    identity = path.with_name("identity.json")
    write_json(identity, read_json(identity) | {"rows": 1})
    with refused("delete the folder", path=path.parent):
        store.index(passages, "one")


PUBLISHED = {
    "gold_recall_at_1": 0.679,
    "gold_recall_at_5": 0.835,
    "gold_recall_at_20": 0.916,
    "gold_recall_at_100": 0.960,
    "mean_reciprocal_rank": 0.751,
    "recall_at_5": 0.864,
    "recall_at_20": 0.934,
    "recall_at_100": 0.972,
}


@pytest.mark.slow
def test_natural_questions_are_found_as_by_another_program() -> None:
    """888 questions over 21,167 passages, against an independent BM25 of the same settings, within one point."""
    from benchmarks.bm25 import measure, natural_questions, squad

    data = Path(os.environ.get("REALM_LAB_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (data / "squad").exists() or not (data / "nq_gold").exists():
        pytest.skip(f"{data}: no squad and nq_gold there; set REALM_LAB_DATA to the folder of the data")
    texts, items = natural_questions(data, squad(data)[0])
    found = measure(texts, items, True, LUCENE)
    assert (len(texts), len(items)) == (21_167, 888)
    assert found == pytest.approx(PUBLISHED, abs=0.01)
