"""BM25: the order by the formula, terms as Lucene makes them, and only passages that share one."""

import html
import math
import os
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest

from realm_lab.contrib.evaluating.predictions import read_references
from realm_lab.engine.corpus.store import NO_ROW
from realm_lab.engine.evaluation.judged import graded_scores
from realm_lab.engine.retrieval.rows import NO_SCORE
from realm_lab.engine.systems import bm25 as module
from realm_lab.engine.systems.bm25 import Bm25, Bm25Store, Terms
from realm_lab.engine.systems.bm25_options import Bm25Options
from realm_lab.engine.systems.registry import Retrieved
from realm_lab.records.files import read_json, write_json
from tests.engine.corpus.preparing import write_passages
from tests.factories.errors import refused

TEXTS = [
    ("apple", "river stone river"),
    ("banana", "river stone metal wood glass paper"),
    ("cherry", "metal metal metal"),
    ("date", "wood glass"),
    ("elder", "stone stone wood river glass metal paper cloth"),
]


def columns(texts: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [body for _, body in texts], [title for title, _ in texts]


def by_hand(question: str, texts: list[tuple[str, str]], k1: float, b: float, title_weight: float) -> list[float]:
    """Robertson's BM25 with Lucene's inverse document frequency; a word of the title counts `title_weight` times."""
    documents = [(Counter(title.split()), Counter(body.split())) for title, body in texts]
    lengths = [title_weight * title.total() + body.total() for title, body in documents]
    mean, scores = sum(lengths) / len(documents), []
    for (title, body), length in zip(documents, lengths, strict=True):
        score = 0.0
        for word in question.split():
            holders = sum(title_weight * its_title[word] + its_body[word] > 0 for its_title, its_body in documents)
            rarity = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
            frequency = title_weight * title[word] + body[word]
            score += rarity * frequency / (frequency + k1 * (1 - b + b * length / mean)) if frequency else 0
        scores.append(score)
    return scores


@pytest.mark.parametrize("weights", [(0.9, 0.4, 1.0), (0.9, 0.4, 2.5), (1.6, 0.75, 0.0), (0.0, 1.0, 0.5)])
@pytest.mark.parametrize(
    "question", ["river", "stone river", "metal", "wood glass paper", "apple metal", "cloth river wood", "date", "lead"]
)
def test_scores_are_those_of_the_formula_and_only_passages_with_a_term_are_found(
    question: str, weights: tuple[float, float, float]
) -> None:
    options = Bm25Options(**dict(zip(("k1", "b", "title_weight"), weights, strict=True)))
    rows, scores = Bm25.of_texts(*columns(TEXTS)).with_options(options).search([question], 7)
    expected = by_hand(question, TEXTS, *weights)
    order = sorted((row for row in range(5) if expected[row] > 0), key=lambda row: (-round(expected[row], 6), row))
    assert rows[0].tolist() == order + [NO_ROW] * (7 - len(order))
    assert scores[0].tolist() == pytest.approx([expected[row] for row in order] + [NO_SCORE] * (7 - len(order)))


def test_of_equal_passages_the_first_are_found_on_every_processor() -> None:
    texts = [TEXTS[0], TEXTS[3], *[("fig", "stone paper")] * 300]
    rows = Bm25.of_texts(*columns(texts)).search(["paper", "wood"], 100).rows_QK
    assert rows[0].tolist() == list(range(2, 102))
    assert rows[1].tolist() == [1, *[NO_ROW] * 99]


@pytest.mark.parametrize(
    ("text", "terms"),
    [  # as Lucene's EnglishAnalyzer has them
        ("The dogs' and O\u2019Neil\u2019s CAT'S can't", ["dog", "o\u2019neil", "cat", "can't"]),
        ("3.14 U.S.A. e-mail foo_bar __ 1,000;", ["3.14", "u.s.a", "e", "mail", "foo_bar", "1,000"]),
        ("generous generate generating", ["gener", "gener", "gener"]),  # Porter 2 leaves two stems
        ("日本 한국어 カタカナ ชาว e\u0301t", ["日", "本", "한국어", "カタカナ", "ชาว", "e\u0301t"]),
        ("vitamin c 's l'amour 'a'b' 12:30 w:x _y_1 b.2 ...", "vitamin c s l'amour a'b 12 30 w:x _y_1 b 2".split()),
        (" \u3000", []),
    ],
)
def test_words_are_those_of_unicode_without_possessives_and_stop_words(text: str, terms: list[str]) -> None:
    assert Terms().of(text) == terms


def many_texts(count: int) -> list[tuple[str, str]]:
    """Texts of very different lengths, some without any word, with frequent and rare words."""
    random = np.random.default_rng(0)
    words = np.array([f"word{chr(97 + n % 26)}{n // 26}{chr(39)}s" for n in range(300)])
    lengths = random.integers(0, 60, count)
    return [("", " ".join(words[(300 * random.random(length) ** 3).astype(int)])) for length in lengths]


def test_shards_find_to_the_bit_what_bm25s_finds_over_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = many_texts(1000)
    questions = [body[:80] for _, body in texts[:40]] + ["worda0's worda0 wordb0", "nothing known"]

    whole, terms = bm25s.BM25(k1=0.9, b=0.4), Terms()
    whole.index([terms.of(f"{title} {body}") for title, body in texts], show_progress=False)
    expected = np.stack(
        [whole.get_scores(own) if (own := terms.of(asked)) else np.zeros(1000, np.float32) for asked in questions]
    )
    order = np.argsort(-expected, kind="stable")[:, :300]
    best = np.take_along_axis(expected, order, 1)
    order[best == 0], missing = NO_ROW, best == 0
    assert 0 < missing.sum() < missing.size / 2

    def check(found: Retrieved) -> None:
        assert (found.scores_QK[missing] == NO_SCORE).all()
        if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
            assert (found.rows_QK == order).all()
            assert (found.scores_QK[~missing] == best[~missing]).all()
            return
        # In numpy 1, a float32 array times a float64 number is float32, so bm25s rounds its weights earlier than Bm25.
        np.testing.assert_allclose(found.scores_QK[~missing], best[~missing], rtol=1e-6)

    check(Bm25.of_texts(*columns(texts)).search(questions, 300))
    passages = write_passages(tmp_path / "passages", texts)
    for rows in (1 << 16, 77, 500):
        monkeypatch.setattr(module, "SHARD_ROWS", rows)
        check(Bm25Store(tmp_path / f"store-{rows}").index(passages, "corpus").search(questions, 300))
        assert len(list(tmp_path.glob(f"store-{rows}/*/shard-*.arrow"))) == -(-1000 // rows)


def test_an_index_is_computed_once_goes_on_where_it_was_stopped_and_is_known_by_its_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 2)
    passages, store = write_passages(tmp_path / "passages", TEXTS), Bm25Store(tmp_path / "store")
    counted: list[str | None] = []
    count_terms = module.count_terms

    def counting(bodies: Any, titles: Any) -> Any:
        if len(counted) == 1:
            counted.append(None)
            raise KeyboardInterrupt
        counted.append(titles[0])
        return count_terms(bodies, titles)

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


DATA = Path(os.environ.get("REALM_LAB_DATA", Path(__file__).parents[4] / "shared" / "data"))


def data_folder(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"{DATA}: no {name} there; set REALM_LAB_DATA to the folder of the data")
    return DATA / name


def byte_length(length: float) -> int:
    """Return a length as Lucene stores it, in a byte: exactly below 40, then with four significant bits."""
    above = int(length) - 24
    shift = max(0, above.bit_length() - 4)
    return int(length) if above < 16 else 24 + (above >> shift << shift)


def test_cacm_is_ranked_as_by_anserini() -> None:
    """The official figures of Lucene's BM25 (.3123, .1942), and its run, with lengths stored in bytes as in Lucene."""
    folder = data_folder("cacm")
    texts: dict[str, str] = {}
    with tarfile.open(folder / "cacm.tar.gz") as files:
        for file in sorted(filter(tarfile.TarInfo.isfile, files), key=lambda file: file.name):
            content = files.extractfile(file)
            assert content
            pages = re.sub("</?(?:html|pre)>", "", content.read().decode())
            texts[Path(file.name).stem] = html.unescape(pages)
    topics = dict(re.findall(r"<DOCNO> (\d+) </DOCNO>(.*?)</DOC>", (folder / "topics.cacm.txt").read_text(), re.DOTALL))
    judged = {question.id: dict(question.judged) for question in read_references(folder / "qrels.cacm.txt")}
    names, bm25 = list(texts), Bm25.of_texts(list(texts.values()))

    def ranked(depth: int) -> dict[str, list[str]]:
        rows_QK = bm25.search(list(topics.values()), depth).rows_QK
        return {topic: [names[row] for row in rows if row >= 0] for topic, rows in zip(topics, rows_QK, strict=True)}

    found = ranked(1000)
    scores = [graded_scores(found[topic], grades) for topic, grades in judged.items()]
    assert (len(texts), len(topics), len(judged)) == (3204, 64, 52)
    assert np.mean([score["map"] for score in scores]) == pytest.approx(0.3123, abs=0.002)
    assert np.mean([score["precision_at_30"] for score in scores]) == pytest.approx(0.1942, abs=0.002)

    [shard] = bm25._shards
    shard.lengths = np.array([byte_length(length) for length in shard.lengths])
    lucene = [line.split()[:3:2] for line in (folder / "anserini-bm25.run").read_text().splitlines()]
    ours = [[topic, name] for topic, own in ranked(30).items() for name in own]
    assert len(ours) == len(lucene)
    assert np.mean([mine == theirs for mine, theirs in zip(ours, lucene, strict=True)]) > 0.985


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

    data_folder("squad")
    texts, items = natural_questions(data_folder("nq_gold").parent, squad(DATA)[0])
    found = measure(texts, items, True)
    assert (len(texts), len(items)) == (21_167, 888)
    assert found == pytest.approx(PUBLISHED, abs=0.01)
