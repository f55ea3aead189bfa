"""The report of `realm-lab evaluate --corpus`: a corpus that was replaced without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_lab.core.files import write_json, write_text
from realm_lab.reporting.figures import draw, shares_figure
from realm_lab.reporting.rendering import render, signed
from realm_lab.reporting.report import write_figures

MEASURES = {
    "exact_match": "exact match",
    "log_likelihood": "log-likelihood of the answer, nats",
    "utility": "retrieval utility, nats",
    "answer_retrieved": "answer among the passages read",
}
PARTS = {"follows": "follows the new version", "stays": "stays with the old", "wrong": "wrong"}
ASKED = {
    "old_corpus": "old corpus",
    "new_corpus": "new corpus",
    "new_corpus_of_known": "new corpus, of those right with the old",
}


def write_knowledge_update(results: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Write the report of one or several experiments into `folder`; returns report.md."""
    bars = [
        (f"{result['name']}, {ASKED[side]}", [result["questions"][side][part] for part in PARTS])
        for result in results
        for side in ("old_corpus", "new_corpus")
        if (result.get("questions") or {}).get(side)
    ]
    drawing = draw(
        "knowledge_update_questions",
        "Questions whose answer changed, asked with the old corpus and with the new one.",
        lambda: shares_figure(bars, [*PARTS.values()], "share of the questions whose answer changed"),
    )
    figures = [drawing] if drawing else []
    write_figures(folder, figures)
    write_json(folder / "results.json", list(results))
    text = render(
        "knowledge_update.md.j2",
        results=results,
        asked=ASKED,
        measures=MEASURES,
        change=_change,
        figures=[drawing.entry for drawing in figures],
    )
    write_text(folder / "report.md", text)
    return folder / "report.md"


def _change(change: Mapping[str, float | None]) -> str:
    """ "+0.369 (+0.329 to +0.411)", the interval where there is one."""
    return f"{signed(change['mean'])} ({signed(change['low'])} to {signed(change['high'])})"
