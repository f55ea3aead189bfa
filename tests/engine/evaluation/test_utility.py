"""The cloze evaluation against transformers in float64, one sentence and one passage at a time."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.engine.corpus.store import Sentences
from realm_lab.engine.evaluation import utility
from realm_lab.engine.evaluation.utility import ClozeResult, cloze_metrics, evenly_spaced, run_cloze
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval import index, retriever
from realm_lab.engine.retrieval.rows import NULL
from tests.tiny_system import Reference, TinySystem, tiny_params

COUNT = 5


def run(system: TinySystem, params: Params, sentences: Sentences) -> ClozeResult:
    return run_cloze(params, system.built_retriever(), system.reader, sentences, system.special, COUNT)


def held_out(system: TinySystem, params: Params, origin: str | None) -> Sentences:
    """Held-out sentences; the origin of each is the passage that it finds first, or the next one of that article."""
    sentences = system.corpus.sentences("cloze_dev")
    if origin:
        top = run(system, params, sentences).rows_BK[:, 1]
        articles = np.asarray(system.passages.articles)
        following = [next(row for row in np.flatnonzero(articles == articles[r]).tolist() if row != r) for r in top]
        sentences.origins = np.full(len(sentences), -1)
        sentences.origins[evenly_spaced(len(sentences), COUNT)] = top if origin == "first" else following
    return sentences


@pytest.fixture(scope="module")
def documents(reference: Reference) -> dict[int, torch.Tensor]:
    """Embed_doc of every passage and of the null document."""
    return {row: reference.document(row) for row in range(-1, len(reference.passages))}


@pytest.mark.parametrize(
    ("pretrain", "origin"),
    [
        ({"null_document": "encoded", "candidates": 4}, None),
        ({"null_document": "off", "candidates": 4}, None),
        ({"null_document": "off", "candidates": 4}, "first"),
        ({"null_document": "encoded", "candidates": 4}, "first"),
        ({"null_document": "encoded", "candidates": 4}, "its article"),
        ({"null_document": "encoded", "candidates": 4, "exclude_trivial": "article"}, "its article"),
    ],
)
def test_a_cloze_run_is_eq_1_and_2_sentence_by_sentence(
    system: TinySystem,
    reference: Reference,
    documents: dict[int, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    pretrain: dict[str, object],
    origin: str | None,
) -> None:
    monkeypatch.setattr(utility, "SENTENCES_AT_ONCE", 2)
    params = tiny_params(pretrain=pretrain)
    sentences = held_out(system, params, origin)
    result = run(system, params, sentences)
    null = pretrain["null_document"] == "encoded"
    articles = np.asarray(system.passages.articles)
    numbers = evenly_spaced(len(sentences), COUNT)
    assert len(result.masked) == len(numbers) == COUNT
    for place, number in enumerate(numbers.tolist()):
        first, end = sentences.salient_spans(number)[0]
        query = np.array(sentences.tokens[number], np.int64)
        targets = query[first:end].copy()
        query[first:end] = system.special.mask
        np.testing.assert_array_equal(result.masked[place].tokens, query)
        vector = reference.query(query)
        scores = {row: (vector @ document).item() for row, document in documents.items()}
        own = int(sentences.origins[number])
        forbidden: set[int] = set()
        if own >= 0:
            same = np.flatnonzero(articles == articles[own]).tolist()
            forbidden = set(same) if pretrain.get("exclude_trivial") == "article" else {own}
        allowed = sorted((row for row in scores if row >= 0 and row not in forbidden), key=lambda row: -scores[row])
        rows = [NULL, *allowed[: 3 if null else 4]]
        assert result.rows_BK[place].tolist() == rows
        words = [reference.masked_words(query, _body(system, row), np.arange(first, end)).numpy() for row in rows]
        log_reader = np.array([sum(w[m, target] for m, target in enumerate(targets)) for w in words])
        np.testing.assert_allclose(result.log_reader_BK[place].numpy(), log_reader, atol=1e-4)
        np.testing.assert_allclose(result.utility_BK[place].numpy(), log_reader - log_reader[0], atol=1e-4)
        assert result.utility_BK[place, 0] == 0.0
        prior = np.array([scores[row] for row in rows])[0 if null else 1 :]
        log_prior = prior - np.logaddexp.reduce(prior)
        np.testing.assert_allclose(result.log_prior_BK[place].numpy()[0 if null else 1 :], log_prior, atol=1e-4)
        if not null:
            assert result.log_prior_BK[place, 0] < -9000
        assert result.top1_correct_B[place].item() == (words[1].argmax(1) == targets).all()
        gold = int(sentences.gold[number])
        words_of_gold = reference.masked_words(query, _body(system, gold), np.arange(first, end)).numpy()
        expected = sum(w[target] for w, target in zip(words_of_gold, targets, strict=True))
        assert result.log_gold_B[place].item() == pytest.approx(expected, abs=1e-4)
        better = [row for row in scores if row >= 0 and row not in forbidden and scores[row] > scores[gold]]
        assert result.gold_rank_B[place] == 1 + len(better)
    np.testing.assert_array_equal(result.gold_B, sentences.gold[numbers])
    assert set(result.kind_B) == {"object"}


def _body(system: TinySystem, row: int) -> np.ndarray:
    return system.passages.bodies[row] if row >= 0 else np.empty(0, np.int64)


def test_a_passage_that_several_sentences_find_is_embedded_once(
    system: TinySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: list[int] = []
    embed_rows = index.embed_rows

    def counted(embedder: Any, passages: Any, rows: np.ndarray, inputs: Any) -> torch.Tensor:
        embedded.extend(rows.tolist())
        return embed_rows(embedder, passages, rows, inputs)

    monkeypatch.setattr(utility, "SENTENCES_AT_ONCE", 2)
    monkeypatch.setattr(retriever, "embed_rows", counted)
    params = tiny_params(pretrain={"candidates": 4})
    found = run(system, params, system.corpus.sentences("cloze_dev"))
    assert embedded == np.unique(found.rows_BK).tolist()
    assert len(embedded) < found.rows_BK.size - len(found.masked)


def test_the_words_are_guessed_from_the_first_passage(
    system: TinySystem, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = tiny_params(pretrain={"candidates": 4})
    sentences = system.corpus.sentences("cloze_dev")
    before = run(system, params, sentences)
    tokens = [np.array(sentences.tokens[row]) for row in range(len(sentences))]
    expected = []
    for place, number in enumerate(evenly_spaced(len(sentences), COUNT).tolist()):
        masked = before.masked[place]
        guesses = [
            reference.masked_words(masked.tokens, _body(system, row), masked.positions).argmax(1).tolist()
            for row in before.rows_BK[place].tolist()
        ]
        # The answer becomes the reader's guess with one of the candidates; the masked query stays as it was.
        others = [guess for guess in guesses if guess != guesses[1]]
        answer = others[0] if others and place % 2 else guesses[1]
        tokens[number][masked.positions] = answer
        expected.append(answer == guesses[1])
    monkeypatch.setattr(sentences, "tokens", tokens)
    after = run(system, params, sentences)
    np.testing.assert_array_equal(after.rows_BK, before.rows_BK)
    assert after.top1_correct_B.tolist() == expected
    assert len(set(expected)) == 2


def made_result() -> ClozeResult:
    prior_BK = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], dtype=torch.float64)
    log_reader_BK = torch.tensor([[-4.0, -1.0, -6.0], [-2.0, -3.0, -2.5]], dtype=torch.float64)
    masked = [MaskedSentence(np.arange(9), places, places) for places in (np.array([2]), np.array([4, 5, 6]))]
    return ClozeResult(
        masked=masked,
        rows_BK=np.array([[NULL, 5, 8], [NULL, 9, 2]]),
        log_prior_BK=prior_BK.log(),
        log_reader_BK=log_reader_BK,
        utility_BK=log_reader_BK - log_reader_BK[:, :1],
        top1_correct_B=torch.tensor([True, False]),
        gold_B=np.array([8, 3]),
        log_gold_B=torch.tensor([-6.0, -5.0], dtype=torch.float64),
        gold_rank_B=np.array([2, 30]),
        kind_B=np.array(["object", "object"]),
    )


def test_a_sentence_that_no_passage_answers_changes_nothing_of_the_others(system: TinySystem) -> None:
    params, sentences = tiny_params(pretrain={"candidates": 4}), system.corpus.sentences("cloze_dev")
    before = run(system, params, sentences)
    sentences.gold = np.array(sentences.gold)
    sentences.gold[evenly_spaced(len(sentences), COUNT)[1]] = -1
    after = run(system, params, sentences)
    others = np.arange(COUNT) != 1
    assert np.array_equal(after.gold_rank_B[others], before.gold_rank_B[others])
    assert cloze_metrics(after)["cloze_gold_known"] == COUNT - 1


def test_metrics_are_these_means() -> None:
    values = cloze_metrics(made_result())
    first, second = 0.5 * 0 + 0.25 * 3 + 0.25 * -2, 0.1 * 0 + 0.2 * -1 + 0.7 * -0.5
    likelihoods = [
        np.log(0.5 * np.exp(-4) + 0.25 * np.exp(-1) + 0.25 * np.exp(-6)),
        np.log(0.1 * np.exp(-2) + 0.2 * np.exp(-3) + 0.7 * np.exp(-2.5)),
    ]
    assert values == pytest.approx(
        {
            "passage_utility": (first / 0.5 + second / 0.9) / 2,  # as if the null document did not exist
            "retrieval_utility": (first + second) / 2,
            "retrieval_utility_top1": (3 - 0.5) / 2,  # the most likely passage, without the null document
            "retrieval_utility_best": (3 - 0.5) / 2,
            "cloze_log_likelihood": sum(likelihoods) / 2,
            "cloze_null_log_likelihood": -3.0,
            "cloze_gold_log_likelihood": -5.5,
            "cloze_gold_rank": 16.0,  # the median
            "cloze_gold_known": 2.0,
            "cloze_exact_match": 0.5,
            "cloze_null_probability": 0.3,
            "cloze_gold_among_candidates": 0.5,
        }
    )


def test_the_headline_is_of_objects_with_a_known_passage_and_the_kinds_are_beside_it() -> None:
    result = made_result()
    alone = cloze_metrics(result.only(np.array([True, False])))
    for kind, gold in (("subject", 2), ("unknown", -1)):
        values = cloze_metrics(result._replace(kind_B=np.array(["object", kind]), gold_B=np.array([8, gold])))
        assert {name: values[name] for name in alone} == pytest.approx(alone)
        other = cloze_metrics(result.only(np.array([False, True])))
        expected = {
            "cloze_gold_among_candidates_object": 1.0,
            f"cloze_gold_among_candidates_{kind}": 1.0,
            "cloze_null_probability_object": 0.5,
            f"cloze_null_probability_{kind}": 0.1,
        }
        for name in ("cloze_log_likelihood", "cloze_exact_match"):
            expected |= {f"{name}_object": alone[name], f"{name}_{kind}": other[name]}
        if gold < 0:
            del expected[f"cloze_gold_among_candidates_{kind}"]
        assert {name: value for name, value in values.items() if name not in alone} == pytest.approx(expected)
    # Real text: no gold passage is known, and all sentences count.
    real = cloze_metrics(result._replace(kind_B=np.array(["date", "name"]), gold_B=np.array([-1, -1])))
    assert real["cloze_null_probability"] == pytest.approx(0.3)
    assert real["cloze_null_probability_name"] == pytest.approx(0.1)


@pytest.mark.parametrize(("gold", "expected"), [(7, [0, 1, 3, 4, 6, 9]), (-1, [0, 4, 9])])
def test_sentences_are_chosen_of_each_kind_where_gold_passages_are_known(gold: int, expected: list[int]) -> None:
    class Made:
        gold, spans = np.full(10, -1), SimpleNamespace(lengths=np.full(10, 2))

        def kinds(self) -> np.ndarray:
            return np.array(["object"] + ["unknown"] * 4 + ["object"] * 5)

    sentences: Any = Made()
    sentences.gold[0] = gold
    assert utility.chosen_sentences(sentences, 3).tolist() == expected
