"""The table of exact match by overlap with training."""

from __future__ import annotations

import pandas as pd

from realm_lab.reporting.overlap_table import overlap_table


def test_each_group_has_its_mean_and_its_count() -> None:
    rows = pd.DataFrame(
        [
            {"label": "realm", "seed": 0, "exact_match_no_overlap": 0.5, "questions_no_overlap": 10},
            {"label": "realm", "seed": 1, "exact_match_no_overlap": 0.7, "questions_no_overlap": 20},
            {"label": "old", "seed": 0},
        ]
    ).assign(questions_question_overlap=[0.0, 0.0, float("nan")], exact_match_question_overlap=None)
    table = overlap_table(rows, [("realm", "REALM"), ("old", "made before this was measured")])
    assert table is not None
    [realm, old] = table.frame.to_dict("records")
    assert (realm["neither"], realm["questions, neither"]) == ("0.600 ± 0.141", "15")
    assert (realm["question"], realm["questions, question"]) == ("–", "0")
    assert (old["neither"], old["questions, neither"]) == ("–", "–")


def test_there_is_no_table_where_nothing_was_measured() -> None:
    rows = pd.DataFrame([{"label": "realm", "seed": 0, "exact_match": 0.5}])
    assert overlap_table(rows, [("realm", "REALM")]) is None
