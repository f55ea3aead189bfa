"""Metrics that are measured for each kind of masked span have titles by a pattern, whatever the kinds."""

import math

import pytest

from realm_lab.records.metrics import METRICS, Metric, curve, learn, metric
from tests.factories.errors import refused


def test_a_metric_by_kind_is_known_by_its_pattern() -> None:
    found = curve("null_probability_unknown")
    assert (found.title, found.split, found.better) == ("p(null document), unknown masked", "train", "")
    assert curve("cloze_gold_among_candidates_subject").split == "dev"
    assert metric("cloze_null_probability_a_b_end").title == "p(null document) after, a_b clozes"
    # without a kind it is no such metric
    for name in ("cloze_gold_among_candidates_end", "cloze_null_probability__end", "null_probability_unknown"):
        assert metric(name) == Metric(name, name.replace("_", " "), better="")


def test_a_word_that_a_metric_does_not_have_is_refused_where_it_is_made() -> None:
    with refused("metric 'letters': better='higher'"):
        Metric("letters", "letters", better="higher")  # type: ignore[arg-type]


def test_each_study_has_its_definition_of_a_custom_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("letters", "exact_match"):
        monkeypatch.setitem(METRICS, name, metric(name))
    built_in = metric("exact_match")
    learn([Metric("letters", "letters of the answer")])
    learn([Metric("letters", "wrong letters", better="down"), Metric("exact_match", "another", better="down")])
    assert (metric("letters").better, metric("exact_match")) == ("down", built_in)


@pytest.mark.parametrize(
    ("name", "delta"),
    [("exact_match", 0.0), ("exact_match", math.nan), ("exact_match", 1.0), ("retrieval_utility_end", math.inf)],
)
def test_a_delta_is_finite_and_below_the_range_of_its_metric(name: str, delta: float) -> None:
    METRICS["exact_match"].check_delta(0.02)
    METRICS["retrieval_utility_end"].check_delta(2)
    with refused(f"delta of {name}"):
        METRICS[name].check_delta(delta)
