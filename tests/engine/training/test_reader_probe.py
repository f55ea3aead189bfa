"""The reader's probe against transformers in float64, one sentence and one passage at a time."""

from typing import Any

import numpy as np
import pytest

from realm_lab.engine.corpus.store import Passages, Sentences
from realm_lab.engine.retrieval.rows import NULL
from realm_lab.engine.training import probes
from realm_lab.engine.training.probes import PROBES, ReaderProbe
from tests.tiny_system import Reference, TinySystem, build_system

COUNT = 6


@pytest.fixture(autouse=True)
def few_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "READER_SENTENCES", COUNT)


def probe_of(system: TinySystem, sentences: Sentences) -> ReaderProbe:
    return ReaderProbe(system.params, sentences, system.passages, system.special, 0)


def said(tokens: np.ndarray) -> str:
    return f" {' '.join(map(str, tokens.tolist()))} "


def as_taken_from_the_corpus(sentences: Sentences, origins: np.ndarray) -> Sentences:
    """X = Z: the passage of origin is known, no gold passage is."""
    sentences.gold, sentences.origins = np.full(len(sentences), -1), origins
    return sentences


def test_gold_same_article_and_random_are_what_they_say(system: TinySystem) -> None:
    sentences = system.corpus.sentences("cloze_dev")
    probe = probe_of(system, sentences)
    articles = np.asarray(system.passages.articles)
    assert len(probe.numbers) == COUNT
    assert set(probe.rows) == set(PROBES)
    for place, number in enumerate(probe.numbers.tolist()):
        first, end = sentences.salient_spans(number)[0]
        gold, same, other = (int(probe.rows[name][place]) for name in PROBES)
        answer = said(sentences.tokens[number][first:end])
        assert gold == sentences.gold[number] >= 0
        assert articles[same] == articles[gold]
        assert same != gold
        assert answer not in said(system.passages.bodies[same])
        assert articles[other] != articles[gold]


def test_without_a_known_gold_passage_another_of_the_article_may_hold_the_answer(system: TinySystem) -> None:
    held_out = system.corpus.sentences("cloze_dev")
    gold, articles = np.asarray(held_out.gold), np.asarray(system.passages.articles)
    neighbours = np.array([next(r for r in np.flatnonzero(articles == articles[g]).tolist() if r != g) for g in gold])
    probe = probe_of(system, as_taken_from_the_corpus(held_out, neighbours))
    for place, number in enumerate(probe.numbers.tolist()):
        found = int(probe.rows["gold"][place])
        assert found != neighbours[number]
        assert articles[found] == articles[gold[number]]
        assert said(probe.masked[place].targets) in said(system.passages.bodies[found])
        assert probe.rows["same_article"][place] not in (neighbours[number], gold[number])
    # The origin holds the sentence itself: to copy from it proves nothing.
    copied = probe_of(system, as_taken_from_the_corpus(held_out, gold))
    assert not (copied.rows["gold"] == gold[copied.numbers]).any()
    nothing_known = probe_of(system, as_taken_from_the_corpus(held_out, np.full(len(gold), -1)))
    assert {name: bool((rows >= 0).any()) for name, rows in nothing_known.rows.items()} == {
        "gold": False,
        "same_article": False,
        "random": True,
    }
    assert set(nothing_known.measure(system.reader)) == {"probe_random_utility"}


def test_the_probe_is_the_gain_per_masked_word(system: TinySystem, reference: Reference) -> None:
    probe = probe_of(system, system.corpus.sentences("cloze_dev"))
    probe.rows["same_article"][2] = -2  # a sentence without such a passage
    values = probe.measure(system.reader)
    assert set(values) == {f"probe_{name}_utility" for name in PROBES}
    for name in PROBES:
        nats, words = 0.0, 0
        for sentence, row in zip(probe.masked, probe.rows[name].tolist(), strict=True):
            if row >= 0:
                with_it, without = (
                    _log_likelihood(reference, sentence, _body(system.passages, r)) for r in (row, NULL)
                )
                nats, words = nats + with_it - without, words + len(sentence.positions)
        assert words > 0
        assert values[f"probe_{name}_utility"] == pytest.approx(nats / words, abs=1e-4)


def test_measuring_knows_no_dropout(system: TinySystem) -> None:
    wild = build_system(system.corpus, model={"dropout": 0.5})
    probe = probe_of(wild, system.corpus.sentences("cloze_dev"))
    calm = probe.measure(wild.reader)
    assert probe.measure(wild.reader.train()) == calm
    assert wild.reader.training


def _body(passages: Passages, row: int) -> np.ndarray:
    return passages.bodies[row] if row >= 0 else np.empty(0, np.int64)


def _log_likelihood(reference: Reference, sentence: Any, body: np.ndarray) -> float:
    words = reference.masked_words(sentence.tokens, body, sentence.positions).numpy()
    return float(sum(words[place, target] for place, target in enumerate(sentence.targets)))
