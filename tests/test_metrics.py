"""Metrics that are measured for each kind of masked span have titles by a pattern, whatever the kinds."""

from realm_lab.metrics import METRICS, Metric, curve, metric


def test_a_metric_by_kind_is_known_by_its_pattern() -> None:
    found = curve("null_probability_unknown")
    assert (found.title, found.split, found.better) == ("p(null document), unknown masked", "train", "")
    assert curve("cloze_gold_among_candidates_subject").split == "dev"
    assert metric("cloze_null_probability_a_b_end").title == "p(null document) after, a_b clozes"
    # without a kind it is no such metric
    for name in ("cloze_null_probability_end", "cloze_null_probability__end", "null_probability_unknown"):
        assert metric(name) == Metric(name, name.replace("_", " "), better="")


def test_a_metric_has_the_part_of_the_evaluation_that_measures_it() -> None:
    parts = {"exact_match": "answers", "recall_at_5_finetuned": "retrieval", "cloze_gold_rank_end": "own measurements"}
    assert {name: METRICS[name].part for name in parts} == parts
    assert metric("gold_first_card").part == "retrieval"
    assert metric("cloze_null_probability_subject_end").part == Metric("mine", "mine").part == "own measurements"
