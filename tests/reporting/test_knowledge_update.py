"""The page on a replaced corpus, on made results: its numbers, its figures, and data that is shown, not interpreted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from realm_lab.evaluation.cloze_items import ClozeReading
from realm_lab.evaluation.corpus_update import cloze_summary, question_summary
from realm_lab.reporting.knowledge_update import write_knowledge_update


def row(changed: bool, old: tuple[bool, bool], new: tuple[bool, bool]) -> dict[str, Any]:
    def matches(pair: tuple[bool, bool]) -> dict[str, bool]:
        return {"matches_old": pair[0], "matches_new": pair[1]}

    return {"changed": changed, "old": matches(old), "new": matches(new)}


ROWS = [
    row(True, (True, False), (False, True)),  # knew it, follows
    row(True, (True, False), (True, False)),  # knew it, stays
    row(True, (False, False), (False, True)),  # follows
    row(True, (False, False), (False, False)),  # wrong
    row(True, (True, False), (True, True)),  # an answer that is both follows
    row(False, (True, True), (True, True)),
    row(False, (True, True), (False, False)),
]


def test_shares_of_questions() -> None:
    found = question_summary(ROWS)
    assert found["new_corpus"] == pytest.approx({"follows": 0.6, "stays": 0.2, "wrong": 0.2})
    assert found["old_corpus"] == pytest.approx({"follows": 0.0, "stays": 0.6, "wrong": 0.4})
    assert found["known_questions"] == 3
    assert found["new_corpus_of_known"] == pytest.approx({"follows": 2 / 3, "stays": 1 / 3, "wrong": 0.0})
    assert (found["unchanged_exact_match_before"], found["unchanged_exact_match_after"]) == (1.0, 0.5)
    assert question_summary([ROWS[-1]])["new_corpus"] is None


def reading(exact: bool, marginal: float, null: float, pieces: int) -> ClozeReading:
    return ClozeReading("c", "x", exact, marginal, null, pieces, exact, [])


def test_means_of_blanks() -> None:
    old = [reading(False, -6.0, -5.0, 1), reading(False, -4.0, -4.0, 3)]
    new = [reading(True, -1.0, -5.0, 1), reading(False, -5.0, -4.0, 3)]
    found = cloze_summary(old, new)
    assert found["old"] == {
        "exact_match": 0.0,
        "log_likelihood": -5.0,
        "utility": -0.5,
        "answer_retrieved": 0.0,
        "log_likelihood_per_wordpiece": -2.5,
    }
    assert found["new"]["utility"] == 1.5
    assert found["difference"]["log_likelihood"] == {"mean": 2.0, "deltas": [5.0, -1.0]}
    assert (found["items"], found["wordpieces"]) == (2, 4)


def made(name: str, questions: bool, blanks: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "name": name,
        "run": {"system": "realm", "seed": 3, "run_key": "abcdef0123456789"},
        "settings": {"candidates": 8, "passages_read": 5},
        "corpora": {
            "old": {"source": "old_*file*.jsonl", "passages": 5402, "embedded": 5402},
            "new": {"source": "new.jsonl", "passages": 10339, "embedded": 4999},
        },
        "seconds": 61.0,
    }
    if questions:
        result["questions"] = question_summary(ROWS)
    if blanks:
        found = cloze_summary([reading(False, -6.0, -5.0, 2)] * 2, [reading(True, -1.0, -5.0, 2)] * 2)
        for measure in found["difference"].values():
            del measure["deltas"]
            measure |= {"low": 0.25, "high": None}
        result["clozes"] = {"only-in-new": found | {"shortened": 1, "skipped": ["c9: an answer of 0 wordpieces"]}}
    return result


def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    results = [made("news", False, True), made("swapped-facts", True, False)]
    path = write_knowledge_update(results, tmp_path / "page")
    text = path.read_text()
    assert "of 5 changed answers 60.0% follow the new corpus, 20.0% stay with the old, 20.0% are wrong" in text
    assert "exact match 0.0% with the old corpus, 100.0% with the new (+100 [+25, ?] points)" in text.replace("\\", "")
    assert "| old | old\\_\\*file\\*.jsonl | 5,402 | 5,402 |" in text or "old_\\*file\\*" in text
    assert "| new | new.jsonl | 10,339 | 4,999 |" in text
    assert "2 items, 4 masked wordpieces; 1 texts shortened; 1 left out" in text
    assert json.loads((path.parent / "results.json").read_text()) == results
    for name in ("knowledge_update_questions", "knowledge_update_blanks"):
        assert f"(figures/{name}.png)" in text
        assert (path.parent / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (path.parent / "figures" / f"{name}.svg").read_text()


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        write_knowledge_update([made("news", True, True)], folder)
    first, second = ({p.name: p.read_bytes() for p in folder.rglob("*.*") if p.is_file()} for folder in folders)
    assert first == second


@pytest.mark.parametrize(("questions", "blanks"), [(True, False), (False, True)])
def test_what_was_not_asked_is_not_shown(tmp_path: Path, questions: bool, blanks: bool) -> None:
    text = write_knowledge_update([made("one", questions, blanks)], tmp_path).read_text()
    assert ("### Questions" in text) is questions
    assert ("### Blanks" in text) is blanks
