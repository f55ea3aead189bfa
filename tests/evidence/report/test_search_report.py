"""The report of a search, made only from trials.json."""

from pathlib import Path
from typing import Any

from realm_lab.evidence.report.sections.search import write_search_report
from realm_lab.records.files import read_json, write_json

RATE = "pretrain.retriever.learning_rate"


def trial(number: int, state: str, value: float | None, rate: float, **more: Any) -> dict[str, Any]:
    made = {"number": number, "cell": f"trial-{number:03}", "state": state, "values": {RATE: rate}, "value": value}
    return made | {"runs": [f"realm-s0-{number}"], "why": None} | more


def test_the_best_trial_is_named_and_not_called_better(tmp_path: Path) -> None:
    trials = [
        trial(2, "failed", None, 0.002, why="no memory <here>"),
        trial(0, "complete", 0.5, 0.001),
        trial(1, "complete", 0.75, 0.01),
        trial(3, "pruned", None, 0.1, why="behind the others at step 4"),
        trial(4, "complete", 0.25, 0.02),
    ]
    plan: dict[str, Any] = {"name": "search-x", "question": "Which?", "metric": "cloze_exact_match", "seeds": [0]}
    plan |= {"source": "search-x.yaml", "baseline": {RATE: 0.001}, "trials": trials}
    plan |= {"space": {RATE: {"low": 0.001, "high": 0.1, "log": True}}}
    write_json(tmp_path / "runs" / "studies" / "search-x" / "trials.json", plan)
    folder, summary = write_search_report(tmp_path, "search-x")
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "is trial-001: cloze exact match 0.750; the baseline reaches 0.500. This does not show that it is" in text
    assert "| 2 | failed | – | 0.002 | no memory &lt;here&gt; |" in text
    assert "(figures/history.png)" in text
    assert read_json(folder / "summary.json") == summary
    rows = (folder / "search.csv").read_text().splitlines()
    assert rows[4] == "3,pruned,,0.1,realm-s0-3,behind the others at step 4"
    write_json(tmp_path / "runs" / "studies" / "search-x" / "trials.json", plan | {"trials": trials[:1]})
    assert "No trial is complete" in (write_search_report(tmp_path, "search-x")[0] / "report.md").read_text()
